"""Callbacks of a run: events between two looks at it, delivered on a thread of their own.

The events come from the lines that the run adds to `metrics.jsonl`, one every `monitor.refresh_s`
seconds. A thread reads them and never waits for a callback: a full queue drops events and counts
them. So no callback can hold up the run, which is in other processes.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.launch.remote_status import from_json
from cluster.status import RunStatus
from cluster.storage.metrics_log import LOOKS, last_look

log = logging.getLogger("archipelago")
QUEUE = 1000
"""The most events that wait for callbacks."""
LOOK_S = 0.25
"""Seconds between two looks at the file."""
LOST_STATES = ("lost", "set aside")
"""The states of an island whose process or learner has failed."""

GOING = ("draining", "left")
"""The states of an island that leaves on request."""


@dataclass(frozen=True, slots=True)
class MergeEvent:
    """A new version of a fragment, merged from contributions of islands."""

    t: int
    """The syncer step at which it was seen."""
    fragment: int
    """The number of the fragment, from 0."""
    version: int
    """The number of the version."""
    merges: int
    """Merges of this fragment since the last event: 1, or more if it was merged in between."""
    participants: tuple[str, ...]
    """The islands in the merge; the newest one if there were several."""


@dataclass(frozen=True, slots=True)
class EvaluationEvent:
    """A new point of the held-out curve."""

    t: int
    """The syncer step of the model that was evaluated."""
    loss: float
    """The held-out loss, in nats per token; NaN if it was not finite."""


@dataclass(frozen=True, slots=True)
class IslandLostEvent:
    """The failure of an island: its process died, or its learner was lost."""

    t: int
    """The syncer step at which it was seen."""
    island: str
    """The name of the island."""
    why: str
    """The reason; empty if the island is back already."""


Event = MergeEvent | EvaluationEvent | IslandLostEvent


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions to call; None: no function for that kind of event."""

    on_merge: Callable[[MergeEvent], object] | None = None
    """Called with each merge."""
    on_evaluate: Callable[[EvaluationEvent], object] | None = None
    """Called with each evaluation of the syncer's model."""
    on_island_lost: Callable[[IslandLostEvent], object] | None = None
    """Called with each failure of an island."""

    def __bool__(self) -> bool:
        return any((self.on_merge, self.on_evaluate, self.on_island_lost))

    def call(self, event: Event) -> None:
        """Call the function for this event, if there is one; its exceptions pass."""
        match event:
            case MergeEvent():
                if self.on_merge is not None:
                    self.on_merge(event)
            case EvaluationEvent():
                if self.on_evaluate is not None:
                    self.on_evaluate(event)
            case IslandLostEvent():
                if self.on_island_lost is not None:
                    self.on_island_lost(event)


def events_between(before: RunStatus | None, after: RunStatus) -> Iterator[Event]:
    """Yield the events between two statuses; None: the run has just begun."""
    t = after["t"]
    versions = {each["fragment"]: each["version"] for each in (before or {}).get("fragments", ())}
    for fragment in after["fragments"]:
        merges = fragment["version"] - versions.get(fragment["fragment"], 0)
        if merges > 0:
            number, version = fragment["fragment"], fragment["version"]
            yield MergeEvent(t, number, version, merges, tuple(fragment["participants"]))
    curve = (before or {}).get("heldout", ())
    newest = curve[-1][0] if curve else -1
    for point, loss in after["heldout"]:
        if point > newest:  # while a run starts, its first model is evaluated several times
            newest = point
            yield EvaluationEvent(point, loss)
    islands = {each["island"]: each for each in (before or {}).get("islands", ())}
    for island in after["islands"]:
        was = islands.get(island["island"])
        if was is not None and was["state"] in LOST_STATES:
            continue  # it was reported when it was lost
        if island["state"] in LOST_STATES:
            yield IslandLostEvent(t, island["island"], island["why"])
        elif was is not None and was["state"] not in GOING and island["restarts"] > was["restarts"]:
            yield IslandLostEvent(t, island["island"], "")  # it was lost and is back


class CallbackThreads:
    """The thread that reads the file, and the thread that calls the callbacks."""

    def __init__(self, run_dir: Path, callbacks: Callbacks, size: int = QUEUE) -> None:
        """Follow the run in this directory from now on; `size`: the most events that wait."""
        self.dropped = 0
        self.failed = 0
        self._path, self._callbacks = run_dir / LOOKS, callbacks
        self._queue: queue.Queue[Event] = queue.Queue(size)
        self._reported: set[type] = set()
        self._ended = threading.Event()
        text = last_look(self._path)  # of the life before, if the run is resumed
        self._before = None if text is None else from_json(text)
        self.reader = threading.Thread(target=self._read, name="archipelago-events", daemon=True)
        self.caller = threading.Thread(target=self._call, name="archipelago-callbacks", daemon=True)
        self._tail = Tail(self._path)

    def start(self) -> None:
        """Start both threads; they end after `end`, and do not keep the interpreter alive."""
        self.reader.start()
        self.caller.start()

    def end(self, within_s: float) -> None:
        """Deliver what the run has written by now, and wait for that for at most `within_s`."""
        self._ended.set()
        self.reader.join(within_s)
        self.caller.join(within_s)

    def _read(self) -> None:
        over = False
        while not over:
            over = self._ended.wait(LOOK_S)
            for line in self._tail.lines():
                status = from_json(line)
                for event in events_between(self._before, status):
                    self._offer(event)
                self._before = status

    def _offer(self, event: Event) -> None:
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("callbacks are slower than the run: events are dropped and counted")

    def _next(self) -> Event | None:
        """Wait for the next event; None: all events are delivered, and no further one comes."""
        while True:
            over = not self.reader.is_alive()
            try:
                return self._queue.get(timeout=LOOK_S)
            except queue.Empty:
                if over:
                    return None

    def _call(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._callbacks.call(event)
            except Exception as error:
                self.failed += 1
                if type(event) not in self._reported:
                    self._reported.add(type(event))
                    log.exception(
                        "the callback for %s has raised %r; the run continues, and further "
                        "errors of this callback are only counted",
                        type(event).__name__,
                        error,
                    )


class Tail:
    """The lines that are added to a file that may be replaced by a shorter one."""

    def __init__(self, path: Path) -> None:
        """Begin at the present end of the file."""
        self._path, self._place, self._number = path, 0, 0
        try:
            found = path.stat()
        except FileNotFoundError:
            return
        self._place, self._number = found.st_size, found.st_ino

    def lines(self) -> Iterator[str]:
        """Yield the complete lines since the last call; only the last one of a replaced file."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._number and found.st_ino != self._number:
                    if (last := last_look(self._path)) is not None:
                        yield last
                    self._place = found.st_size
                self._number = found.st_ino
                file.seek(self._place)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._place += len(whole) + len(newline)
        yield from whole.decode().splitlines()
