"""A report as Markdown, for the text of a pull request: tables, and the ends of the curves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from archipelago.lab.report.contents import ReportChart, ReportContents, ReportTable, figure_text

ROWS = 40
"""The most rows of a table: its last ones."""


def markdown(report: ReportContents) -> str:
    """Return the report as GitHub-flavoured Markdown; sections that are long are left out."""
    return "\n".join(_lines(report))


def _lines(report: ReportContents) -> Iterator[str]:
    yield f"# {_text(report.title)}\n"
    yield f"Made {_text(report.made)} by `archipelago report`.\n"
    if report.problems:
        yield "Parts are missing:\n"
        yield from (f"- {_text(problem)}" for problem in report.problems)
        yield ""
    for section in report.sections:
        if section.long:
            continue
        yield f"## {_text(section.title)}\n"
        if section.note:
            yield f"{_text(section.note)}\n"
        if section.charts:
            yield from _table(_ends(section.charts))
        for table in section.tables:
            yield from _table(table)


def _ends(charts: Sequence[ReportChart]) -> ReportTable:
    """Return the first and the last value of each curve."""
    rows = [
        [
            f"{chart.title}, by {chart.x_label}",
            series.label,
            figure_text(next((y for y in series.y if y is not None), None)),
            figure_text(next((y for y in reversed(series.y) if y is not None), None)),
            figure_text(series.x[-1]),
        ]
        for chart in charts
        for series in chart.series
    ]
    return ReportTable("Curves", ["curve", "of", "first", "last", "at"], rows)


def _table(table: ReportTable) -> Iterator[str]:
    shown = table.rows[-ROWS:]
    left_out = f" (the last {ROWS} of {len(table.rows)} rows)" if len(table.rows) > ROWS else ""
    yield f"**{_text(table.caption)}**{left_out}\n"
    yield _row([*map(_text, table.head)])
    yield _row(["---", *("---:" if table.numeric else "---" for _ in table.head[1:])])
    yield from (_row([*map(_text, row)]) for row in shown)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Return text with everything escaped that Markdown or HTML would interpret, in one line."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", one_line)
