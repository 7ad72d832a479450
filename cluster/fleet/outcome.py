"""The outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass

SUMMARY_KEYS = (
    "heldout_loss", "sample_heldout_loss", "initial_heldout_loss", "tokens_trained",
    "tokens_merged", "tokens_discarded", "tokens_lost", "tokens_outstanding", "merges",
    "mean_participants", "goodput", "uptime", "failures",
    "faults", "recovery_s", "max_merge_gap_s", "up_bytes_per_token", "down_bytes_per_token",
    "rejected_contributions", "effective_overlap", "wall_s", "global_sha256",
)  # fmt: skip
"""The keys of a summary, in order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: with a summary, or with an error."""

    summary: dict[str, object]
    """The final figures; empty if the run has failed."""
    error: str | None = None
    """The error in words; None if the run has succeeded."""
    mistake: bool = False
    """Whether the error is a user's mistake."""
    asked: str | None = None
    """The request that stopped the run; None if there was none."""
    missing: str | None = None
    """The figures that the summary lacks, and why; None if it is complete."""
