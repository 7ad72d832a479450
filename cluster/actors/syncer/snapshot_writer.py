"""The writing of the syncer's snapshots, on the thread of the caller."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cluster.actors.restart import start_over
from cluster.storage.depot import Depot
from cluster.storage.fragments import forget_orphans
from cluster.storage.ladder import NO_LADDER, Ladder, LadderPolicy
from cluster.storage.segments import tape_name
from cluster.storage.snapshots import Snapshot, forget_before, name_of, save_snapshot
from cluster.syncer.journal import Notes
from coordinator.errors import RunFailed


class SnapshotWriter:
    """A writer of snapshots, one at a time, so that an older one never replaces a newer one."""

    def __init__(
        self,
        depot: Depot,
        check: Callable[[], None],
        keep_segments: int,
        ladder: LadderPolicy = NO_LADDER,
    ) -> None:
        """Write to a depot.

        `check`: raises `RunFailed` if the run belongs to another owner. `keep_segments`: how many
        segments of the log are kept; 0: all. `ladder`: how many states of earlier hours and days.
        """
        self._ladder = Ladder(depot, ladder)
        self._depot, self._check, self._keep_segments = depot, check, keep_segments
        self._writing = threading.Lock()
        self.orphans = True
        """Whether a restore may have set versions aside that no snapshot has superseded yet."""

    def write(self, snapshot: Snapshot, layout: str, notes: Notes, sealed: bool) -> str | None:
        """Write a snapshot; return why it is not durable, or None if it is.

        `sealed`: whether a segment of the log begins with it. The process starts over if the run
        belongs to another owner, or if a later generation writes the log.
        """
        try:
            self._check()
        except RunFailed as error:  # the next process reports this and writes nothing
            start_over(str(error))
        try:
            with self._writing:
                if self._depot.has(tape_name(snapshot.state.generation + 1)):
                    start_over("a later generation writes the tape")
                notes.flush()
                save_snapshot(self._depot, snapshot, layout)
                if self.orphans:
                    self.orphans = False
                    forget_orphans(self._depot)
                if sealed and snapshot.place is not None:
                    save_snapshot(self._depot, snapshot, layout, name_of(snapshot.place.segment))
                    forget_before(self._depot, self._keep_segments)
                self._keep_ladder(snapshot, layout)
        except OSError as error:  # a restart then replays the log from the previous snapshot
            logging.error("no snapshot: %s", error)
            return str(error)
        return None

    def _keep_ladder(self, snapshot: Snapshot, layout: str) -> None:
        """Keep this state for later hours and days if it is due; log an error of the depot."""
        try:
            self._ladder.look(snapshot, layout, time.time())
        except OSError as error:
            logging.error("no state is kept in the ladder: %s", error)
