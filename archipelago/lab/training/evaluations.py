"""One evaluation of the global model on the way; without JAX, so that drawing needs none."""

from __future__ import annotations

from typing import NamedTuple


class Evaluation(NamedTuple):
    """The global model at a syncer step."""

    t: int
    """The syncer step."""
    time_s: float
    """Virtual seconds."""
    tokens: int
    """Tokens trained by then."""
    heldout_loss: float
    """The held-out loss over a sample, in nats per token."""
