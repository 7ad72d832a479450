"""The goals of the benchmarks' figures, and the verdict on them, which the interval decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from archipelago.lab.bench.stats import CONFIDENCE


@dataclass(frozen=True, slots=True)
class Goal:
    """The limits of a figure, both inclusive."""

    at_least: float = -math.inf
    """The lower limit, in the unit of the figure."""
    at_most: float = math.inf
    """The upper limit, in the unit of the figure."""

    def __str__(self) -> str:
        bounds = ((self.at_least, "or more"), (self.at_most, "or less"))
        return ", ".join(f"{limit:g} {word}" for limit, word in bounds if math.isfinite(limit))

    def holds(self, value: float) -> bool:
        """Return whether the value is within the limits."""
        return self.at_least <= value <= self.at_most


GOALS: Mapping[str, Mapping[str, Goal]] = {
    "parity": {"gap_percent": Goal(at_most=3.0)},
    "merge": {
        "mean_fraction": Goal(at_least=0.80),
        "rda_fraction": Goal(at_least=0.65),
        "wire_speedup": Goal(at_least=1.0),
    },
    "overhead": {
        "thread_fraction": Goal(at_most=0.01),
        "cpu_ratio": Goal(at_most=1.02),
        "ratio": Goal(at_least=0.99),
    },
    "recovery": {
        "learner_gap_over_period_s": Goal(at_most=0.5),
        "learner_back_of_cold": Goal(at_most=0.4),
        "learner_back_spare_s": Goal(at_most=3.0),
        "syncer_gap_s": Goal(at_most=5.0),
        "hosts2_back_of_one": Goal(at_most=1.3),
    },
    "large": {
        "syncer_gap_s": Goal(at_most=5.0),
        "syncer_peak_bytes": Goal(at_most=500e6),
        "join_of_bytes": Goal(at_most=1.5),
    },
    "faults": {
        "retained_of_possible": Goal(at_least=0.98),
        "uptime": Goal(at_least=1.0),
        "lost_merges": Goal(at_most=0),
    },
    "wan": {
        "speedup": Goal(at_least=20.0),
        "mean_participants": Goal(at_least=3.8),
        "discarded_fraction": Goal(at_most=0.01),
        "queue_growth_s": Goal(at_most=1.0),
        "peak_over_mean": Goal(at_most=1.3),
        "transfer_fraction": Goal(at_least=0.7),
        "utilisation_off": Goal(at_most=3.0),
        "ring_link_fraction": Goal(at_least=0.85),
    },
    "bytes": {"audit_deviation": Goal(at_most=0.05), "payload_share": Goal(at_least=0.8)},
    "bulk": {
        "lost_nodes": Goal(at_most=0),
        "failed_objects": Goal(at_most=0),
        "link_fraction": Goal(at_least=0.8),
        "call_longest_s": Goal(at_most=5.0),
    },
    "calibrate": {"goodput_off": Goal(at_most=2.0), "merges_off": Goal(at_most=5.0)},
}
"""The goals by benchmark and figure."""


def verdict(goal: Goal, name: str, figures: Mapping[str, object]) -> str:
    """Return whether the goal is `reached`, `missed` or `inconclusive`.

    It is reached if the whole interval is inside the limits and covers 95 %, which takes six
    samples. It is missed if no part of the interval is inside. A figure without an interval is an
    exact count, or a figure of a whole run. `coverage` is that of all intervals but those with a
    `{name}_coverage`.
    """
    low, high = (figures.get(f"{name}_{end}", figures[name]) for end in ("low", "high"))
    of_all = figures.get(f"{name}_coverage", figures.get("coverage", 1.0))
    covered = of_all if f"{name}_low" in figures else 1.0
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    assert isinstance(covered, int | float)
    if high < goal.at_least or low > goal.at_most:
        return "missed"
    holds = goal.holds(low) and goal.holds(high)
    return "reached" if holds and covered >= CONFIDENCE else "inconclusive"
