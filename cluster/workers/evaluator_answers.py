"""Answers of an evaluator: its progress, and the loss on the text of one region.

The fleet and the actors import this without JAX.
"""

from __future__ import annotations

from typing import NamedTuple


class Judged(NamedTuple):
    """The progress of an evaluator."""

    batches: int
    """Batches evaluated since the process started."""
    longest_s: float
    """Seconds of the longest batch."""
    spent_s: float = 0.0
    """Seconds of all batches but the first, which includes compilation."""
    look: int = 0
    """Batches of one evaluation during the run."""
    last: int = 0
    """Batches for a summary, if the first model must be evaluated too."""


class RegionLoss(NamedTuple):
    """The held-out loss of the global model on the text of one region."""

    t: int
    """The syncer step of the model; 0 if the caller has named the versions."""
    loss: float
    """In nats per token."""
