"""A window of `bench scale` at one rate of reports, and the search for the highest rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LATE_MS = 50.0
"""The default limit of the 99th percentile of report latencies, in milliseconds."""
HELD = 0.95
"""The share of a rate that must be reached for it to count as sustained."""


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """The measurements of some seconds at one pace."""

    seconds: float
    asked_per_s: float
    """Reports per second that were asked for."""
    steps: int
    """Inner steps of all learners."""
    latencies_s: list[float]
    """Seconds from each report to its answer."""
    crew_cpu_s: float
    """CPU seconds of the learners' processes."""
    syncer_cpu_s: float
    shard_cpu_s: float
    rounds: int
    """Rounds that were merged."""
    late_ms: float = LATE_MS
    """The limit of the 99th percentile of `latencies_s`, in milliseconds."""

    @property
    def reports_per_s(self) -> float:
        """Reports per second that were answered."""
        return len(self.latencies_s) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return this percentile of the report latencies; 0 if there were none."""
        return 1e3 * float(np.percentile(self.latencies_s, percent)) if self.latencies_s else 0.0

    def __str__(self) -> str:
        return (
            f"{self.asked_per_s:.0f} reports/s asked, {self.reports_per_s:.0f} made, "
            f"p50 {self.percentile_ms(50):.1f} ms, p99 {self.percentile_ms(99):.1f} ms, "
            f"{self.rounds / self.seconds:.2f} rounds/s; cores: "
            f"syncer {self.syncer_cpu_s / self.seconds:.2f}, "
            f"shards {self.shard_cpu_s / self.seconds:.2f}, "
            f"learners {self.crew_cpu_s / self.seconds:.2f}"
        )

    @property
    def held(self) -> bool:
        """Whether the rate was reached, and the answers were in time."""
        is_reached = min(self.steps / self.seconds, self.reports_per_s) >= HELD * self.asked_per_s
        return is_reached and self.percentile_ms(99) < self.late_ms


def climbed(rates: Sequence[float], look: Callable[[float], LoadWindow]) -> LoadWindow:
    """Find the highest rate that is sustained, and return its window.

    A rate fails if it misses twice in a row, since others may use the machine. If even the lowest
    rate fails, its window is returned.
    """
    best: LoadWindow | None = None
    for rate in rates:
        if not (window := look(rate)).held and not (window := look(rate)).held:
            return best or window
        best = window
    assert best is not None, "there are rates"
    return best
