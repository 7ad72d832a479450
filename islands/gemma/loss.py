"""The loss of a Gemma model: the mean nats per predicted token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from islands.data.segments import segments_of, tokens_of
from islands.gemma import forward
from islands.gemma.forward import Frozen
from islands.gemma.parameters import GemmaParams
from islands.gemma.spec import GemmaSpec
from islands.masked_loss import mean_nats


def cross_entropy(
    spec: GemmaSpec, params: GemmaParams, batch: Any, frozen: Frozen | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the mean nats per predicted token of windows [B, T + 1], and the load-balance loss.

    Each position predicts its successor. The batch may have segments and a mask
    (`islands.data.segments`).
    """
    tokens, segments = tokens_of(batch), segments_of(batch)
    seen = None if segments is None else segments[:, :-1]
    x, balance = forward.residual_stream(spec, params, tokens[:, :-1], frozen, seen)
    return mean_nats(_nats_in_parts(spec, params, x, tokens[:, 1:]), batch), balance


def _nats_in_parts(
    spec: GemmaSpec, params: GemmaParams, x: jax.Array, wanted: jax.Array
) -> jax.Array:
    """Return the nats of each wanted token, in `spec.logit_parts` parts of the windows.

    [B, T, D], int [B, T] -> float32 [B, T]. The backward pass then computes the logits of one part
    at a time again, so that those of the others need no memory.
    """
    if spec.logit_parts == 1:
        return _nats(spec, params, x, wanted)
    (batch, time), count = wanted.shape, spec.logit_parts
    padding = -time % count

    def parts(array: jax.Array) -> jax.Array:
        widths = [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2)
        padded = jnp.pad(array, widths)
        return jnp.moveaxis(padded.reshape(batch, count, -1, *array.shape[2:]), 1, 0)

    @jax.checkpoint
    def part(each: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _nats(spec, params, *each)

    nats = jax.lax.map(part, (parts(x), parts(wanted)))
    return jnp.moveaxis(nats, 0, 1).reshape(batch, -1)[:, :time]


def _nats(spec: GemmaSpec, params: GemmaParams, x: jax.Array, wanted: jax.Array) -> jax.Array:
    """Return the nats of each wanted token: [B, T, D], int [B, T] -> float32 [B, T]."""
    logits = forward.scored(spec, params, x)
    right = jnp.take_along_axis(logits, wanted[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - right
