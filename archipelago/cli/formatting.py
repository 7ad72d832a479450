"""Figures as text: durations, amounts, shares, the course of a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

WIDTH = 100
"""The width of tables, in characters."""
GAP = 2
"""The gap between two columns of a table, in characters."""
SPARKS = "▁▂▃▄▅▆▇█"
SPARKLINE = 24
"""The width of the held-out history, in characters."""
NOT_FINITE = "not finite"
NEARLY = 0.9995
"""The share of a unit from which three digits round up to the unit."""


def duration(seconds: float) -> str:
    """Format a duration: `0:07`, `12:40`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def amount(number: float) -> str:
    """Format a number with three significant digits and a unit: `950`, `12.4k`, `1.23M`."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit * NEARLY:
            return f"{number / unit:#.3g}".rstrip(".") + name
    return f"{number:.0f}"


def sparkline(history: Sequence[float], width: int = SPARKLINE) -> str:
    """Draw the course of a figure between its minimum and maximum; average if there are many."""
    if len(history) < 2 or not all(map(math.isfinite, history)):
        return ""
    columns = min(width, len(history))
    edges = [index * len(history) // columns for index in range(columns + 1)]
    means = [fmean(history[low:high]) for low, high in pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(SPARKS[round((each - low) / span * (len(SPARKS) - 1))] for each in means)


def duration_or_dash(seconds: float | None) -> str:
    """Format a duration, or a dash for None."""
    return "-" if seconds is None else duration(seconds)


def number(number: float | None, digits: int) -> str:
    """Format a number with this many decimals; a dash for None, words for NaN and infinity."""
    if number is None:
        return "-"
    return f"{number:,.{digits}f}" if math.isfinite(number) else NOT_FINITE


def by_region(losses: Mapping[str, float | None] | None, digits: int = 3) -> str:
    """Return the held-out loss of each region; empty if there are no regions."""
    return ", ".join(f"{name} {number(loss, digits)}" for name, loss in (losses or {}).items())


def seconds_or_dash(seconds: float | None) -> str:
    """Format seconds with two decimals, or a dash for None."""
    return "-" if seconds is None else f"{seconds:.2f} s"


def percent(share: float | None) -> str:
    """Format a share of 1 as a percentage, or a dash for None."""
    return "-" if share is None else f"{share * 100:.1f} %"
