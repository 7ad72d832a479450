"""The facts that a summary needs and no event carries: faults, vitals, evaluations, held devices.

    notes.jsonl    one line each: seconds of the syncer's clock, kind, and content
    vitals.json    the last vitals of each island's present life, overwritten by the next ones

The files outlive the syncer's process, so that its measures continue after a restart. A thread
writes them, soon after each note, so that the syncer's event loop never waits for storage. No rule
reads them. A line that a crash has torn is skipped.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from cluster.failures import Failure, Reason, Unjudged
from cluster.storage.depot import Depot
from cluster.storage.state_history import ReplayedEvent
from cluster.syncer.measures import Measures
from coordinator.protocol import Incarnation, Island, Life, Vitals

log = logging.getLogger("archipelago.notes")

NOTES, VITALS = "notes.jsonl", "vitals.json"
VITALS_EVERY_S = 2.0
"""Seconds from one write of all vitals to the next; younger ones are lost if the syncer dies.

The last vitals of a life are kept as a note when the next life of the island sends some.
"""


class Note(NamedTuple):
    """A fact that was noted."""

    now_s: float
    """The time at which it was noted, in seconds of the syncer's clock."""
    kind: str
    """The kind of fact; it defines how `what` is read."""
    what: list[Any]
    """The content, as plain data."""


NOT_A_NOTE = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""Errors raised by a note of another version, or by one with a flipped bit."""


class Notes:
    """A journal that passes facts without events to the measures, and keeps them.

    One thread calls it; another thread, its own, writes.
    """

    def __init__(self, depot: Depot, measures: Measures, now_s: Callable[[], float]) -> None:
        """Open the journal.

        Errors: `OSError` if the depot cannot be opened.
        """
        self._depot, self._lines = depot, depot.lines(NOTES)
        self._thread = ThreadPoolExecutor(1, "notes")
        self._writing: Future[None] | None = None  # the last job of the thread
        self._queued = False  # that job has not begun: it will write everything that waits now
        self._newest: bytes | None = None  # vitals that wait to be written
        self._failing = False
        self._measures, self._now_s = measures, now_s
        self._vitals: dict[Island, Note] = {}  # the last ones of each island
        self._vitals_s = now_s()  # when they were written last
        self._held: Mapping[Island, str] | None = None
        for note in _vitals(depot):  # the next vitals will overwrite the file
            self._keep(note.now_s, note.kind, *note.what)
        self._keep(now_s(), "began")

    def fault(self, island: Island) -> None:
        """Note a fault that was injected into an island."""
        self._tell("fault", island)

    def held(self, islands: Mapping[Island, str]) -> None:
        """Note which islands hold devices, each with its group, if that has changed."""
        if islands != self._held:
            self._held = dict(islands)
            self._tell("held", self._held)

    def owned(self, owner: int, since_s: float) -> None:
        """Note the number of the run's owner. `since_s`: the time of the last event before it."""
        tell(self._measures, Note(since_s, "owned", [owner]))
        self._keep(since_s, "owned", owner)

    def evaluated(self, t: int, loss: float) -> None:
        """Note the held-out loss at a syncer step, nats per token."""
        self._tell("evaluated", t, loss)

    def failed(self, life: Life | None, failure: Failure) -> None:
        """Note a failure of a life, or of no life in particular."""
        self._tell("failed", life, failure.reason, failure.why)

    def unjudged(self, why: Unjudged) -> None:
        """Note an evaluation without a result."""
        self._tell("unjudged", why)

    def vitals(self, life: Life, vitals: Vitals) -> None:
        """Keep vitals that the measures have recorded already."""
        now_s = self._now_s()
        if (last := self._vitals.get(life.island)) is not None and last.what[0] != life:
            self._keep(now_s, last.kind, *last.what)
        self._vitals[life.island] = Note(now_s, "vitals", [life, asdict(vitals)])
        if now_s - self._vitals_s >= VITALS_EVERY_S:
            self._vitals_s = now_s
            self._newest = json.dumps([*self._vitals.values()]).encode()
            self._write_soon()

    @property
    def length(self) -> int:
        """Bytes kept so far, by all generations."""
        return self._lines.length

    def flush(self) -> None:
        """Write everything that waits, and return when it is written: not for an event loop.

        Errors: `OSError` if it cannot be written at present.
        """
        self._thread.submit(self._write_now).result()

    def close(self) -> None:
        """Write what waits, and end the thread.

        Errors: `OSError` if the last notes cannot be kept.
        """
        self._thread.shutdown()
        self._lines.close()

    def _write_soon(self) -> None:
        """Have the thread write what waits.

        Errors: an unexpected exception of the last write, which is not an error of the storage.
        """
        if self._writing is not None and self._writing.done():
            self._writing.result()
        if not self._queued:
            self._queued = True
            self._writing = self._thread.submit(self._write)

    def _write_now(self) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            self._depot.write_soon(VITALS, newest)
        self._lines.flush()

    def _write(self) -> None:
        self._queued = False  # later notes need another job
        try:
            self._write_now()
            self._failing = False
        except OSError as error:  # the notes keep waiting: the next note or snapshot retries
            if not self._failing:
                log.error("notes are not kept: %s", error)
            self._failing = True

    def _tell(self, kind: str, *what: object) -> None:
        now_s = self._now_s()
        tell(self._measures, Note(now_s, kind, [*what]))
        self._keep(now_s, kind, *what)

    def _keep(self, now_s: float, kind: str, *what: object) -> None:
        self._lines.write(json.dumps([now_s, kind, what]))
        self._write_soon()


def read_notes(depot: Depot, start: int = 0, since_s: float = -math.inf) -> list[Note]:
    """Return the notes of all generations from this byte on, and the last vitals, by time.

    Vitals that are not newer than `since_s` are left out: they are recorded already.
    """
    notes = sorted([*_noted(depot, start), *_vitals(depot)], key=lambda note: note.now_s)
    return [note for note in notes if note.kind != "vitals" or note.now_s > since_s]


def _vitals(depot: Depot) -> list[Note]:
    try:
        return [_note(each) for each in json.loads(depot.read(VITALS))]
    except FileNotFoundError:
        return []
    except NOT_A_NOTE as error:
        log.warning("%s is ignored: %s", VITALS, error)
        return []


def _noted(depot: Depot, start: int) -> list[Note]:
    notes: list[Note] = []
    try:
        text = depot.grown(NOTES, start).content.decode(errors="replace")
    except (FileNotFoundError, EOFError):
        return notes
    for line in filter(None, text.splitlines()):
        try:
            notes.append(_note(json.loads(line)))
        except NOT_A_NOTE as error:
            log.warning("a note is ignored: %s", error)
    return notes


def _note(plain: Any) -> Note:
    """Return a note from plain data.

    Errors: `NOT_A_NOTE`.
    """
    now_s, kind, details = plain
    if not isinstance(now_s, int | float) or not math.isfinite(now_s):
        raise TypeError(f"{now_s!r} is no time")
    if not isinstance(kind, str) or not isinstance(details, list):
        raise TypeError(f"{plain!r} is no note")
    return Note(float(now_s), kind, details)


def retell(
    measures: Measures, heard: Iterable[ReplayedEvent], notes: Iterable[Note]
) -> ReplayedEvent | None:
    """Replay a history into measures, events and notes by time; return the last event.

    Errors: the errors of iterating over `heard`.
    """
    last: ReplayedEvent | None = None
    for entry in heapq.merge(notes, heard, key=lambda each: each.now_s):
        if isinstance(entry, ReplayedEvent):
            measures.saw(*entry)
            last = entry
        else:
            tell(measures, entry)
    return last


def tell(measures: Measures, note: Note) -> None:
    """Pass one note to measures; skip one that is damaged or of another version."""
    try:
        _tell(measures, note)
    except NOT_A_NOTE as error:
        log.warning("a note of kind %r is ignored: %s: %s", note.kind, note.what, error)


def _tell(measures: Measures, note: Note) -> None:
    """Pass one note to measures.

    Errors: `NOT_A_NOTE`.
    """
    match note:
        case Note(now_s, "began", []):
            measures.began(now_s)
        case Note(now_s, "fault", [island]):
            measures.fault(Island(island), now_s)
        case Note(now_s, "held", [islands]):
            measures.held({Island(island): group for island, group in islands.items()}, now_s)
        case Note(now_s, "owned", [owner]):
            measures.owned(int(owner), now_s)
        case Note(_, "evaluated", [t, loss]):
            measures.evaluated(t, loss)
        case Note(_, "failed", [life, reason, why]):
            failed_life = None if life is None else Life(Island(life[0]), Incarnation(life[1]))
            measures.failed(failed_life, Failure(Reason(reason), why))
        case Note(_, "unjudged", [why]):
            measures.unjudged(why)
        case Note(now_s, "vitals", [[island, incarnation], fields]):
            metrics = tuple((name, value) for name, value in fields.get("metrics", ()))
            vitals = replace(Vitals(**fields), metrics=metrics)
            measures.heard(Life(Island(island), Incarnation(incarnation)), vitals, now_s)
        case _:
            log.warning("a note of kind %r is not known: %s", note.kind, note.what)
