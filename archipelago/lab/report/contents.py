"""A report as data: sections with tables and charts, which every format shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MISSING = "-"
"""The text of a figure that is not known."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of text."""

    caption: str
    """A line above the table."""
    head: Sequence[str]
    """The titles of the columns."""
    rows: Sequence[Sequence[str]]
    """The rows; the first cell of each is its title."""
    numeric: bool = True
    """Whether the columns after the first one are aligned to the right."""


@dataclass(frozen=True, slots=True)
class ReportSeries:
    """A curve."""

    label: str
    x: Sequence[float]
    """Increasing values of the x axis."""
    y: Sequence[float | None]
    """The values; None is a gap."""
    colour: int = 0
    """The number of its colour: curves of one run have the same one in all charts."""
    reference: bool = False
    """Whether it is drawn dashed: values that were expected, not measured."""


@dataclass(frozen=True, slots=True)
class ReportChart:
    """A chart of curves over one x axis."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[ReportSeries]
    marks: Sequence[tuple[float, int]] = ()
    """Places of the x axis with a line across: injected faults, each in the colour of its run."""


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of a report."""

    key: str
    """A name for links: small letters and dashes."""
    title: str
    charts: Sequence[ReportChart] = ()
    tables: Sequence[ReportTable] = ()
    note: str = ""
    """A sentence below the title; empty: none."""
    long: bool = False
    """Whether readers open the section on demand, and Markdown leaves it out."""


@dataclass(frozen=True, slots=True)
class ReportContents:
    """A report."""

    title: str
    made: str
    """The time at which it was made, in words."""
    problems: Sequence[str]
    """The parts that are missing, and why."""
    sections: Sequence[ReportSection]


def figure_text(value: object, digits: int = 4) -> str:
    """Return a figure as text: four significant digits, whole numbers in full up to 10 digits."""
    match value:
        case None:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float() if not math.isfinite(value):
            return "not finite"
        case float() if value.is_integer() and abs(value) < 1e10:
            return f"{int(value):,}"
        case float():
            return f"{value:.{digits}g}"
        case _:
            return str(value)


def amount_text(value: float | None, unit: str = "") -> str:
    """Return a number with three digits and a prefix, such as 1.23 M."""
    if value is None or not math.isfinite(value):
        return MISSING
    for size, name in UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g} {name}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def duration_text(seconds: float | None) -> str:
    """Return a duration, such as 1:02:03; a dash if it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
