"""Means over seeds, and intervals of differences between runs of the same seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
METHOD = "student-t, 95 %"
"""The method by which intervals are computed.

Differences of pairs are nearly normal, and there are few of them. A bootstrap of eight values is
too narrow, and t is not (docs/lab/studies.md).
"""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its interval, which is infinite for a single sample."""

    value: float
    low: float
    high: float
    samples: int

    def as_json(self, name: str) -> dict[str, float]:
        """Return the mean and its interval as JSON values under this name."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def mean(samples: Sequence[float]) -> Mean:
    """Return the mean with its interval; NaN without samples."""
    if not samples:
        return Mean(math.nan, math.nan, math.nan, 0)
    middle = statistics.fmean(samples)
    if (n := len(samples)) == 1:
        return Mean(middle, -math.inf, math.inf, 1)
    reach = quantile(n - 1) * statistics.stdev(samples) / math.sqrt(n)
    return Mean(middle, middle - reach, middle + reach, n)


def quantile(degrees: int) -> float:
    """Return the two-sided quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def gaps_percent(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return by how much each value is above the other of its pair, in per cent.

    Pairs without a figure are left out. Also of negative values, such as a log-likelihood, the
    higher one gives a positive difference.
    """
    return [
        100 * (value / other - 1) * math.copysign(1.0, other)
        for value, other in zip(ours, theirs, strict=True)
        if math.isfinite(value) and math.isfinite(other) and other != 0
    ]
