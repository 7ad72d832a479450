"""The task of a Gemma model on a corpus: `task.preset` names a preset or a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import jax

from coordinator.errors import UserMistake
from islands.corpus import Corpus, Stream
from islands.corpus_reader import open_corpus
from islands.data.mixture import MixedCorpus
from islands.data.segments import predicted
from islands.gemma import parameters
from islands.gemma.decoder import text_model
from islands.gemma.forward import frozen_of
from islands.gemma.hf_config import read_config
from islands.gemma.loss import cross_entropy
from islands.gemma.parameters import EMBEDDINGS, GemmaParams, LeafArray
from islands.gemma.presets import CONFIG_SUFFIX, PRESETS
from islands.gemma.spec import GemmaSpec
from islands.sources import DataSpec
from islands.task import Batch, Option, Task

BALANCE = "router_balance"
"""The metric of models with experts: one if all experts have equal load."""


def load(preset: str, options: Mapping[str, Option], data: DataSpec) -> Task:
    """Return the task of a preset, or of a `config.json` of transformers.

    Errors: `UserMistake` if the file cannot be read, or an option does not fit.
    """
    return language_model(preset, spec_named(preset, options), data)


def spec_named(preset: str, options: Mapping[str, Option]) -> GemmaSpec:
    """Return the shape of a preset or a `config.json`, changed by options.

    Options are the fields of `GemmaSpec`.

    Errors: `UserMistake` with every problem.
    """
    if preset in PRESETS:
        spec = PRESETS[preset]
    elif preset.endswith(CONFIG_SUFFIX):
        spec = read_config(Path(preset).expanduser())
    else:
        near = get_close_matches(preset, PRESETS, n=1)
        raise UserMistake(
            f"preset {preset!r}: {f'did you mean {near[0]!r}? ' if near else ''}known are "
            f"{', '.join(PRESETS)}, or name a config.json of transformers"
        )
    known = {field.name: type(getattr(spec, field.name)) for field in fields(spec)}
    given, wrong = dict[str, Any](), list[str]()
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            wrong.append(f"task.options.{name} = {value!r}: {hint}known are {', '.join(known)}")
        elif known[name] is float and type(value) is int:
            given[name] = float(value)
        elif known[name] is tuple and isinstance(value, str):
            try:
                given[name] = tuple(map(float, value.split()))
            except ValueError:
                wrong.append(f"task.options.{name} = {value!r}: must be numbers and spaces")
        elif type(value) is not known[name]:
            wrong.append(f"task.options.{name} = {value!r}: must be of type {_type(known[name])}")
        else:
            given[name] = value
    if not wrong:
        spec = replace(spec, **given)
        wrong = [f"task.options.{problem}" for problem in spec.problems()]
    if wrong:
        raise UserMistake("\n".join(wrong))
    return spec


def _type(kind: type) -> str:
    return "str, with a number for each layer" if kind is tuple else kind.__name__


@dataclass(frozen=True, slots=True)
class DrawnGemma:
    """The `init` of a Gemma model; it has its shapes, and can draw single leaves."""

    spec: GemmaSpec

    def __call__(self, seed: int) -> GemmaParams:
        """Return the initial parameters."""
        return parameters.init(self.spec, seed)

    def shapes(self) -> GemmaParams:
        """Return the parameters as `jax.ShapeDtypeStruct`."""
        return parameters.shapes(self.spec)

    def leaf(self, path: str, seed: int) -> LeafArray:
        """Return one leaf of the initial parameters."""
        return parameters.init_leaf(self.spec, path, seed)


def language_model(name: str, spec: GemmaSpec, data: DataSpec) -> Task:
    """Return a Gemma model on a corpus, which is read when first needed."""

    @cache
    def corpus() -> Corpus | MixedCorpus:
        return open_corpus(data, spec.vocabulary)

    loss, eval_loss = _losses_of(spec)
    return Task(
        name=name,
        vocabulary=spec.vocabulary,
        init=DrawnGemma(spec),
        loss=loss,
        tokens=predicted,
        stream=lambda batch_size: Stream(corpus(), batch_size, data.seed),
        heldout=lambda batch_size: corpus().heldout_batches(batch_size),
        stacked=parameters.is_stacked,
        embedding=lambda path: path in EMBEDDINGS,
        sharding=lambda path, shape: parameters.sharding(spec, path),
        eval_loss=eval_loss,
        text=text_model(spec, data),
    )


@cache
def _losses_of(spec: GemmaSpec) -> tuple[Any, Any]:
    """Return the loss of training and that of evaluations, which has no load-balance loss.

    They are the same functions for one shape, so that JAX compiles them once in a process.
    """
    frozen = frozen_of(spec)

    def eval_loss(params: GemmaParams, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        nats, balance = cross_entropy(spec, params, batch, frozen)
        return nats, {BALANCE: balance} if spec.experts else {}

    def loss(params: GemmaParams, batch: Batch) -> jax.Array:
        nats, balance = cross_entropy(spec, params, batch, frozen)
        return nats + spec.balance_weight * balance if spec.experts else nats

    return loss, eval_loss
