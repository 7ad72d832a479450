"""The mean loss of a batch over the tokens that it counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from islands.data.segments import mask_of


def mean_nats(nats: jax.Array, batch: Any) -> jax.Array:
    """Return the mean of the nats of each predicted token, [B, T], over the tokens that count.

    Without a mask these are all tokens. A batch without any such token has the loss 0.
    """
    mask = mask_of(batch)
    if mask is None:
        return jnp.mean(nats)
    counted = mask[:, 1:]
    return jnp.sum(jnp.where(counted, nats, 0.0)) / jnp.maximum(jnp.sum(counted), 1)
