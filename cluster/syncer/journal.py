"""What a summary needs and no event says: faults, vitals, verdicts, and who holds devices.

    notes.jsonl    one line each: seconds of the syncer's clock, kind, and what was said

They outlive the syncer's process, so that its measures count on when it comes back. They are not
flushed to the disk, no rule reads them, and a line that a crash has torn is passed over.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from cluster.failures import Failure, Reason, Unjudged
from cluster.storage.depot import Depot
from cluster.storage.history import Heard
from cluster.syncer.measures import Measures
from coordinator.protocol import Incarnation, Island, Life, Vitals

log = logging.getLogger("archipelago.notes")

NOTES = "notes.jsonl"
VITALS_EVERY_S = 2.0
"""Of one life; the last ones are kept when the next life speaks. What is younger dies with the
syncer."""


class Note(NamedTuple):
    now_s: float
    kind: str
    what: list[Any]


class Notes:
    """Tells the measures what is not an event, and keeps it."""

    def __init__(self, depot: Depot, measures: Measures, now_s: Callable[[], float]) -> None:
        self._lines = depot.lines(NOTES)
        self._measures, self._now_s = measures, now_s
        self._vitals: dict[Island, tuple[Life, Vitals, float]] = {}  # the last, and when kept
        self._held: Mapping[Island, str] | None = None
        self._keep(now_s(), "began")

    def fault(self, island: Island) -> None:
        self._tell("fault", island)

    def held(self, islands: Mapping[Island, str]) -> None:
        """These islands have devices, each with its group; said when it changes."""
        if islands != self._held:
            self._held = dict(islands)
            self._tell("held", self._held)

    def evaluated(self, t: int, loss: float) -> None:
        self._tell("evaluated", t, loss)

    def failed(self, life: Life | None, failure: Failure) -> None:
        self._tell("failed", life, failure.reason, failure.why)

    def unjudged(self, why: Unjudged) -> None:
        self._tell("unjudged", why)

    def vitals(self, life: Life, vitals: Vitals) -> None:
        """Keep what the measures have heard already."""
        now_s, kept_s = self._now_s(), float("-inf")
        if (last := self._vitals.get(life.island)) is not None:
            if last[0] == life:
                kept_s = last[2]
            else:
                self._keep(now_s, "vitals", last[0], asdict(last[1]))
        if now_s - kept_s >= VITALS_EVERY_S:
            self._keep(now_s, "vitals", life, asdict(vitals))
            kept_s = now_s
        self._vitals[life.island] = life, vitals, kept_s

    @property
    def length(self) -> int:
        """Bytes kept so far, by all generations."""
        return self._lines.length

    def flush(self) -> None:
        """Errors: `OSError` if they cannot be kept at present."""
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()

    def _tell(self, kind: str, *what: object) -> None:
        now_s = self._now_s()
        tell(self._measures, Note(now_s, kind, [*what]))
        self._keep(now_s, kind, *what)

    def _keep(self, now_s: float, kind: str, *what: object) -> None:
        self._lines.write(json.dumps([now_s, kind, what]))


def read_notes(depot: Depot, start: int = 0) -> list[Note]:
    """The notes of all generations from this byte on, in order; none if there are none."""
    notes: list[Note] = []
    try:
        text = depot.grown(NOTES, start).content.decode(errors="replace")
    except (FileNotFoundError, EOFError):
        return notes
    for line in filter(None, text.splitlines()):
        try:
            notes.append(Note(*json.loads(line)))
        except (ValueError, TypeError) as error:
            log.warning("a note is passed over: %s", error)
    return notes


def retell(measures: Measures, heard: Iterable[Heard], notes: Iterable[Note]) -> Heard | None:
    """Tell measures a history again, events and notes in the order of their times; the last event.

    Errors: those of `heard`.
    """
    last: Heard | None = None
    for told in heapq.merge(notes, heard, key=lambda each: each.now_s):
        if isinstance(told, Heard):
            measures.saw(*told)
            last = told
        else:
            tell(measures, told)
    return last


def tell(measures: Measures, note: Note) -> None:
    """Say one thing; what another version wrote is passed over."""
    match note:
        case Note(now_s, "began", []):
            measures.began(now_s)
        case Note(now_s, "fault", [island]):
            measures.fault(Island(island), now_s)
        case Note(now_s, "held", [islands]):
            measures.held({Island(island): group for island, group in islands.items()}, now_s)
        case Note(_, "evaluated", [t, loss]):
            measures.evaluated(t, loss)
        case Note(_, "failed", [life, reason, why]):
            of = None if life is None else Life(Island(life[0]), Incarnation(life[1]))
            measures.failed(of, Failure(Reason(reason), why))
        case Note(_, "unjudged", [why]):
            measures.unjudged(why)
        case Note(_, "vitals", [[island, incarnation], vitals]):
            measures.heard(Life(Island(island), Incarnation(incarnation)), Vitals(**vitals))
        case _:
            log.warning("a note of kind %r is not known: %s", note.kind, note.what)
