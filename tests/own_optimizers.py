"""Optimizers and schedules of a user's own, sound and unsound, as targets for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

HERE = "tests.own_optimizers"
LION = optax.lion(1.0)


def adamw(b2: float = 0.99) -> optax.GradientTransformation:
    """Return the built-in AdamW as a user writes it, with updates that go down."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, b2, 1e-8),
        optax.add_decayed_weights(0.1),
        optax.scale(-1.0),
    )


def scheduled_adam(peak: float, steps: int) -> optax.GradientTransformation:
    """Return an optimizer with a schedule of its own."""
    return optax.adam(optax.linear_schedule(peak, 0.0, steps), 0.9, 0.99, 1e-8)


def sgd_and_adam() -> optax.GradientTransformation:
    """Return an optimizer in which some moments are divided, and some parameters have none."""
    rules: Any = {"sgd": optax.sgd(1.0, 0.8), "adam": optax.adam(1.0, 0.9), "none": optax.sgd(1.0)}
    return optax.partition(rules, {"w": "sgd", "v": "adam", "b": "none"})


def tenth_at_ten(clock: jax.Array) -> jax.Array:
    return jnp.where(clock < 10, 1e-2, 1e-3)


# --- unsound ones ---------------------------------------------------------------------------------


class Count(NamedTuple):
    count: Any


def _of(init: Any, update: Any) -> optax.GradientTransformation:
    return optax.GradientTransformation(init, update)


def other_structure() -> optax.GradientTransformation:
    return _of(lambda _: Count(jnp.zeros(())), lambda g, s, _: ({"w": g["w"]}, s))


def other_shape() -> optax.GradientTransformation:
    return _of(
        lambda _: Count(jnp.zeros(())), lambda g, s, _: (jax.tree.map(lambda x: x[:1], g), s)
    )


def other_type() -> optax.GradientTransformation:
    halve = lambda x: x.astype(jnp.bfloat16)  # noqa: E731
    return _of(lambda _: Count(jnp.zeros(())), lambda g, s, _: (jax.tree.map(halve, g), s))


def growing_state() -> optax.GradientTransformation:
    return _of(lambda _: Count(jnp.zeros(1)), lambda g, s, _: (g, Count(jnp.zeros(2))))


def infinite_state() -> optax.GradientTransformation:
    return _of(lambda _: Count(jnp.full((), jnp.inf)), lambda g, s, _: (g, s))


def half_state() -> optax.GradientTransformation:
    return optax.sgd(1.0, 0.9, accumulator_dtype=jnp.bfloat16)


def noisy() -> optax.GradientTransformation:
    return optax.chain(optax.add_noise(0.1, 0.5, key=jax.random.key(0)), optax.sgd(1.0))


def breaks() -> optax.GradientTransformation:
    raise RuntimeError("not today")


def python_if(clock: jax.Array) -> float:
    return 1.0 if clock < 10 else 0.1


def negative(clock: jax.Array) -> jax.Array:
    return 1.0 - 0.01 * clock


def two_numbers(clock: jax.Array) -> jax.Array:
    return jnp.stack([clock, clock])
