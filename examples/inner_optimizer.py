"""An inner optimizer and a schedule.

Set `optimizer.target = "archipelago.examples.inner_optimizer:inner"` to use it.
"""

import jax
import jax.numpy as jnp
import optax


def inner(b1: float = 0.9) -> optax.GradientTransformation:
    """Return Lion with decoupled weight decay; its updates are added to the parameters."""
    return optax.lion(1.0, b1=b1, weight_decay=0.1)


def rate(clock: jax.Array) -> jax.Array:
    """Return a rate that rises over 20 steps, and then falls with the square root of time."""
    return 3e-4 * jnp.minimum((clock + 1) / 20, jnp.sqrt(20 / (clock + 1)))
