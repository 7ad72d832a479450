"""A training task, as a user defines it: initial parameters, loss, and batches.

The rest is JAX's own vocabulary: parameters and batches are pytrees of arrays, and the loss is a
pure function that can be jitted and differentiated. A task of your own is a function `(data:
DataSpec, **options) -> Task`, named in the configuration as "module:attribute", or given to the
Python API as an object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache, cached_property, partial
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import PartitionSpec

from coordinator.errors import UserMistake
from islands import model
from islands.built_in_init import Drawn
from islands.corpus import Corpus, Stream
from islands.corpus_reader import open_corpus
from islands.data.mixture import MixedCorpus
from islands.data.segments import predicted
from islands.gemma import presets as gemma
from islands.guarded_task import guarded
from islands.model import ModelSpec
from islands.model_decoder import text_model
from islands.pickled_task import load_pickled
from islands.sources import DataSpec
from islands.state_tree import in_one_tree, is_state
from islands.stream_like import Batch, StreamLike
from islands.text_model import TextModel
from islands.user_code import asked, attribute_of
from islands.user_lines import place_of

Params: TypeAlias = Any
"""A pytree of float32 arrays. `Any`, since a tree may nest dicts, tuples and classes freely."""
Option: TypeAlias = bool | int | float | str
"""A value of the table `[task.options]`."""


def nowhere_special(path: str, shape: tuple[int, ...]) -> PartitionSpec | None:
    """Return None: the task does not prescribe how its leaves are split."""
    return None


@dataclass(frozen=True)
class Task:
    """A training task; see each field.

    It holds functions and is never sent: each process builds its own (`load_task`).
    """

    name: str
    """The name in messages, such as a preset's."""
    vocabulary: int
    """Size of the vocabulary; ln(vocabulary) is the loss of a uniform guess."""
    init: Callable[[int], Params]
    """Seed -> pytree of float32, bfloat16 or float16 arrays, equal on every machine."""
    loss: Callable[..., Any]
    """(params, batch) or (params, batch, key) -> mean nats per predicted token, a float32 scalar.

    It must be pure: it is jitted. The key of a training step differs by island, life and step, and
    is the same when a run is repeated (`islands.randomness`); in an evaluation it is None. The loss
    may also return a pair: the scalar, and a mapping of named scalars, its metrics.
    """
    tokens: Callable[[Batch], int]
    """Number of predicted tokens in a batch, masked ones included; merges weigh islands by it."""
    stream: Callable[[int], StreamLike]
    """Batch size -> training data, empty until leases are added. `UserMistake` if unreadable."""
    heldout: Callable[[int], Sequence[Batch]]
    """Batch size -> held-out batches, equal on every call; the first few are a fair sample."""
    stacked: Callable[[str], bool]
    """Leaf path -> whether its first axis stacks layers; each layer is then merged by itself."""
    embedding: Callable[[str], bool]
    """Leaf path -> whether it is an embedding, merged by the mean (arXiv:2604.21428)."""
    sharding: Callable[[str, tuple[int, ...]], PartitionSpec | None] = nowhere_special
    """Leaf path and shape -> how it is split over an island's mesh (`islands.mesh`).

    With None, its largest axis that divides is split over fsdp.
    """
    eval_loss: Callable[..., Any] | None = None
    """The loss of held-out batches, in the same forms; None: `loss`, with None for its key.

    The metrics that it returns are in the summary, as means over the held-out batches. Batches with
    masks are weighted by the tokens that the loss counts (`islands.masked_loss`).
    """
    init_state: Callable[[int], Any] | None = None
    """Seed -> the initial state, such as batch statistics: a float32 pytree. None: no state.

    The loss then is (params, state, batch) or (params, state, batch, key) -> (loss, (new state,
    metrics)), and `eval_loss` takes the state in the same place. State has no gradient and no
    weight decay. In a merge it is the weighted mean of what the islands measured, in float32, and
    each island takes over that mean.
    """

    frozen: Callable[[], Any] | None = None
    """() -> arrays that no step changes, such as the base of a LoRA; None: there are none.

    They are never sent, merged or saved: each process makes or loads them (`frozen_file`). The loss
    then has an argument named `frozen`.
    """

    text: TextModel | None = None
    """Codec, logits and decoder of a model of text, for `sample` and `eval`; None: not one."""
    loop: Callable[[], object] | None = None
    """() -> None: a training loop of the user's own, in place of our step (`islands.own_loop`).

    Each island runs it on a thread of its own. The task's `loss` then only evaluates.
    """
    evaluate: Callable[[Params, Batch], Any] | None = None
    """(params, batch) -> loss, or (loss, metrics), for a task with a `loop` that is not of JAX.

    It gets NumPy arrays, and is called as it is: JAX neither traces nor compiles it. None:
    `eval_loss` or `loss` evaluates.
    """

    def state(self, path: str) -> bool:
        """Return whether a leaf is state, by its path in the tree of `state_tree`."""
        return self.init_state is not None and is_state(path)

    @cached_property
    def shapes(self) -> Params:
        """The parameters as `jax.ShapeDtypeStruct`, computed once.

        They come from the method `shapes` of `init`, if it is an object that has one. Else `init`
        is traced, which runs all of it that is not JAX.

        Errors: what `init` raises.
        """
        known: Callable[[], Params] | None = getattr(self.init, "shapes", None)
        return jax.eval_shape(lambda: self.init(0)) if known is None else known()

    @property
    def init_leaf(self) -> Callable[[str, int], Any] | None:
        """Leaf path and seed -> that leaf of `init(seed)`, so that no process holds all leaves.

        It is the method `leaf` of `init`, if that is an object that has one, else None.
        """
        return getattr(self.init, "leaf", None)

    @property
    def init_is_whole(self) -> bool:
        """Whether `initial_leaves` holds all leaves at once: `init` cannot make single ones."""
        return getattr(self.init, "whole", self.init_leaf is None)

    def initial_leaves(self, seed: int) -> Iterator[Any]:
        """Yield the leaves of `init(seed)` in their order, one at a time if the task can.

        A loaded model is verified only at the end: use no leaf before the iterator has ended.

        Errors: `UserMistake` if `init` reads a file that does not fit, or has changed.
        """
        loaded: Callable[[int], Iterator[Any]] | None = getattr(self.init, "initial_leaves", None)
        if loaded is not None:
            yield from loaded(seed)
        elif (draw := self.init_leaf) is None:
            yield from jax.tree.leaves(self.init(seed))
        else:
            for keys, _ in jax.tree_util.tree_flatten_with_path(self.shapes)[0]:
                yield draw(leaf_path(keys), seed)

    def zeros(self) -> Params:
        """Return zero parameters of these shapes, on the host, for compilation."""
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.shapes)


PRESETS: Mapping[str, ModelSpec] = {
    "byte-tiny": ModelSpec(width=64, layers=2, heads=2, hidden=160),
    "byte-1m": ModelSpec(width=128, layers=4, heads=2, hidden=448),
}


def leaf_path(path: Sequence[Any]) -> str:
    """Return the name of a leaf, "blocks/attention/query", from a key path of `jax.tree_util`."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def language_model(name: str, spec: ModelSpec, data: DataSpec) -> Task:
    """Return a decoder-only transformer on a corpus, which is read when first needed."""

    @cache
    def corpus() -> Corpus | MixedCorpus:
        return open_corpus(data, spec.vocabulary)

    return Task(
        name=name,
        vocabulary=spec.vocabulary,
        init=Drawn(spec),
        loss=_loss_of(spec),
        tokens=predicted,
        stream=lambda batch_size: Stream(corpus(), batch_size, data.seed),
        heldout=lambda batch_size: corpus().heldout_batches(batch_size),
        stacked=lambda path: path.startswith("blocks/"),
        embedding=lambda path: path == "embedding",
        sharding=lambda path, shape: model.sharding(spec, path),
        text=text_model(spec, data),
    )


@cache
def _loss_of(spec: ModelSpec) -> Callable[[Params, Batch], jax.Array]:
    """Return one function for each model shape, so that JAX compiles it once in a process."""
    return partial(model.loss, spec)


def load_task(
    preset: str | None,
    target: str | None,
    options: Mapping[str, Option],
    data: DataSpec,
    pickled: str | None = None,
) -> Task:
    """Return the task of the table `[task]`: a preset, or a user's own function.

    A preset's options are the fields of `ModelSpec` or `GemmaSpec`, a target's its own keyword
    arguments. `pickled`: the function itself (`islands.pickled_task`); `target` only names it.

    Errors: `UserMistake` if there is no such preset, module, attribute or option, or if the pickled
    function cannot be loaded.
    """
    if (preset is None) == (target is None):
        raise UserMistake(
            f"[task] needs either a preset ({', '.join(PRESETS)}) or a target "
            f'("module:attribute"), exactly one: preset = {preset!r}, target = {target!r}'
        )
    if target is not None:
        return _call(target, options, data, pickled)
    if preset is None or gemma.is_gemma(preset):
        return attribute_of("task.preset", gemma.TASK)(preset, options, data)
    if preset not in PRESETS:
        known_presets = [*PRESETS, *gemma.PRESETS]
        raise UserMistake(f"task.preset = {preset!r}: {_nearest(preset, known_presets)}")
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


def _call(target: str, options: Mapping[str, Option], data: DataSpec, pickled: str | None) -> Task:
    if not all(target.partition(":")[::2]):
        raise UserMistake(f'task.target = {target!r}: write it as "module:attribute"')
    make = attribute_of("task.target", target) if pickled is None else load_pickled(pickled, target)
    place = place_of(make)
    try:
        inspect.signature(make).bind(data, **options)
    except (TypeError, ValueError) as error:  # ValueError: a callable without a signature
        given = f"task.target = {target!r} with task.options {dict(options)}"
        raise UserMistake(f"{place}{given}: {error}") from error
    task = asked(f"task.target = {target!r}", lambda: make(data, **options), place=place)
    if not isinstance(task, Task):
        returned = f"returned {type(task).__name__}, not a Task"
        raise UserMistake(f"{place}task.target = {target!r} {returned}")
    return in_one_tree(guarded(task))
