"""The records of a syncer that is up: its tape, its notes and its snapshots."""

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
"""So long the last snapshot and the end of the tape are tried again; nobody waits longer."""
SNAPSHOT_EVERY_S = 10.0
"""What a syncer that comes back has to hear again at most."""


class SyncerRecords:
    """A syncer, and what its process writes down of it; for its event loop."""

    def __init__(
        self, syncer: Syncer, tape: Tape, notes: Notes, now_s: Clock, snapshots: SnapshotWriter
    ) -> None:
        self.syncer, self.tape, self.notes, self.now_s = syncer, tape, notes, now_s
        self._snapshots = snapshots

    async def keep_snapshots(self) -> None:
        """Keep a snapshot now and then, so that a restart need not hear the whole tape again."""
        while True:
            await asyncio.sleep(SNAPSHOT_EVERY_S)
            await self.keep_snapshot()

    async def keep_snapshot(self) -> bool:
        """Snapshot the current state, unless the tape cannot be made durable up to it. Returns
        whether the snapshot is durable."""
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
        return await asyncio.to_thread(self._snapshots.write, snapshot, layout, self.notes, sealed)

    def status(self) -> RunStatus:
        """Return the run as it is now.

        Errors: what has ended the syncer; `RunFailed` if no island will ever come.
        """
        syncer, measures = self.syncer, self.syncer.measures
        if syncer.failure is not None:
            raise syncer.failure
        if (hopeless := measures.hopeless(syncer.state.phase)) is not None:
            raise hopeless
        measures.trouble("tape", self.tape.trouble)
        return measures.status(syncer.rule, syncer.state, self.now_s())

    async def close(self) -> None:
        """Keep a last snapshot and end the tape, or log what is not durable after `END_S`."""
        ending = Tasks().spawn(self._end())
        await asyncio.wait({ending}, timeout=END_S)
        why = f"the depot has not taken the end of the run for {END_S:g} s"
        if ending.done():
            why = "" if (error := ending.exception()) is None else repr(error)
        if why:
            logging.error("the end of the run is not durable: %s", why)

    async def _end(self) -> None:
        """Keep the last snapshot and end the tape; again and again while the depot refuses.

        Errors: what no depot raises.
        """
        try:
            while not await self.keep_snapshot():
                await asyncio.sleep(AGAIN_S)
        finally:
            await asyncio.to_thread(self.tape.close)
            while self.tape.trouble is not None:
                await asyncio.sleep(AGAIN_S)
                await asyncio.to_thread(self.tape.close)
