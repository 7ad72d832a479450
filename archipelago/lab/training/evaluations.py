"""One evaluation of the global model during training; this module imports no JAX."""

from __future__ import annotations

from typing import NamedTuple


class Evaluation(NamedTuple):
    """The global model at a syncer step."""

    t: int
    """The syncer step."""
    time_s: float
    """Virtual seconds."""
    tokens: int
    """Tokens trained until this evaluation."""
    heldout_loss: float
    """The held-out loss over a sample, in nats per token."""
