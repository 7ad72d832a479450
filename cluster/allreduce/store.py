"""The conductor's depot, off its event loop, so that a depot that hangs delays no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from cluster.allreduce.journal import Journal
from cluster.allreduce.ring_messages import Effect, Event
from cluster.allreduce.saved_state import RingMemory, RingState, save_state
from cluster.storage.depot import Depot
from cluster.tasks import Tasks

T = TypeVar("T")


class RingStore(Protocol):
    """The durable store of a conductor.

    Errors of every coroutine: `OSError` if the depot fails, `RunFailed` if the run now belongs to
    another owner.
    """

    @property
    def events(self) -> int:
        """The number of events on the tape."""
        ...

    def note(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Add an event to the tape; quick enough for an event loop."""
        ...

    async def remember(self, memory: RingMemory) -> None:
        """Make the tape durable up to now, and replace the conductor's memory."""
        ...

    async def keep(self, state: RingState) -> None:
        """Make a snapshot durable, and remove the oldest ones."""
        ...

    async def close(self) -> None:
        """Close the tape."""
        ...


class DepotStore(RingStore):
    """A `RingStore` in a depot, with one thread for the memory and one for snapshots."""

    def __init__(
        self, depot: Depot, events: int, check: Callable[[], None], keep_snapshots: int
    ) -> None:
        """Open the journal after `events` events; `check` raises if the owner has changed."""
        self._depot, self._check, self._keep_snapshots = depot, check, keep_snapshots
        self._journal = Journal(depot, events, check)
        self._memory_thread = ThreadPoolExecutor(1, "memory")
        self._snapshot_thread = ThreadPoolExecutor(1, "snapshots")

    @property
    def events(self) -> int:
        """The number of events on the tape."""
        return self._journal.events

    def note(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Add an event to the tape; `remember` makes it durable."""
        self._journal.note(now_s, event, effects)

    async def remember(self, memory: RingMemory) -> None:
        """Make the tape durable up to now, and replace the conductor's memory."""
        await _on(self._memory_thread, lambda: self._journal.remember(memory))

    async def keep(self, state: RingState) -> None:
        """Make a snapshot durable, and remove the oldest ones."""

        def keep() -> None:
            self._check()
            save_state(self._depot, state, self._keep_snapshots)

        await _on(self._snapshot_thread, keep)

    async def close(self) -> None:
        """Close the tape."""
        await _on(self._memory_thread, self._journal.close)


class Coalesced:
    """Work that runs once for each request, one run at a time.

    One further run serves all requests that arrive during a run.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        tasks: Tasks,
        now_s: Callable[[], float],
    ) -> None:
        """Begin idle. `tasks`: of the owner, which gets exceptions. `now_s`: a steady clock."""
        self._work, self._tasks, self._now_s = work, tasks, now_s
        self._wanted = False
        self._running: asyncio.Task[None] | None = None
        self._began_s = 0.0

    def ask(self) -> asyncio.Task[None]:
        """Request a run; return a task that ends when no request is left."""
        self._wanted = True
        if self._running is None or self._running.done():
            self._running = self._tasks.spawn(self._until_done())
        return self._running

    @property
    def late_s(self) -> float:
        """Seconds for which the current run has lasted; 0 if none is under way."""
        runs = self._running is not None and not self._running.done()
        return self._now_s() - self._began_s if runs else 0.0

    async def _until_done(self) -> None:
        while self._wanted:
            self._wanted, self._began_s = False, self._now_s()
            await self._work()


async def _on(thread: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, call)
