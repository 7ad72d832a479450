"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass

SUMMARY_KEYS = (
    "heldout_loss", "sample_heldout_loss", "initial_heldout_loss", "tokens_trained",
    "tokens_merged", "tokens_discarded", "tokens_lost", "tokens_outstanding", "merges",
    "mean_participants", "goodput", "uptime", "failures",
    "faults", "recovery_s", "max_merge_gap_s", "up_bytes_per_token", "down_bytes_per_token",
    "rejected_contributions", "effective_overlap", "wall_s", "global_sha256",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: with its summary, or with the words of what went wrong."""

    summary: dict[str, object]
    error: str | None = None
    mistake: bool = False
    asked: str | None = None  # who asked it to stop
    missing: str | None = None  # which figure the summary lacks, and why
