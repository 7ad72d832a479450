"""Tasks that a training loop of the user's own trains, with a model that need not be of JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

import jax
import numpy as np

from coordinator.errors import UserMistake
from islands.foreign_arrays import is_tensor, on_host, tensor_of
from islands.sources import DataSpec
from islands.task import Batch, Params, Task
from islands.task_helpers import NamedArrays, Paths, begins_with, supervised_task, text_task
from islands.user_code import asked, attribute_of
from islands.user_lines import place_of, wrapping

KEY = "task.loop"


def loop_task(
    loop: Callable[[], object],
    init: Callable[[int], Params],
    evaluate: Callable[[Params, Batch], Any],
    data: DataSpec,
    *,
    examples: Callable[[], NamedArrays] | None = None,
    vocabulary: int = 256,
    name: str = "loop",
    embedding: Paths = (),
    stacked: Paths = (),
) -> Task:
    """Return the task of a model of any library, which a loop of the user's own trains.

    For a model of JAX, give any other task a `loop`: its `loss` evaluates it.

    Args:
        loop: Called without arguments on each island, on a thread of its own; it calls
            `archipelago.join`, and returns when `running` is False.
        init: Seed -> the parameters, a tree (such as a dictionary) of float32 arrays of NumPy or
            tensors of PyTorch on the CPU. Equal for equal seeds.
        evaluate: (parameters, batch) -> the mean loss of the batch in nats per token, or that and
            a mapping of named numbers. The parameters are in the library of `init`, and must not
            be changed in place; a batch holds arrays of NumPy.
        data: What the task's function was given.
        examples: None: a batch is int32 [batch, window + 1], of the text of the table `[data]`.
            Else as in `supervised_task`: arrays by name; a batch is a dictionary of them. For a
            data set of your own, give the numbers of its examples, `{"number": np.arange(n)}`.
        vocabulary: Number of tokens, or of classes; its logarithm is the loss of a uniform guess.
        name: The name in messages.
        embedding: The beginnings of the paths of embeddings.
        stacked: The beginnings of the paths of leaves whose first axis stacks layers.
    """
    drawn = ForeignInit(init, name)

    def loss(params: Params, batch: Batch) -> NoReturn:
        raise UserMistake(f"task {name} has no loss in JAX: its loop trains it, on Ray only")

    own: Any = init  # replaced below
    base = (
        text_task(own, loss, data, vocabulary=vocabulary, name=name)
        if examples is None
        else supervised_task(own, loss, examples, data, classes=vocabulary, name=name)
    )
    return replace(
        base,
        init=drawn,
        loop=loop,
        evaluate=wrapping(lambda params, batch: evaluate(drawn.as_made(params), batch), evaluate),
        embedding=begins_with(embedding),
        stacked=begins_with(stacked),
    )


class ForeignInit:
    """A `Task.init` around one that makes arrays of NumPy or PyTorch."""

    def __init__(self, init: Callable[[int], Params], name: str) -> None:
        """Create it; `name`: of the task in messages."""
        self._init, self._name = init, name

    @property
    def user_callable(self) -> Callable[[int], Params]:
        """The user's own `init`, for `islands.user_lines.place_of`."""
        return self._init

    def __call__(self, seed: int) -> Params:
        """Return the initial parameters as arrays of NumPy."""
        return jax.tree.map(on_host, self._init(seed))

    def shapes(self) -> Params:
        """Return the parameters as `jax.ShapeDtypeStruct`.

        Errors: `UserMistake` if a leaf is no array.
        """

        def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
            if not is_tensor(leaf) and not isinstance(leaf, np.ndarray | jax.Array):
                raise UserMistake(
                    f"{place_of(self)}task {self._name}: init returns a {type(leaf).__name__} "
                    "among its leaves; each must be an array of NumPy, or a tensor of PyTorch"
                )
            array = on_host(leaf)
            return jax.ShapeDtypeStruct(array.shape, array.dtype)

        return jax.tree.map(shape_of, self._made)

    @cached_property
    def _made(self) -> Params:
        return self._init(0)

    @cached_property
    def _are_tensors(self) -> Params:
        return jax.tree.map(is_tensor, self._made)

    def as_made(self, params: Params) -> Params:
        """Return parameters in the library of those that `init` makes."""

        def convert(is_torch: bool, leaf: Any) -> Any:
            return tensor_of(leaf) if is_torch else np.asarray(leaf)

        return jax.tree.map(convert, self._are_tensors, params)


def with_loop(task: Task, target: str) -> Task:
    """Return a task with the loop that the configuration names, "module:attribute".

    Errors: `UserMistake` if there is no such function, or the task has a loop already.
    """
    if task.loop is not None:
        raise UserMistake(f'{KEY} = "{target}": task {task.name} has a loop already; leave one out')
    if not callable(loop := attribute_of(KEY, target)):
        raise UserMistake(f'{KEY} = "{target}" is a {type(loop).__name__}, not a function')
    return replace(task, loop=loop)


# --- evaluation on the host -----------------------------------------------------------------------


def host_evaluation(task: Task) -> Callable[[Params, Batch, Any], tuple[float, dict[str, float]]]:
    """Return `task.evaluate` as (params, batch, frozen arrays) -> (loss, metrics)."""
    assert task.evaluate is not None
    evaluate = task.evaluate

    def call(params: Params, batch: Batch, frozen: Any) -> tuple[float, dict[str, float]]:
        del frozen  # the loop's own affair
        result = evaluate(params, jax.tree.map(np.array, batch))
        pair = result if isinstance(result, tuple) else (result, {})
        return float(pair[0]), {name: float(value) for name, value in dict(pair[1]).items()}

    return call


def problems_of_evaluation(task: Task, shapes: Params, batch: Batch) -> list[str]:
    """Return why `task.evaluate` cannot evaluate such a batch; empty if it can.

    It is called once, with parameters that are zero.
    """
    setting, place = f"task {task.name}: evaluate", place_of(task.evaluate)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    try:
        loss, _ = asked(setting, lambda: host_evaluation(task)(zeros, batch, None), place=place)
    except UserMistake as error:
        return [str(error)]
    if math.isinf(loss):
        return [
            f"{place}{setting} gives {loss} for parameters that are zero: its loss must be finite"
        ]
    return []
