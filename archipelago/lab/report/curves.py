"""The charts of runs: loss, throughput, islands, rounds and directions, against tokens and time."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from archipelago.lab.report.contents import ReportChart, ReportSeries
from archipelago.lab.report.run_record import RunRecord

POINTS = 400
"""The most points of a curve; further ones are left out evenly."""
MARKS = 200
"""The most faults that a chart marks."""
ISLANDS = 16
"""The most islands whose own loss a chart shows."""


class Axis(NamedTuple):
    """An x axis: a column of the rows, and its title."""

    column: str
    label: str


TIME, TOKENS = Axis("elapsed_s", "seconds"), Axis("tokens_trained", "tokens trained")


class CurveColumn(NamedTuple):
    """A column that a chart shows."""

    column: str
    title: str
    y_label: str


def loss_charts(records: Sequence[RunRecord], points: int = POINTS) -> list[ReportChart]:
    """Return the held-out loss against tokens and time, and the training loss against time."""
    heldout = CurveColumn("heldout_loss", "Held-out loss", "nats per token")
    training = CurveColumn(
        "train_loss", "Training loss, mean of the live islands", "nats per token"
    )
    return [
        *_charts(records, heldout, TOKENS, points, _evaluations, _expected),
        *_charts(records, heldout, TIME, points, _evaluations, _expected),
        *_charts(records, training, TOKENS, points, _rows),
        *(_island_losses(records[0], points) if len(records) == 1 else []),
    ]


def activity_charts(records: Sequence[RunRecord], points: int = POINTS) -> list[ReportChart]:
    """Return throughput, live islands and participants, and goodput against time."""
    shown = (
        CurveColumn("tokens_per_s", "Throughput", "tokens per second"),
        CurveColumn("alive", "Live islands", "islands"),
        CurveColumn("participants", "Participants of recent merges", "islands, mean"),
        CurveColumn("goodput", "Goodput so far", "share of the islands' time"),
    )
    return [chart for each in shown for chart in _charts(records, each, TIME, points, _rows)]


def round_charts(records: Sequence[RunRecord], points: int = POINTS) -> list[ReportChart]:
    """Return the length of rounds, grace, staleness and directions of merges against time."""
    shown = (
        CurveColumn("round_s", "Round, from its opening to its close", "seconds, moving average"),
        CurveColumn("grace_s", "Grace: from the quorum of a round to its close", "seconds"),
        CurveColumn("staleness", "Staleness of merged contributions", "versions, moving average"),
        CurveColumn("outer_cosine", "Direction: merged deltas to the outer momentum", "cosine"),
        CurveColumn("outer_rate", "Outer learning rate", "rate, moving average"),
    )
    return [chart for each in shown for chart in _charts(records, each, TIME, points, _rows)]


Picker = Callable[[RunRecord, str], Sequence[Mapping[str, Any]]]
"""A choice of the rows of a run that a curve shows."""


def _rows(record: RunRecord, column: str) -> Sequence[Mapping[str, Any]]:
    return record.rows


def _evaluations(record: RunRecord, column: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows with a new held-out point."""
    found: list[Mapping[str, Any]] = []
    before: object = None
    for row in record.rows:
        now = (row.get("heldout_t"), row.get(column))
        if now != before and now[1] is not None:
            found.append(row)
        before = now
    return found


def _expected(record: RunRecord, axis: Axis, points: int, colour: int) -> list[ReportSeries]:
    """Return the expected loss of a run and its band; nothing if none was expected."""
    named = {"expected_loss": "expected", "expected_low": "low", "expected_high": "high"}
    pairs = {column: _pairs(record, column, axis, _evaluations) for column in named}
    found = [
        curve_of(f"{record.name}, {name}", pairs[column], points, colour)
        for column, name in named.items()
    ]
    return [replace(each, reference=True) for each in found if each is not None]


More = Callable[[RunRecord, Axis, int, int], list[ReportSeries]]
"""Further curves of a run: record, axis, the most points, the number of the run's colour."""


def _no_more(record: RunRecord, axis: Axis, points: int, colour: int) -> list[ReportSeries]:
    return []


def _charts(
    records: Sequence[RunRecord],
    shown: CurveColumn,
    axis: Axis,
    points: int,
    pick: Picker,
    more: More = _no_more,
) -> list[ReportChart]:
    """Return a chart with a curve for each run; none if no run has two values.

    `more`: further curves of each run, if the chart is drawn.
    """
    series = [
        curve
        for number, record in enumerate(records)
        if (curve := _series(record, shown.column, axis, points, pick, number)) is not None
    ]
    if not series:
        return []
    for number, record in enumerate(records):
        series += more(record, axis, points, number)
    marks = _faults(records) if axis is TIME else ()
    return [ReportChart(shown.title, axis.label, shown.y_label, series, marks)]


def _faults(records: Sequence[RunRecord]) -> list[tuple[float, int]]:
    """Return the times of injected faults, with the number of their run."""
    found = [
        (_known(event.get("elapsed_s")), number)
        for number, record in enumerate(records)
        for event in record.events
        if event.get("kind") == "fault"
    ]
    return [(x, number) for x, number in found if x is not None][:MARKS]


def _series(
    record: RunRecord, column: str, axis: Axis, points: int, pick: Picker, colour: int
) -> ReportSeries | None:
    return curve_of(record.name, _pairs(record, column, axis, pick), points, colour)


def _pairs(
    record: RunRecord, column: str, axis: Axis, pick: Picker
) -> list[tuple[float | None, float | None]]:
    return [(_known(row.get(axis.column)), _known(row.get(column))) for row in pick(record, column)]


def curve_of(
    label: str, pairs: Sequence[tuple[float | None, float | None]], points: int, colour: int
) -> ReportSeries | None:
    """Return a curve through these pairs with increasing x; None with fewer than two values.

    Of equal x the last one counts, and a smaller x than the one before is left out.
    """
    by_x: dict[float, float | None] = {}
    for x, y in pairs:
        if x is not None and (not by_x or x >= next(reversed(by_x))):
            by_x[x] = y
    if sum(y is not None for y in by_x.values()) < 2:
        return None
    kept = _with_gaps([*by_x.items()], points)
    return ReportSeries(label, [x for x, _ in kept], [y for _, y in kept], colour)


def thinned(values: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` values, evenly spread, the first and the last one included."""
    if len(values) <= most:
        return [*values]
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def _with_gaps(
    pairs: Sequence[tuple[float, float | None]], most: int
) -> list[tuple[float, float | None]]:
    """Return at most `most` pairs with a value, and between two of them a gap if there is one."""
    known = thinned([i for i, (_, y) in enumerate(pairs) if y is not None], most)
    gap_at, kept = [i for i, (_, y) in enumerate(pairs) if y is None], [pairs[known[0]]]
    for before, after in pairwise(known):
        place = bisect(gap_at, before)
        if place < len(gap_at) and gap_at[place] < after:
            kept.append(pairs[gap_at[place]])
        kept.append(pairs[after])
    return kept


def _island_losses(record: RunRecord, points: int) -> list[ReportChart]:
    """Return the training loss of each island against time; nothing if no island has two values."""
    pairs: dict[str, list[tuple[float | None, float | None]]] = {}
    for row in thinned(record.rows, points):
        for island in row.get("islands") or ():
            name, loss = str(island.get("island")), _known(island.get("loss"))
            if island.get("state") != "live":
                loss = None
            if name in pairs or len(pairs) < ISLANDS:
                pairs.setdefault(name, []).append((_known(row["elapsed_s"]), loss))
    few = max(2, points // max(1, len(pairs) // 2))
    curves = [curve_of(name, each, few, n) for n, (name, each) in enumerate(pairs.items())]
    found = [each for each in curves if each is not None]
    title = f"Training loss of each island (the first {ISLANDS})"
    return (
        [ReportChart(title, TIME.label, "nats per token", found, _faults([record]))]
        if found
        else []
    )


def _known(value: object) -> float | None:
    """Return a number with six digits, which is enough for a curve; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
