"""Schedules of the inner learning rate: its share of the peak at each clock, without the warm-up.

"cosine" falls by half a cosine from the end of the warm-up to the horizon. "wsd" (warm-up, stable,
decay; arXiv:2404.06395) stays at the peak and falls linearly over the last part of the horizon.
Both end at `floor`, a share of the peak, and stay there.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from islands.user_code import attribute_of

Named: TypeAlias = Literal["cosine", "wsd"]
OF_TARGET = "target"
"""The name of the schedule of a target that has rates of its own: ours is then 1."""


def warm_up(step: jax.Array, warmup: int) -> jax.Array:
    """Return the share of the peak in a linear warm-up; 1 after it."""
    return jnp.minimum(1.0, (step + 1) / max(1, warmup))


def cosine(step: jax.Array, warmup: int, horizon: int, floor: float) -> jax.Array:
    """Return the share of the peak in "cosine"."""
    falling = max(1, horizon - warmup)
    done = jnp.clip((step - warmup) / falling, 0.0, 1.0)
    cosine = 0.5 * (1 + jnp.cos(jnp.pi * done))
    return floor + (1 - floor) * cosine


def wsd(step: jax.Array, warmup: int, horizon: int, floor: float, decay: float) -> jax.Array:
    """Return the share of the peak in "wsd", which falls over the last `decay` of the horizon."""
    first = max(warmup, horizon - max(1, round(decay * horizon)))
    done = jnp.clip((step - first) / max(1, horizon - first), 0.0, 1.0)
    return 1 - (1 - floor) * done


def of_user(target: str, clock: jax.typing.ArrayLike) -> jax.Array:
    """Return the rate that the user's function gives for this clock, a float32 scalar.

    Errors: `UserMistake` if there is no such function.
    """
    schedule = attribute_of("optimizer.schedule", target)
    return jnp.asarray(schedule(jnp.asarray(clock, jnp.int32)), jnp.float32)
