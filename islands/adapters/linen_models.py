"""Tasks of Flax Linen modules.

The collection `params` has the parameters, and `batch_stats` the state. The random streams of a
module are folded from the key of the step. All other collections are refused by their path.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coordinator.errors import UserMistake
from islands.adapters.leaf_trees import branches, leaves_of
from islands.adapters.model_parts import (
    LossInputs,
    ModelParts,
    TaskData,
    library,
    split_result,
    task_of,
)
from islands.data.segments import LOSS_MASK, SEGMENTS, TOKENS
from islands.nested_leaves import nested
from islands.sources import DataSpec
from islands.state_tree import FROZEN, KEY, named_arguments
from islands.task import Batch, Task
from islands.task_helpers import NamedArrays
from islands.user_code import asked
from islands.user_lines import place_of

PARAMS, STATS = "params", "batch_stats"
"""The collections of a module that a task may have."""


def linen_task(
    module: Any,
    loss: Callable[..., Any],
    data: DataSpec,
    *,
    examples: Callable[[], NamedArrays] | None = None,
    classes: int | None = None,
    vocabulary: int = 256,
    name: str = "linen",
    rngs: Sequence[str] = ("dropout",),
    stacked: Sequence[str] = (),
    frozen: Callable[[], Any] | None = None,
    text: Callable[..., Any] | None = None,
) -> Task:
    """Return the task of a Flax Linen module.

    The collection `params` is trained and merged, and `batch_stats` is state (`Task.init_state`).
    Each random stream gets another key at each step of each island, and none in an evaluation. The
    parameters are made by `module.init`, with the arguments of the first `apply` of the loss and a
    batch of one example of zeros.

    Args:
        module: The module, a `flax.linen.Module`.
        loss: (apply, batch, train) -> the mean loss, a float32 scalar, or a pair of it and a
            mapping of named scalars. `apply(*args, **kwargs)` calls the module with its variables,
            random keys and, if `train` is true, mutable batch statistics. `train` is false in an
            evaluation. The loss may also have the arguments `key` and `frozen` of `Task.loss`.
        data: The argument of the task's function.
        examples: Arrays by name, as for `supervised_task`. None: the text of the table `[data]`, as
            for `text_task`.
        classes: Number of classes of the examples.
        vocabulary: Number of tokens of a text.
        name: The name in messages.
        rngs: The names of the module's random streams.
        stacked: The beginnings of the paths of leaves whose first axis stacks layers.
        frozen: As in `Task.frozen`.
        text: (apply, tokens int [B, T]) -> the scores of the token after each position, [B, T, V],
            for a model of text; `apply` calls the module as in an evaluation. None: it cannot be
            sampled.

    Raises:
        UserMistake: If Flax is not installed, the loss raises, or the module has another
            collection.
    """
    given = TaskData(data, examples, classes, vocabulary).checked(name, text)
    linen = library("flax.linen", "Flax", "flax")
    if not isinstance(module, linen.Module):
        raise UserMistake(
            f"task {name}: {type(module).__name__} is no module of Flax Linen; give an instance of "
            "a flax.linen.Module"
        )

    names = named_arguments(loss)
    frozen_shapes = None if frozen is None else jax.eval_shape(frozen)

    def initial(example: Batch, key: jax.Array) -> Any:
        """Return the variables that the module initializes for such a batch."""
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), frozen_shapes)
        named = {KEY: None, FROZEN: zeros}
        apply = BoundModule(module, None, key, tuple(rngs), train=False)
        loss(apply, example, False, **{name: named[name] for name in names})
        if apply.variables is None:
            raise ValueError("it never calls its first argument, apply")
        return linen.unbox(apply.variables)

    def first_accepted(examples: Sequence[Batch]) -> tuple[Batch, Any]:
        """Return the first of these batches that the loss accepts, with the module's shapes."""
        refused = list[UserMistake]()
        for example in examples:
            call = partial(jax.eval_shape, partial(initial, example), jax.random.key(0))
            try:
                return example, asked(f"task {name}: the loss", call, place=place_of(loss))
            except UserMistake as error:
                refused.append(error)
        raise refused[0]

    example, shapes = first_accepted(_examples(given))
    others = [path for path in leaves_of(shapes) if path.partition("/")[0] not in (PARAMS, STATS)]
    if others:
        raise UserMistake(
            f"{place_of(type(module))}task {name}: {', '.join(others)}: the collection params is "
            "trained, batch_stats is merged as state, and no other can be; compute it in the call"
        )

    def call(step: LossInputs) -> tuple[Any, Any, Any]:
        variables = {PARAMS: step.params} | ({STATS: step.state} if STATS in shapes else {})
        train = step.key is not None
        apply = BoundModule(module, variables, step.key, tuple(rngs), train=train)
        number, metrics = split_result(loss(apply, step.batch, train, **step.named))
        return number, (apply.variables or {}).get(STATS, {}), metrics

    def scores(params: Any, state: Any, tokens: jax.Array) -> Any:
        assert text is not None
        variables = {PARAMS: params} | ({STATS: state} if STATS in shapes else {})
        return text(BoundModule(module, variables, None, tuple(rngs), train=False), tokens)

    made, params = jax.jit(partial(initial, example)), shapes.get(PARAMS, {})
    embeddings = frozenset(p for p in leaves_of(params) if p.split("/")[-1] == "embedding")
    parts = ModelParts(
        init=lambda key: made(key).get(PARAMS, {}),
        init_state=(lambda key: made(key)[STATS]) if STATS in shapes else None,
        loss=call,
        user_loss=loss,
        loss_inputs=3,
        user_init=loss,
        embeddings=lambda path: path in embeddings,
        text=None if text is None else scores,
    )
    return task_of(parts, given, name=name, stacked=stacked, frozen=frozen)


def linen_variables(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables for `module.apply`, from the parameters of a run.

    Args:
        params: Arrays by path, from `Run.params()`, `RunResult.parameters()` or a saved model.
    """
    values, stats = branches({path: jnp.asarray(array) for path, array in params.items()})
    return {PARAMS: nested(values)} | ({STATS: nested(stats)} if stats else {})


class BoundModule:
    """A module with the variables and random keys of one step; calling it calls the module."""

    def __init__(
        self,
        module: Any,
        variables: Mapping[str, Any] | None,
        key: jax.Array | None,
        rngs: Sequence[str],
        *,
        train: bool,
    ) -> None:
        """Bind the module; `variables`: None if the first call initializes them."""
        self._module, self._key, self._rngs, self._train = module, key, rngs, train
        self._calls = 0
        self.variables = variables
        """The collections by name; None before the first call of an initialization."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the module."""
        if self.variables is None:
            keys = {PARAMS: self._key, **self._drawn()}
            output, self.variables = self._module.init_with_output(keys, *args, **kwargs)
            return output
        if not self._train:
            return self._module.apply(self.variables, *args, **kwargs)
        output, changed = self._module.apply(
            self.variables, *args, rngs=self._drawn(), mutable=[STATS], **kwargs
        )
        self.variables = {**self.variables, **changed}
        return output

    def _drawn(self) -> dict[str, jax.Array]:
        """Return a key for each random stream; another one for each call in a step."""
        assert self._key is not None
        key, self._calls = jax.random.fold_in(self._key, self._calls), self._calls + 1
        return {name: jax.random.fold_in(key, zlib.crc32(name.encode())) for name in self._rngs}


def _examples(data: TaskData) -> list[Batch]:
    """Return a batch of one example of zeros in each form that batches may have.

    Whether a text has a mask depends on its source, which another machine may read.
    """
    if data.examples is not None:
        return [{name: np.zeros_like(array[:1]) for name, array in data.examples().items()}]
    tokens = np.zeros((1, data.spec.window + 1), np.int32)
    segments = {SEGMENTS: tokens} if data.spec.separate_documents else {}
    plain: Batch = {TOKENS: tokens, **segments} if segments else tokens
    return [plain, {TOKENS: tokens, **segments, LOSS_MASK: np.ones(tokens.shape, np.bool_)}]
