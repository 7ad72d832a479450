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

from cluster.status import RunStatus

POINTS_KEPT = 512
"""The most points of each curve; when there are more, every other older one is dropped."""
EVENTS_KEPT = 100
"""The newest events that are kept."""
ROWS_READ = 500
"""The most lines of an earlier part of the run that are read, evenly spread over the file."""


class Mark(NamedTuple):
    """The state of the run at one moment, for the axes of its curves."""

    elapsed_s: float
    t: int
    tokens: int
    tokens_per_s: float
    alive: int
    goodput: float | None


class PageEvent(NamedTuple):
    """A change of a run, with its reason."""

    elapsed_s: float
    subject: str
    """An island, or "run"."""
    state: str
    why: str


class PageFeed:
    """The content of one run's page; for one thread."""

    def __init__(self) -> None:
        self._last: RunStatus | None = None
        self._marks: list[Mark] = []
        self._events = deque[PageEvent](maxlen=EVENTS_KEPT)
        self.number = 0
        """The number of the status that was seen last; it grows with each one."""

    def see(self, status: RunStatus) -> bool:
        """Add a status; return False if it is the one that was seen last."""
        before = self._last
        if before is not None and _moment(before) == _moment(status):
            return False
        self._events.extend(changes(before, status))
        self._last, self.number = status, self.number + 1
        mark = _mark(status)
        if self._marks and mark.elapsed_s <= self._marks[-1].elapsed_s:
            return True
        self._marks.append(mark)
        if len(self._marks) > POINTS_KEPT:
            del self._marks[1:-1:2]
        return True

    def content(self) -> dict[str, Any]:
        """Return all that the page shows, as plain JSON types."""
        status = self._last
        return {
            "number": self.number,
            "status": status,
            "loss": [] if status is None else [*self._losses(status)],
            "marks": [[*mark] for mark in self._marks],
            "events": [event._asdict() for event in reversed(self._events)],
        }

    def update(self) -> dict[str, Any]:
        """Return the content without the marks before the last one, which a page has already."""
        content = self.content()
        return {**content, "marks": content["marks"][-1:]}

    def _losses(self, status: RunStatus) -> Iterator[list[float | None]]:
        """Yield each held-out loss with its t, tokens and seconds, as far as they were seen."""
        marks = iter(self._marks)
        mark = next(marks, None)
        curve = cast("Sequence[tuple[int, float | None]]", status.get("heldout", ()))
        for t, loss in curve:
            while mark is not None and mark.t < t:
                mark = next(marks, None)
            at = mark or (self._marks[-1] if self._marks else None)
            if at is not None and loss is not None and math.isfinite(loss):
                yield [t, at.tokens, at.elapsed_s, loss]

    def read_back(self, path: Path) -> None:
        """See some lines of the metrics log of an earlier process, evenly spread over the file."""
        for row in _sampled(path):
            self.see(row)


def _moment(status: RunStatus) -> tuple[float, Sequence[str]]:
    """Return the facts that change with every look, or with an alert between two looks."""
    return status["elapsed_s"], status.get("alerts", [])


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


def changes(before: RunStatus | None, after: RunStatus) -> list[PageEvent]:
    """Return the events between two statuses, each with its reason."""
    if before is None:
        return []
    at_s, found = after["elapsed_s"], list[PageEvent]()
    if before["phase"] != after["phase"]:
        found.append(PageEvent(at_s, "run", after["phase"], after.get("asked") or ""))
    old = {each["island"]: each for each in before["islands"]}
    for island in after["islands"]:
        was = old.pop(island["island"], None)
        if was is None or (was["state"], was["life"]) != (island["state"], island["life"]):
            found.append(PageEvent(at_s, island["island"], island["state"], island["why"]))
    found += [PageEvent(at_s, name, "gone", "it has left the run") for name in old]
    if (faults := after["faults"] - before["faults"]) > 0:
        found.append(PageEvent(at_s, "run", "fault", f"{faults} injected on purpose"))
    alerts: Sequence[str] = before.get("alerts", [])
    new_alerts = [alert for alert in after.get("alerts", []) if alert not in alerts]
    found += [PageEvent(at_s, "run", "alert", alert) for alert in new_alerts]
    return found


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
                    _mark(row)
                    yield cast("RunStatus", row)
                except (ValueError, LookupError, TypeError, AttributeError):
                    pass
                place = max(file.tell(), place + size // ROWS_READ)
    except OSError:
        return
