"""The durable records of a conductor: the newest memory and the newest snapshot.

Each is written one at a time. A depot that fails is reported as trouble and does not end the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from cluster.allreduce.ring import Ring
from cluster.allreduce.ring_messages import START, RingResume
from cluster.allreduce.saved_state import RingMemory, RingState
from cluster.allreduce.store import Coalesced, RingStore
from cluster.syncer.measures import Measures
from cluster.tasks import Tasks
from coordinator.frozen import replace

AGAIN_S = 1.0
"""Seconds between two attempts to store the final records."""


def come_back(memory: RingMemory | None, snapshot: RingState) -> tuple[Ring, RingResume | None]:
    """Return the state to begin with, and the first event of a restart.

    The event is None if nothing was trained before. The snapshot may be newer than the memory, and
    the memory may be missing.
    """
    ring = Ring() if memory is None else memory.ring
    restart = memory is not None or snapshot.held > START
    resume = RingResume(ring.generation + 1) if restart else None
    return replace(ring, kept=snapshot.held), resume


class Records:
    """The memory and the snapshots of a conductor; for one event loop."""

    def __init__(
        self,
        store: RingStore,
        tasks: Tasks,
        measures: Measures,
        now_s: Callable[[], float],
        memory: Callable[[], RingMemory],
        kept: Callable[[RingState, int], None],
    ) -> None:
        """Begin with nothing to write.

        `tasks`: of the owner. `memory`: returns the current memory. `kept`: called with a snapshot
        and its ring once the snapshot is durable.
        """
        self._store, self._measures, self._memory, self._kept = store, measures, memory, kept
        self._memories = Coalesced(self._write_memory, tasks, now_s)
        self._snapshots = Coalesced(self._write_snapshot, tasks, now_s)
        self._to_keep: tuple[RingState, int] | None = None  # the next snapshot, and its ring
        self._taken, self._stored = False, START
        self.final = asyncio.Event()
        """Set once the final state is durable, and the memory that marks it as final."""

    def remember(self) -> asyncio.Task[None]:
        """Write the memory; return a task that ends when the write has succeeded or failed."""
        return self._memories.ask()

    def keep(self, state: RingState, ring: int) -> asyncio.Task[None]:
        """Store a snapshot of this ring, in place of a waiting one; return a task as `remember`."""
        self._to_keep = state, ring
        return self._snapshots.ask()

    async def _remember_surely(self) -> None:
        """Write the current memory, with retries, and return when it is durable."""
        await asyncio.wait({self.remember()})
        while not self._taken:
            await asyncio.sleep(AGAIN_S)
            await asyncio.wait({self.remember()})

    async def _keep_surely(self, state: RingState, ring: int) -> None:
        """Store this snapshot, with retries, and return when it or a newer one is durable."""
        await asyncio.wait({self.keep(state, ring)})
        while self._stored < state.held:
            await asyncio.sleep(AGAIN_S)
            await asyncio.wait({self.keep(state, ring)})

    async def make_final(self, state: RingState, ring: int, *, stored: bool) -> None:
        """Store the final state and the memory that marks it as final, with retries without limit.

        `stored`: the state is durable already.
        """
        if not stored:
            await self._keep_surely(state, ring)
        await self._remember_surely()
        self.final.set()

    def all_written(self) -> asyncio.Task[None]:
        """Return a task that ends when no snapshot waits or is being written."""
        return self._snapshots.ask()

    def late(self) -> Iterator[tuple[str, float]]:
        """Yield each kind of record with the seconds for which it is being written, 0 if not."""
        yield "memory", self._memories.late_s
        yield "snapshot", self._snapshots.late_s

    async def _write_memory(self) -> None:
        self._taken = False
        try:
            await self._store.remember(self._memory())
        except OSError as error:
            self._measures.trouble("memory", str(error))
            return
        self._taken = True
        self._measures.trouble("memory", None)

    async def _write_snapshot(self) -> None:
        if self._to_keep is None:
            return
        (state, ring), self._to_keep = self._to_keep, None
        try:
            await self._store.keep(state)
        except OSError as error:
            self._measures.trouble("snapshot", str(error))
            return
        self._measures.trouble("snapshot", None)
        self._stored = max(self._stored, state.held)
        self._kept(state, ring)
