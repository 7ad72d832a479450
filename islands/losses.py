"""The forms of a user's loss, and the one form that the rest of the code calls.

A loss is `loss(params, batch)` or `loss(params, batch, key)`; it returns a scalar, or a pair of a
scalar and a mapping of named scalars, its metrics. The key is that of the step (`randomness`).
Evaluations pass `None` for the key: a model with dropout then keeps all its units.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax

from islands.task import Batch, Params, Task

Metrics: TypeAlias = Mapping[str, jax.Array]
"""The scalars that a loss returns beside itself, by name; means over the batch."""
KEY = "key"
"""The name of a loss's third argument, if it draws."""


def takes_key(loss: Callable[..., Any]) -> bool:
    """Return whether a loss has an argument named `key`."""
    try:
        return KEY in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


def training_loss(task: Task) -> Callable[[Params, Batch, Any], tuple[jax.Array, Metrics]]:
    """Return the loss of a training step as (params, batch, key) -> (loss, metrics)."""
    loss, with_key = task.loss, takes_key(task.loss)

    def call(params: Params, batch: Batch, key: Any) -> tuple[jax.Array, Metrics]:
        return split(loss(params, batch, key=key) if with_key else loss(params, batch))

    return call


def evaluation_loss(task: Task) -> Callable[[Params, Batch], tuple[jax.Array, Metrics]]:
    """Return the loss of an evaluation: `task.eval_loss`, or `task.loss` with the key `None`."""
    loss = task.loss if task.eval_loss is None else task.eval_loss
    with_key = takes_key(loss)

    def call(params: Params, batch: Batch) -> tuple[jax.Array, Metrics]:
        return split(loss(params, batch, key=None) if with_key else loss(params, batch))

    return call


def split(result: Any) -> tuple[Any, Metrics]:
    """Return a loss and its metrics; there are none if it returns a scalar only."""
    pair: Any = result
    if isinstance(result, tuple) and len(pair) == 2:
        return pair[0], pair[1]
    return result, {}
