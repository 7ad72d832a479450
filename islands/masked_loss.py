"""The mean loss over the tokens that it counts: of a batch, and of several batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from coordinator.errors import UserMistake
from islands.data.segments import LOSS_MASK, mask_of


def mean_nats(nats: jax.Array, batch: Any) -> jax.Array:
    """Return the mean of the nats of each predicted token, [B, T], over the tokens that count.

    Without a mask these are all tokens. A batch without any such token has the loss 0.
    """
    mask = mask_of(batch)
    if mask is None:
        return jnp.mean(nats)
    counted = mask[:, 1:]
    return jnp.sum(jnp.where(counted, nats, 0.0)) / jnp.maximum(jnp.sum(counted), 1)


def mean_of_batches(means: Sequence[float], counts: Sequence[int | None]) -> float:
    """Return the mean over several batches from the mean of each, such as a loss or a metric.

    `counts`: the tokens that the loss counts in each batch (`counted_in`), by which the batches are
    weighted; None for a batch without a mask. Batches weigh equally unless each has a mask.

    Errors: `UserMistake` if all batches have masks, and none has a token that the loss counts.
    """
    known = [count for count in counts if count is not None]
    if len(known) < len(means) or (len({*known}) == 1 and known[0] > 0):
        return sum(means) / len(means)
    if not (total := sum(known)):
        raise UserMistake(
            f"the {len(means)} held-out batches that were evaluated have no token that the loss "
            f"counts: their {LOSS_MASK} is false everywhere; hold out more windows "
            "(data.heldout_percent), or use shorter prompts or longer windows (data.window)"
        )
    pairs = zip(means, known, strict=True)
    return sum(mean * count for mean, count in pairs if count) / total
