"""The records of a running syncer: its tape, its notes and its snapshots."""

from __future__ import annotations

import asyncio
import logging

from cluster.actors.directory import AGAIN_S
from cluster.actors.syncer.snapshot_writer import SnapshotWriter
from cluster.status import RunStatus
from cluster.storage.snapshots import Snapshot
from cluster.storage.tape import Tape
from cluster.syncer.clock import Clock
from cluster.syncer.effect_queue import done
from cluster.syncer.journal import Notes
from cluster.syncer.resume_point import rules_sha256
from cluster.syncer.shell import Syncer
from cluster.tasks import Tasks

END_S = 30.0
"""Timeout, in seconds, for the last snapshot and the end of the tape, retries included."""
SNAPSHOT_EVERY_S = 10.0
"""Seconds between two snapshots, and so the most that a restarted syncer has to replay."""


class SyncerRecords:
    """A syncer and the records that its process keeps of it; for its event loop."""

    def __init__(
        self, syncer: Syncer, tape: Tape, notes: Notes, now_s: Clock, snapshots: SnapshotWriter
    ) -> None:
        self.syncer, self.tape, self.notes, self.now_s = syncer, tape, notes, now_s
        self._snapshots = snapshots

    async def keep_snapshots(self) -> None:
        """Write snapshots periodically, so that a restart need not replay the whole tape."""
        while True:
            await asyncio.sleep(SNAPSHOT_EVERY_S)
            await self.keep_snapshot()

    async def keep_snapshot(self) -> bool:
        """Snapshot the current state, unless the tape cannot be made durable up to it.

        Return whether the snapshot is durable.
        """
        sealed = self.tape.seal()
        flushed = self.tape.flush()
        snapshot = Snapshot(
            self.syncer.state,
            self.tape.seq,
            self.now_s(),
            self.syncer.measures.memory(),
            self.notes.length,
            rules_sha256(self.syncer.rule),
            self.tape.place,
        )
        await done(flushed)
        if self.tape.trouble is not None:
            return False
        layout = self.syncer.rule.fingerprint
        why = await asyncio.to_thread(self._snapshots.write, snapshot, layout, self.notes, sealed)
        self.syncer.measures.trouble("snapshot", why)
        return why is None

    def status(self) -> RunStatus:
        """Return the status of the run.

        Errors: the error that ended the syncer; `RunFailed` if no island will ever come.
        """
        syncer, measures = self.syncer, self.syncer.measures
        if syncer.failure is not None:
            raise syncer.failure
        if (hopeless := measures.hopeless(syncer.state.phase)) is not None:
            raise hopeless
        measures.trouble("tape", self.tape.trouble)
        return measures.status(syncer.rule, syncer.state, self.now_s())

    async def close(self) -> None:
        """Write a last snapshot and end the tape; log what is not durable after `END_S`."""
        ending = Tasks().spawn(self._end())
        await asyncio.wait({ending}, timeout=END_S)
        why = f"the depot has not taken the end of the run for {END_S:g} s"
        if ending.done():
            why = "" if (error := ending.exception()) is None else repr(error)
        if why:
            logging.error("the end of the run is not durable: %s", why)

    async def _end(self) -> None:
        """Write the last snapshot and end the tape, with retries while the depot refuses.

        Errors: anything that a depot does not raise.
        """
        try:
            while not await self.keep_snapshot():
                await asyncio.sleep(AGAIN_S)
        finally:
            await asyncio.to_thread(self.tape.close)
            while self.tape.trouble is not None:
                await asyncio.sleep(AGAIN_S)
                await asyncio.to_thread(self.tape.close)
