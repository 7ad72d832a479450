"""What a user brings: how to start, what to minimise, and on which batches.

Everything else in here is JAX's own vocabulary: parameters and batches are pytrees of arrays, the
loss is a pure function that can be jitted and differentiated. A task of your own is a function
`(data: DataSpec, **options) -> Task`, named in the configuration as "module:attribute".
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache, cached_property, partial
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np
from jax.sharding import PartitionSpec

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands import model
from islands.corpus import Corpus, Stream
from islands.corpus_reader import read_corpus
from islands.model import ModelSpec
from islands.sources import DataSpec

Params: TypeAlias = Any
"""A pytree of float32 arrays. `Any`, since a tree may nest dicts, tuples and classes at will."""
Batch: TypeAlias = Any
"""A pytree of arrays with the batch on their first axis; int32 [batch, window + 1] in our own."""
Option: TypeAlias = bool | int | float | str
"""A value of the table `[task.options]`."""


class StreamLike(Protocol):
    """Training data with a cursor; `islands.corpus.Stream` is one."""

    @property
    def batch_size(self) -> int:
        """Windows in each batch."""
        ...

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held."""
        ...

    def next(self) -> Batch:
        """The next batch; `islands.corpus.Starved` if the leases held do not fill one."""
        ...

    @property
    def cursor(self) -> Lease:
        """The lease read last, with the windows consumed of it so far."""
        ...

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        ...


def nowhere_special(path: str, shape: tuple[int, ...]) -> PartitionSpec | None:
    """Of a task that does not care how its leaves are split."""
    return None


@dataclass(frozen=True)
class Task:
    """A training task; see each field.

    Built anew in each process (by `load_task`): it holds functions and does not travel.
    """

    name: str
    vocabulary: int
    """ln(vocabulary) is the loss of knowing nothing."""
    init: Callable[[int], Params]
    """Seed -> float32 pytree: the same on every machine."""
    loss: Callable[[Params, Batch], jax.Array]
    """Mean nats per predicted token of a batch, a float32 scalar. Pure; it is jitted."""
    tokens: Callable[[Batch], int]
    """Predicted tokens in a batch."""
    stream: Callable[[int], StreamLike]
    """Batch size -> training data, empty until leases are added. `UserMistake` if unreadable."""
    heldout: Callable[[int], Sequence[Batch]]
    """Batch size -> held-out batches, the same on every call; the first few are a fair sample."""
    stacked: Callable[[str], bool]
    """Leaf path -> does its first axis stack layers? Each layer is then merged by itself."""
    embedding: Callable[[str], bool]
    """Leaf path -> is it an embedding, merged by the mean? (arXiv:2604.21428)"""
    sharding: Callable[[str, tuple[int, ...]], PartitionSpec | None] = nowhere_special
    """Leaf path and shape -> how it is split over an island's mesh (`islands.mesh`); None: its
    largest axis that divides, over fsdp."""

    @cached_property
    def shapes(self) -> Params:
        """The parameters as `jax.ShapeDtypeStruct`, found out once: by tracing `init`, which runs
        what of it is no JAX, or from its method `shapes`, if it is an object that has one.

        Errors: what `init` raises.
        """
        known: Callable[[], Params] | None = getattr(self.init, "shapes", None)
        return jax.eval_shape(lambda: self.init(0)) if known is None else known()

    @property
    def init_leaf(self) -> Callable[[str, int], Any] | None:
        """Leaf path and seed -> that leaf of `init(seed)`, so that nobody needs room for all: its
        method `leaf`, if it is an object that has one."""
        return getattr(self.init, "leaf", None)

    def zeros(self) -> Params:
        """Parameters of these shapes, on the host: to compile with."""
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.shapes)


PRESETS: Mapping[str, ModelSpec] = {
    "byte-tiny": ModelSpec(width=64, layers=2, heads=2, hidden=160),
    "byte-1m": ModelSpec(width=128, layers=4, heads=2, hidden=448),
}


def leaf_path(path: Sequence[Any]) -> str:
    """The name of a leaf, "blocks/attention/query", from a key path of `jax.tree_util`."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


@dataclass(frozen=True, slots=True)
class Drawn:
    """The built-in model's `init`, whose shapes are known without it, and whose leaves are drawn
    one by one."""

    spec: ModelSpec

    def __call__(self, seed: int) -> Params:
        return model.init(self.spec, seed)

    def shapes(self) -> Params:
        return model.shapes(self.spec)

    def leaf(self, path: str, seed: int) -> Any:
        return model.init_leaf(self.spec, path, seed)


def language_model(name: str, spec: ModelSpec, data: DataSpec) -> Task:
    """A decoder-only transformer on a corpus, which is read when its data is first asked for."""

    @cache
    def corpus() -> Corpus:
        return read_corpus(data, spec.vocabulary)

    return Task(
        name=name,
        vocabulary=spec.vocabulary,
        init=Drawn(spec),
        loss=_loss_of(spec),
        tokens=lambda batch: batch.shape[0] * (batch.shape[1] - 1),
        stream=lambda batch_size: Stream(corpus(), batch_size, data.seed),
        heldout=lambda batch_size: corpus().heldout_batches(batch_size),
        stacked=lambda path: path.startswith("blocks/"),
        embedding=lambda path: path == "embedding",
        sharding=lambda path, shape: model.sharding(spec, path),
    )


@cache
def _loss_of(spec: ModelSpec) -> Callable[[Params, Batch], jax.Array]:
    """One function for one shape of model, so that JAX compiles it once in a process."""
    return partial(model.loss, spec)


def load_task(
    preset: str | None, target: str | None, options: Mapping[str, Option], data: DataSpec
) -> Task:
    """The task that the table `[task]` names: a preset of `PRESETS`, or a user's own function.

    A preset's options are the fields of `ModelSpec`; a target's are its own keyword arguments.
    Errors: `UserMistake` if there is no such preset, module, attribute or option.
    """
    if (preset is None) == (target is None):
        raise UserMistake(
            f"[task] needs either a preset ({', '.join(PRESETS)}) or a target "
            f'("module:attribute"), exactly one: preset = {preset!r}, target = {target!r}'
        )
    if target is not None:
        return _call(target, options, data)
    if preset is None or preset not in PRESETS:
        raise UserMistake(f"task.preset = {preset!r}: {_nearest(str(preset), [*PRESETS])}")
    spec = PRESETS[preset]
    known = {field.name: type(getattr(spec, field.name)) for field in fields(spec)}
    wrong = [
        f"task.options.{name} = {value!r}: "
        + (f"must be of type {known[name].__name__}" if name in known else _nearest(name, [*known]))
        for name, value in options.items()
        if known.get(name) is not type(value)
    ]
    if not wrong:
        spec = replace(spec, **dict[str, Any](options))
        wrong = [f"task.options.{problem}" for problem in spec.problems()]
    if wrong:
        raise UserMistake("\n".join(wrong))
    return language_model(preset, spec, data)


def _nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known are {', '.join(known)}"


def _call(target: str, options: Mapping[str, Option], data: DataSpec) -> Task:
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise UserMistake(f'task.target = {target!r}: write it as "module:attribute"')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserMistake(
            f"task.target = {target!r}: no module {error.name!r}: install it or set PYTHONPATH"
        ) from error
    try:
        make = getattr(module, attribute)
        inspect.signature(make).bind(data, **options)
    except (AttributeError, TypeError) as error:
        given = f"task.target = {target!r} with task.options {dict(options)}"
        raise UserMistake(f"{given}: {error}") from error
    task = make(data, **options)
    if not isinstance(task, Task):
        raise UserMistake(f"task.target = {target!r} returned {type(task).__name__}, not a Task")
    return task
