"""The report of a study: its rows with their intervals, curves, and what failed or is missing."""

from __future__ import annotations

import math
from datetime import datetime

from archipelago.lab.report.contents import (
    MISSING,
    ReportChart,
    ReportContents,
    ReportSection,
    ReportTable,
    figure_text,
)
from archipelago.lab.report.curves import POINTS, curve_of
from archipelago.lab.study.paired_statistics import METHOD, Mean
from archipelago.lab.study.result import Line, Result


def study_report(result: Result, now: datetime, points: int = POINTS) -> ReportContents:
    """Return the report of a study. `points`: the most points of a curve."""
    study = result.study
    problems = [
        f"{line.row.label}, seed {seed}: {reason}"
        for line in result.lines
        for seed, reason in line.failed.items()
    ]
    if missing := sum(len(line.missing) for line in result.lines):
        problems.append(f"{missing} cells are missing; the same command trains them")
    sections = [
        ReportSection(
            "rows",
            "Rows",
            tables=[_rows(result)],
            note=f"Means over seeds, {METHOD}, paired by seed. A star marks the best of an arm.",
        ),
        ReportSection("loss", "Loss", charts=_charts(result, points)),
        ReportSection("axes", "Points of the arms", tables=[_points(result)], long=True),
    ]
    made = f"{now:%Y-%m-%d %H:%M %Z}".strip()
    kept = [each for each in sections if each.charts or each.tables]
    return ReportContents(f"Study {study.name}", made, problems, kept)


def _rows(result: Result) -> ReportTable:
    study = result.study
    head = ["row", study.measure, "interval"]
    if study.against is not None:
        head += [f"over {study.against}, %", "interval"]
    return ReportTable(
        "Rows of the study",
        [*head, "tokens trained", "virtual s", "goodput", "seeds"],
        [_row(line, compared=study.against is not None) for line in result.lines],
    )


def _row(line: Line, *, compared: bool) -> list[str]:
    cells = [line.row.label + (" *" if line.best else ""), *_mean(line.measured)]
    if compared:
        cells += (MISSING, MISSING) if line.gap is None else _mean(line.gap)
    figures = [line.figures.get(key) for key in ("tokens_trained", "wall_s", "goodput")]
    return [*cells, *map(figure_text, figures), str(line.measured.samples)]


def _mean(mean: Mean) -> tuple[str, str]:
    interval = MISSING
    if math.isfinite(mean.low) and math.isfinite(mean.high):
        interval = f"{mean.low:.4g} to {mean.high:.4g}"
    return figure_text(mean.value) if math.isfinite(mean.value) else MISSING, interval


def _charts(result: Result, points: int) -> list[ReportChart]:
    """Return the curves of the best point of each arm, against tokens and virtual time."""
    charts: list[ReportChart] = []
    best = [line for line in result.lines if line.best and line.curve]
    for axis, label in (("tokens", "tokens trained"), ("time_s", "virtual seconds")):
        series = [
            curve_of(
                line.row.label,
                [(float(getattr(each, axis)), each.heldout_loss) for each in line.curve],
                points,
                number,
            )
            for number, line in enumerate(best)
        ]
        if found := [each for each in series if each is not None]:
            charts.append(ReportChart("Held-out loss", label, "nats per token", found))
    return charts


def _points(result: Result) -> ReportTable:
    axes = list(dict.fromkeys(axis for line in result.lines for axis in line.row.point))
    rows = [
        [line.row.label, *(str(line.row.point.get(axis, MISSING)) for axis in axes)]
        for line in result.lines
    ]
    return ReportTable("Values on the axes", ["row", *axes], rows, numeric=False)
