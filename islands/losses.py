"""The forms of a user's loss, and the forms that the rest of the code calls.

A loss is `loss(params, batch)` or `loss(params, batch, key)`; it returns a scalar, or a pair of a
scalar and a mapping of named scalars, its metrics. The key is that of the step (`randomness`).
Evaluations pass `None` for the key: a model with dropout then keeps all its units.

The loss of a task with state returns the pair of the loss and another pair: the new state, and the
metrics. Here its parameters and its state are one tree (`state_tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax

from islands.state_tree import takes_key
from islands.task import Batch, Params, Task

Metrics: TypeAlias = Mapping[str, jax.Array]
"""The scalars that a loss returns beside itself, by name; means over the batch."""


class LossResult(NamedTuple):
    """The result of a loss."""

    loss: jax.Array
    """Mean nats per token, a float32 scalar."""
    state: Any
    """The new state, for a task that has one."""
    metrics: Metrics


def training_loss(task: Task) -> Callable[[Params, Batch, Any], LossResult]:
    """Return the loss of a training step as (params, batch, key) -> `LossResult`."""
    loss, with_key, has_state = task.loss, takes_key(task.loss), task.init_state is not None

    def call(params: Params, batch: Batch, key: Any) -> LossResult:
        result = loss(params, batch, key=key) if with_key else loss(params, batch)
        number, rest = _split(result)
        if not has_state:
            return LossResult(number, None, {} if rest is None else rest)
        state, metrics = rest if isinstance(rest, tuple) and len(rest) == 2 else (rest, {})
        return LossResult(number, state, metrics)

    return call


def evaluation_loss(task: Task) -> Callable[[Params, Batch], tuple[jax.Array, Metrics]]:
    """Return the loss of an evaluation: `task.eval_loss`, or `task.loss` with the key `None`."""
    loss = task.loss if task.eval_loss is None else task.eval_loss
    with_key, has_own = takes_key(loss), task.eval_loss is not None

    def call(params: Params, batch: Batch) -> tuple[jax.Array, Metrics]:
        number, rest = _split(loss(params, batch, key=None) if with_key else loss(params, batch))
        if task.init_state is not None and not has_own:
            rest = rest[1] if isinstance(rest, tuple) and len(rest) == 2 else None
        return number, {} if rest is None else rest

    return call


def _split(result: Any) -> tuple[Any, Any]:
    """Return a loss and what comes beside it; None if it returns a scalar only."""
    pair: Any = result
    if isinstance(result, tuple) and len(pair) == 2:
        return pair[0], pair[1]
    return result, None
