"""Answers of an evaluator: its progress, the loss on the text of one region, and effects.

The fleet and the actors import this without JAX.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.protocol import Fragment, Island


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


class ContributionEffect(NamedTuple):
    """The effect of one merged contribution on the held-out loss."""

    island: Island
    """The island that handed it in."""
    fragment: Fragment
    """The fragment that it belongs to."""
    nats: float
    """Loss of the model minus its loss without the contribution, in nats per token."""


class RegionLoss(NamedTuple):
    """The held-out loss of the global model on the text of one region."""

    t: int
    """The syncer step of the model; 0 if the caller has named the versions."""
    loss: float
    """In nats per token."""
    effect: ContributionEffect | None = None
    """The effect of a contribution of the region; None: not measured."""
