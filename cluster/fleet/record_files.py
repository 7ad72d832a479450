"""The files `metrics.jsonl` and `events.jsonl` of a run, as its fleet continues them.

A run directory that cannot be written to, or hangs, costs lines and never the run. There is an
alert until it takes lines again. Meanwhile lines of `metrics.jsonl` are left out, and up to
`EVENTS_KEPT` lines of `events.jsonl` wait.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cluster.fleet.event_kinds import EVENT_FIELDS
from cluster.fleet.metrics_row import status_of_row
from cluster.status import EventStatus, RunStatus
from cluster.storage.limited_calls import LimitedCalls
from cluster.storage.metrics_log import EVENTS, EVENTS_MB, LOOKS, MetricsLog, last_lines, last_look

log = logging.getLogger("archipelago.fleet")
T = TypeVar("T")
EVENTS_KEPT = 1000
"""The most events that wait until the run directory takes them; further ones are left out."""


class RecordFiles:
    """The files of one run directory; the keeper's thread calls them, and never hangs with them."""

    def __init__(self, run_dir: Path, metrics_mb: int, limit_s: float | None = None) -> None:
        """Open nothing yet.

        `metrics_mb`: the largest size of `metrics.jsonl` in megabytes. `limit_s`: as for
        `LimitedCalls`.
        """
        self._run_dir, self._storage = run_dir, LimitedCalls(limit_s)
        self._statuses = MetricsLog(run_dir / LOOKS, metrics_mb)
        self._events = MetricsLog(run_dir / EVENTS, EVENTS_MB)
        self._waiting = deque[str]()  # events that are not in the file yet, oldest first
        self._silent: str | None = None

    @property
    def trouble(self) -> str | None:
        """The reason why lines are left out or wait; None if none do."""
        reason = self._silent or self._statuses.trouble or self._events.trouble
        if reason is None:
            return None
        return f"{LOOKS} and {EVENTS} in {self._run_dir} miss lines: {reason}"

    def last_status(self) -> RunStatus | None:
        """Return the last status that an earlier fleet has recorded; None if there is none.

        A damaged line costs only the comparison with it.
        """
        try:
            text = self._storage.call(partial(last_look, self._run_dir / LOOKS))
            return None if text is None else status_of_row(text)
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("the last line of %s is ignored: %r", LOOKS, error)
            return None

    def last_events(self, most: int) -> tuple[EventStatus, ...]:
        """Return the newest events that an earlier fleet has recorded, without damaged lines."""
        found: list[EventStatus] = []
        try:
            lines = self._storage.call(partial(last_lines, self._run_dir / EVENTS, most))
        except OSError as error:
            log.warning("%s is ignored: %r", EVENTS, error)
            return ()
        for line in lines:
            try:
                plain: Any = {"for_s": None} | json.loads(line)  # earlier versions had no for_s
                if plain.keys() >= EVENT_FIELDS.keys():
                    found.append(plain)
            except (ValueError, TypeError):
                continue
        return tuple(found)

    def add_status(self, line: str) -> None:
        """Add a line to `metrics.jsonl`, or leave it out; add the events that wait."""

        def add() -> None:
            self._add_waiting()
            self._statuses.write(line)

        self._try(add)

    def add_event(self, line: str) -> None:
        """Add a line to `events.jsonl`, now or once the run directory takes it."""
        if len(self._waiting) < EVENTS_KEPT:
            self._waiting.append(line)
        self._try(self._add_waiting)

    def close(self) -> None:
        """Close both files, after the events that wait."""
        if self._waiting:
            self._try(self._add_waiting)
        self._try(self._statuses.close)
        self._try(self._events.close)

    def _add_waiting(self) -> None:
        self._events.open()  # its next line may be hours away
        while self._waiting:
            self._events.write(self._waiting[0])
            if self._events.trouble is not None:
                return
            self._waiting.popleft()

    def _try(self, call: Callable[[], object]) -> None:
        try:
            self._storage.call(call)
            self._silent = None
        except OSError as error:
            if self._silent is None:
                log.error("a line for %s is left out: %s", self._run_dir, error)
            self._silent = str(error)
