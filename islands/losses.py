"""The forms of a user's loss, and the forms that the rest of the code calls.

A loss is `loss(params, batch)`, and may have an argument `key`, one `frozen`, or both. It returns a
scalar, or a pair of a scalar and a mapping of named scalars, its metrics. The key is that of the
step (`randomness`). Evaluations pass `None` for the key: a model with dropout then keeps all its
units.

The loss of a task with state returns the pair of the loss and another pair: the new state, and the
metrics. Here its parameters and its state are one tree (`state_tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax

from islands.state_tree import FROZEN, KEY, named_arguments
from islands.task import Batch, Params, Task

Metrics: TypeAlias = Mapping[str, jax.Array]
"""The scalars that a loss returns beside itself, by name; means over the batch."""


Named: TypeAlias = Mapping[str, Any]
"""The named arguments that a loss has: its key, its frozen arrays, both or none."""


class LossResult(NamedTuple):
    """The result of a loss."""

    loss: jax.Array
    """Mean nats per token, a float32 scalar."""
    state: Any
    """The new state, for a task that has one."""
    metrics: Metrics


def training_loss(task: Task) -> Callable[[Params, Batch, Named], LossResult]:
    """Return the loss of a training step as (params, batch, named arguments) -> `LossResult`."""
    loss, has_state = task.loss, task.init_state is not None

    def call(params: Params, batch: Batch, named: Named) -> LossResult:
        number, rest = _split(loss(params, batch, **named))
        if not has_state:
            return LossResult(number, None, {} if rest is None else rest)
        state, metrics = rest if isinstance(rest, tuple) and len(rest) == 2 else (rest, {})
        return LossResult(number, state, metrics)

    return call


def evaluation_loss(task: Task) -> Callable[..., tuple[jax.Array, Metrics]]:
    """Return the loss of an evaluation as (params, batch, frozen arrays) -> (loss, metrics).

    It is `task.eval_loss`, or `task.loss` with the key `None`.
    """
    loss = task.loss if task.eval_loss is None else task.eval_loss
    names, has_own = named_arguments(loss), task.eval_loss is not None

    def call(params: Params, batch: Batch, frozen: Any = None) -> tuple[jax.Array, Metrics]:
        given = {KEY: None, FROZEN: frozen}
        number, rest = _split(loss(params, batch, **{name: given[name] for name in names}))
        if task.init_state is not None and not has_own:
            rest = rest[1] if isinstance(rest, tuple) and len(rest) == 2 else None
        return number, {} if rest is None else rest

    return call


def frozen_of(task: Task) -> Any:
    """Make or load the frozen arrays; None if the task has none.

    Errors: what `Task.frozen` raises.
    """
    return None if task.frozen is None else task.frozen()


def _split(result: Any) -> tuple[Any, Any]:
    """Return a loss and what comes beside it; None if it returns a scalar only."""
    pair: Any = result
    if isinstance(result, tuple) and len(pair) == 2:
        return pair[0], pair[1]
    return result, None
