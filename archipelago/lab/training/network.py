"""The islands' places, and their links to the rest: messages and bytes in virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from archipelago.lab.simulation.event_loop import VirtualLoop, settle
from archipelago.lab.training.lease_source import Reading, Renumbered
from archipelago.lab.training.process import VirtualProcess
from archipelago.lab.training.timing import Timing
from cluster.names import CALL_TIMEOUT_S
from cluster.shard.arrays import ArrayShard
from cluster.syncer.shell import Syncer
from coordinator.codec import Wire, decode, split
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    Adopted,
    Fragment,
    Island,
    Join,
    LeaseWanted,
    Life,
    Report,
    Version,
    Vitals,
)
from islands.exchange import Missed
from islands.task import StreamLike, Task

NOTICED_S = 0.5
"""Seconds from a process's end until its death is detected."""


@dataclass(slots=True)
class Direction:
    """One direction of an island's own link; messages queue while it is busy."""

    timing: Timing
    free_s: float = 0.0

    def takes_s(self, now_s: float, size_bytes: int) -> float:
        """Return the seconds until `size_bytes` have arrived."""
        self.free_s = max(self.free_s, now_s) + self.timing.passes_s(size_bytes)
        return self.free_s - now_s + self.timing.latency_s


@dataclass(slots=True)
class IslandPlace:
    """One island's place: its link, its batches, and the process that runs there."""

    island: Island
    batch_size: int
    up: Direction
    down: Direction
    process: VirtualProcess | None = None
    started: int = 0
    """The number of processes that have started there."""
    cut_s: float = 0.0
    """No message passes until this time."""
    retired: bool = False
    """Whether the island is no longer wanted."""


class VirtualNetwork:
    """The network that carries messages between processes and the syncer."""

    def __init__(
        self,
        loop: VirtualLoop,
        timing: Timing,
        task: Task,
        layout: Layout,
        shard: ArrayShard,
        places: Sequence[IslandPlace],
        reading: Reading | None,
    ) -> None:
        """Connect these places; `reading` replaces the leases that the rules grant."""
        self.loop, self.timing, self.shard = loop, timing, shard
        self.places = {place.island: place for place in places}
        self._task, self._layout = task, layout
        self._reading: dict[Island, deque[int]] | None = None
        if reading is not None:
            self._reading = {name: deque(numbers) for name, numbers in reading.items()}
        self.watched: dict[Life, asyncio.Future[str]] = {}
        self.syncer: Syncer  # set by the world

    # --- processes --------------------------------------------------------------------------------

    def crash(self, place: IslandPlace) -> None:
        """Kill the process at a place; this is noticed `NOTICED_S` later."""
        if (process := place.process) is None:
            return
        process.dead, place.process = True, None
        known_s = self.loop.now_s + NOTICED_S
        for waiter in process.waiters:
            self.loop.at(known_s, settle, waiter, None)
        for life, watcher in self.watched.items():
            if life.island == place.island:
                self.loop.at(known_s, settle, watcher, "its process ended")

    def ended(self, process: VirtualProcess, life: Life) -> None:
        """Notify the watchers of a life that it is over."""
        for other, watcher in self.watched.items():
            if other.island == life.island and other.incarnation <= life.incarnation:
                known_s = self.loop.now_s + self.timing.latency_s
                self.loop.at(known_s, settle, watcher, "its learner has ended this life")

    def left(self, process: VirtualProcess) -> None:
        """Retire a drained island: it does not come back."""
        self.places[process.island].retired = True

    # --- messages ---------------------------------------------------------------------------------

    def _call(
        self,
        process: VirtualProcess,
        words: Callable[[], Any],
        reply: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        """Send a message to the syncer, then call `reply` with its answer, or `failed`."""
        now_s = self.loop.now_s
        if now_s < self.places[process.island].cut_s:
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, failed)
        else:
            self.loop.at(now_s + self.timing.latency_s, self._comes, process, words, reply, failed)

    def _comes(
        self,
        process: VirtualProcess,
        words: Callable[[], Any],
        reply: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        answer, now_s = words(), self.loop.now_s
        if now_s < self.places[process.island].cut_s:
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, failed)
        else:
            self.loop.at(now_s + self.timing.latency_s, process.reached, reply, answer)

    async def reach(self, life: Life) -> VirtualProcess | None:
        """Return the process at a life's place, once a message arrives; None if there is none."""
        place = self.places[life.island]
        while self.loop.now_s < place.cut_s:
            await self.loop.pause(CALL_TIMEOUT_S)
        await self.loop.pause(self.timing.latency_s)
        process = place.process
        while process is not None and self.loop.now_s < process.frozen_s:
            await self.loop.pause(process.frozen_s - self.loop.now_s)
            process = place.process
        return process

    # --- messages of a process --------------------------------------------------------------------

    def join(self, process: VirtualProcess, event: Join) -> None:
        """Send a join, and try again if no answer comes."""

        def again() -> None:
            if not process.let_go:
                process.begin()

        self._call(process, lambda: self.syncer.join(event), process.granted, again)

    def whole(self, process: VirtualProcess) -> None:
        """Fetch all public fragments, as they are when they arrive."""
        size_bytes = sum(map(Wire.F32.bytes_of, self._layout.sizes))
        takes_s = self.places[process.island].down.takes_s(self.loop.now_s, size_bytes)
        ready_s = self.loop.now_s + takes_s + self.timing.latency_s
        self.loop.at(ready_s, process.reached, self._give, process)

    def _give(self, process: VirtualProcess) -> None:
        process.start(self.shard.whole([Fragment(p) for p in range(len(self._layout.fragments))]))

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Return the differences from one version to another, or the whole fragment."""
        return self.shard.missed(p, older, newer)

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """Return a donor's moments; None if its process is in another life."""
        process = self.places[donor.island].process
        if process is None or process.life != donor:
            return None
        return process.kit.inner.moments(process.replica.state)

    def shared(self) -> dict[Fragment, Flat]:
        """Return the published means of first moments, by fragment."""
        fragments, sizes = range(len(self._layout.fragments)), self._layout.sizes
        found = enumerate(self.shard.shared([Fragment(p) for p in fragments]))
        return {Fragment(p): decode(split(m)[0], sizes[p]) for p, m in found if m is not None}

    def stream(self, island: Island) -> StreamLike:
        """Return an island's data stream, which reads the leases of the tape if there is one."""
        stream = self._task.stream(self.places[island].batch_size)
        if self._reading is None:
            return stream
        return Renumbered(stream, self._reading[island])

    def report(
        self, process: VirtualProcess, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> None:
        """Send a report to the syncer."""
        life = event.life
        self._call(
            process,
            lambda: self.syncer.report(event, vitals, adopted),
            lambda answer: process.answered(life, answer),
            lambda: process.unanswered(life),
        )

    def lease(self, process: VirtualProcess, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        life = event.life
        self._call(
            process,
            lambda: self.syncer.lease(event),
            lambda answer: process.answered(life, answer),
            lambda: process.unanswered(life),
        )
