"""The content of a run's live page: its status, the course of the loss, and the last events.

A feed sees one status after another. It keeps no more than a page shows, however long the run is.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from cluster.status import EventStatus, RunStatus
from cluster.thinning import thin

POINTS_KEPT = 512
"""The most points of each curve; when there are more, they are thinned out evenly."""
EVENTS_KEPT = 100
"""The newest events that are kept."""
ROWS_READ = 500
"""The most lines of an earlier part of the run that are read, evenly spread over the file."""

ILL_FORMED = (ValueError, LookupError, TypeError, AttributeError)
"""Errors of a line that is no status, or that of another version."""

EvaluationPlace = tuple[int, float]
"""The tokens and the elapsed seconds at which an evaluation is drawn."""
ExpectedPart = tuple[float, float, float]
"""An expected loss, and the ends of its band."""


class Mark(NamedTuple):
    """The state of the run at one moment, for the axes of its curves."""

    elapsed_s: float
    t: int
    tokens: int
    tokens_per_s: float
    alive: int
    goodput: float | None


class PageFeed:
    """The content of one run's page; for one thread."""

    def __init__(self) -> None:
        self._last: RunStatus | None = None
        self._marks: list[Mark] = []
        self._events = deque[EventStatus](maxlen=EVENTS_KEPT)
        self._places: dict[int, EvaluationPlace] = {}
        self._expected: dict[int, ExpectedPart] = {}
        self.number = 0
        """The number of the status that was seen last; it grows with each one."""

    def see(self, status: RunStatus) -> bool:
        """Add a status; return False if it is the one that was seen last."""
        before = self._last
        if before is not None and _moment(before) == _moment(status):
            return False
        known = self._events[-1]["unix_s"] if self._events else -math.inf
        self._events.extend(each for each in status.get("events", ()) if each["unix_s"] > known)
        self._last, self.number = status, self.number + 1
        self._expect(status)
        mark = _mark(status)
        if not self._marks or mark.elapsed_s > self._marks[-1].elapsed_s:
            self._marks.append(mark)
        self._locate(status)
        thin(self._marks, POINTS_KEPT, lambda each: each.elapsed_s)
        return True

    def content(self) -> dict[str, Any]:
        """Return all that the page shows, as plain JSON types."""
        status = self._last
        return {
            "number": self.number,
            "status": None if status is None else {**status, "events": []},
            "loss": [] if status is None else [*self._losses(status)],
            "marks": [[*mark] for mark in self._marks],
            "events": [*reversed(self._events)],
        }

    def update(self) -> dict[str, Any]:
        """Return the content without the marks before the last one, which a page has already."""
        content = self.content()
        return {**content, "marks": content["marks"][-1:]}

    def _losses(self, status: RunStatus) -> Iterator[list[float | None]]:
        """Yield each held-out loss as t, tokens, seconds, loss, and the expected loss and band.

        The tokens are those of the first look with this t, and never fall along the curve. If
        nothing was expected of a loss, the last three are left out.
        """
        newest = status["tokens_trained"], status["elapsed_s"]
        place: EvaluationPlace = 0, 0.0
        for t, loss in _curve(status):
            tokens, elapsed_s = self._places.get(t, newest)
            place = max(tokens, place[0]), max(elapsed_s, place[1])
            if loss is not None and math.isfinite(loss):
                yield [t, *place, loss, *self._expected.get(t, ())]

    def _locate(self, status: RunStatus) -> None:
        """Keep the place of each new point of the curve: marks near it may be deleted later."""
        for t, _ in _curve(status):
            if t not in self._places:
                first = next((mark for mark in self._marks if mark.t >= t), None)
                if first is not None:
                    self._places[t] = first.tokens, first.elapsed_s
        _forget(self._places, status)

    def _expect(self, status: RunStatus) -> None:
        """Keep what was expected of the newest loss, as long as the curve has its point."""
        if (expected := status.get("expected")) is None:
            return
        self._expected[expected["t"]] = expected["loss"], expected["low"], expected["high"]
        _forget(self._expected, status)

    def read_back(self, path: Path) -> None:
        """See some lines of the metrics log of an earlier process, evenly spread over the file.

        Lines of another form are left out.
        """
        for row in _sampled(path):
            before = self._last
            try:
                self.see(row)
            except ILL_FORMED:
                self._last = before


def _curve(status: RunStatus) -> Sequence[tuple[int, float | None]]:
    """Return the held-out curve of a status, whose losses are None in a row if not finite."""
    return cast("Sequence[tuple[int, float | None]]", status.get("heldout", ()))


def _forget(known: dict[int, Any], status: RunStatus) -> None:
    """Delete the entries of points that the curve has no more, if there are many entries."""
    if len(known) > 2 * POINTS_KEPT:
        for t in known.keys() - {t for t, _ in _curve(status)}:
            del known[t]


def _moment(status: RunStatus) -> tuple[float, Sequence[str], float]:
    """Return the facts that change with every look, or with alerts or events between two looks."""
    return status["elapsed_s"], status.get("alerts", []), _newest(status)


def _mark(status: RunStatus) -> Mark:
    figures: Mapping[str, Any] = status.get("figures") or {}
    rolling: Mapping[str, Any] = figures.get("rolling_goodput") or {}
    return Mark(
        status["elapsed_s"],
        status["t"],
        status["tokens_trained"],
        status["tokens_per_s"],
        status["alive"],
        rolling.get("60", figures.get("goodput")),
    )


def _newest(status: RunStatus) -> float:
    """Return the time of the newest event, in seconds since 1970; minus infinity without one."""
    events = status.get("events") or ()
    return events[-1]["unix_s"] if events else -math.inf


def _sampled(path: Path) -> Iterator[RunStatus]:
    """Yield whole statuses of a metrics log; lines of another form are left out."""
    try:
        with path.open("rb") as file:
            size, place = path.stat().st_size, 0
            while place < size:
                file.seek(place)
                if place:
                    file.readline()  # the rest of a line
                line = file.readline()
                try:
                    row: Any = json.loads(line)
                    math.fsum(_mark(row)[:-1])  # each of them is a number
                    dict(_curve(row))
                    yield cast("RunStatus", row)
                except ILL_FORMED:
                    pass
                place = max(file.tell(), place + size // ROWS_READ)
    except OSError:
        return
