"""A dynamic loss scale for a loss in float16 (arXiv:1710.03740, section 3.2).

The scale is a part of a learner's state and goes neither to the syncer nor to other learners: each
life begins at `START`. A step whose gradient is not finite changes neither parameters nor moments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

DYNAMIC: Final = "dynamic"
"""The value of `optimizer.loss_scale` for this scale."""
START = 2.0**15
"""The scale of the first step of a life."""
LEAST, MOST = 1.0, 2.0**24
"""The bounds of the scale."""
T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class DynamicScale:
    """The scale of the next step, and the steps since it last changed."""

    scale: jax.Array
    """The factor of the loss within the backward pass, a float32 scalar and power of two."""
    good_steps: jax.Array
    """Steps with a finite gradient since the scale last changed, an int32 scalar."""


def first_scale(
    loss_scale: float | str, place: Callable[[np.ndarray[Any, Any]], jax.Array]
) -> DynamicScale | None:
    """Return the scale of a new life; None if `loss_scale` is a number.

    `place` puts a scalar on the devices.
    """
    if loss_scale != DYNAMIC:
        return None
    return DynamicScale(place(np.asarray(START, np.float32)), place(np.asarray(0, np.int32)))


def next_scale(now: DynamicScale, finite: jax.Array, every: int) -> DynamicScale:
    """Return the scale after a step: half of it after an overflow, doubled after `every` good ones.

    `finite`: whether the gradient of the step was finite, a boolean scalar.
    """
    good = jnp.where(finite, now.good_steps + 1, 0)
    grows = good >= every
    factor = jnp.where(finite, jnp.where(grows, 2.0, 1.0), 0.5)
    scale = jnp.clip(now.scale * factor, LEAST, MOST).astype(jnp.float32)
    return DynamicScale(scale, jnp.where(grows, 0, good).astype(jnp.int32))


def unless_overflow(
    now: DynamicScale | None, grads: Any, after: T, before: T, every: int
) -> tuple[T, DynamicScale | None]:
    """Return the state after a step, or `before` if its gradient is not finite, and the next scale.

    `now`: the scale of the step; None: it is constant, and the step always counts.
    """
    if now is None:
        return after, None
    finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads)]).all()
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
    return kept, next_scale(now, finite, every)
