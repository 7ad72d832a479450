"""A study as text: the table of its rows, and their curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archipelago.lab.study.paired_statistics import METHOD, Mean
from archipelago.lab.study.result import Line, Result

COLUMNS = 8
"""The most steps of a curve at which the loss is shown."""
DIGITS = 4
SHORT, LONG = 1e-3, 1e5
"""Figures outside this range are written with a power of ten."""


def table(result: Result) -> str:
    """Return a line for each row, with the best of each arm marked, and notes on the marks."""
    study, compared = result.study, result.study.against is not None
    head = ["", study.measure, "interval"]
    head += [f"over {study.against}", "interval"] if compared else []
    rows = [[*head, "tokens", "virtual s", "n"]]
    rows += [_line_cells(line, compared=compared) for line in result.lines]
    notes = [f"mean over seeds, {METHOD}; pairs by seed" + "; * the best of its arm"]
    if any(line.best and not line.enclosed and len(line.row.point) > 0 for line in result.lines):
        notes.append("^ the best point of this arm is at the end of an axis: widen the axis")
    notes += [
        f"{line.row.label}, seed {seed}: {reason}"
        for line in result.lines
        for seed, reason in line.failed.items()
    ]
    missing = sum(len(line.missing) for line in result.lines)
    notes += [f"{missing} cells are missing"] if missing else []
    return "\n".join([*_aligned(rows), "", *notes]) + "\n"


def curves(result: Result) -> str:
    """Return the held-out loss of each row at some steps; empty without evaluations."""
    lines = [line for line in result.lines if line.curve]
    if not lines:
        return ""
    steps = sorted(
        set[int]().union(*({evaluation.t for evaluation in line.curve} for line in lines))
    )
    spread_steps = [steps[round(i * (len(steps) - 1) / (COLUMNS - 1))] for i in range(COLUMNS)]
    picked = list(dict.fromkeys(spread_steps if len(steps) > COLUMNS else steps))
    rows = [["held-out loss at step", *map(str, picked)]]
    for line in lines:
        losses = {evaluation.t: evaluation.heldout_loss for evaluation in line.curve}
        rows.append([line.row.label, *(_number(losses.get(t, math.nan)) for t in picked)])
    return "\n".join(_aligned(rows)) + "\n"


def _line_cells(line: Line, *, compared: bool) -> list[str]:
    mark = "" if not line.best else "*" if line.enclosed else "*^"
    cells = [f"{line.row.label} {mark}".rstrip(), *_with_interval(line.measured)]
    if compared and line.gap is not None:
        cells += [f"{line.gap.value:+.2f} %", _interval(line.gap, "{:+.2f}")]
    elif compared:
        cells += ["-", "-"]
    figures = line.figures
    tokens, wall_s = figures["tokens_trained"], figures["wall_s"]
    return [*cells, _number(tokens, 0), _number(wall_s, 1), str(line.measured.samples)]


def _with_interval(mean: Mean) -> tuple[str, str]:
    return _number(mean.value), _interval(mean, "{:." + str(DIGITS) + "f}")


def _interval(mean: Mean, form: str) -> str:
    if not (math.isfinite(mean.low) and math.isfinite(mean.high)):
        return "-"
    return f"{form.format(mean.low)} to {form.format(mean.high)}"


def _number(value: float, digits: int = DIGITS) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the first column to the left, all others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
