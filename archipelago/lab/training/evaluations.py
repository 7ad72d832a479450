"""What was seen of the global model on the way. No JAX: whoever draws it needs none."""

from __future__ import annotations

from typing import NamedTuple


class Evaluation(NamedTuple):
    """The global model at a syncer step: virtual seconds, tokens trained by then, and its held-out
    loss over a sample, nats per token."""

    t: int
    time_s: float
    tokens: int
    heldout_loss: float
