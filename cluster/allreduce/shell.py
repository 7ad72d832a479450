"""The conductor's shell, which feeds events to the rules of `ring` and carries out their effects.

The shell runs on one event loop and uses neither Ray nor a disk: it reaches them through
`RingPorts` and `RingStore`. An exception of a task or of the rules is a failure of the shell, which
it reports to its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.allreduce.accounts import RingAccounts
from cluster.allreduce.journal import MEMORY_S
from cluster.allreduce.ports import RingPorts
from cluster.allreduce.records import Records
from cluster.allreduce.ring import Ring, Rules, advance
from cluster.allreduce.ring_effects import RingEffects
from cluster.allreduce.ring_lives import RingLives
from cluster.allreduce.ring_messages import (
    Event,
    RingDecision,
    RingMemberLost,
    RingMemberReady,
    SnapshotStored,
    StepsFinished,
    TrainingPosition,
)
from cluster.allreduce.ring_places import RingPlaces
from cluster.allreduce.saved_state import RingMemory, RingState
from cluster.allreduce.store import RingStore
from cluster.failures import class_and_message
from cluster.syncer.measures import Measures
from cluster.tasks import Tasks
from coordinator.protocol import Island, Life

log = logging.getLogger("archipelago.conductor")


class RingShell:
    """The rules, their state, and the tasks under way; for one event loop."""

    def __init__(
        self,
        rules: Rules,
        ring: Ring,
        snapshot: RingState,
        ports: RingPorts,
        store: RingStore,
        measures: Measures,
        accounts: RingAccounts,
        *,
        now_s: Callable[[], float],
        lives: int = 0,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """Begin. `lives`: incarnations granted so far. `failed`: called if it cannot continue."""
        self.ring, self.snapshot, self.measures = ring, snapshot, measures
        self.failure: BaseException | None = None
        self.rules, self._store, self._accounts = rules, store, accounts
        self._now_s, self._failed = now_s, failed
        self._tasks = Tasks(self._fail)
        self._places = RingPlaces()
        self._lives = RingLives(ports, measures, self._tasks, self._lost, lives)
        self._remembered_s = float("-inf")
        self.records = Records(store, self._tasks, measures, now_s, self._memory, self._kept)
        self._effects = RingEffects(
            self, ports, self._places, self.records, measures, accounts, self._tasks, now_s
        )

    # --- calls of islands -------------------------------------------------------------------------

    def enter(self, island: Island) -> Life:
        """Grant a life to a new process of this island; its former life is lost."""
        life = self._lives.grant(island)
        known = self.ring.members.get(island)
        if known is not None:
            self._lost(known.life, "its process has restarted")
        self._lives.watch_over(life)
        return life

    async def ready(
        self, life: Life, held: TrainingPosition | None, wasted: int
    ) -> tuple[bool, RingDecision | None]:
        """Wait for a place in a ring; return whether to ask again, and the place.

        The place is None if this life gets no more places. An earlier conductor may have granted
        the life.
        """
        known = self.ring.members.get(life.island)
        if known is not None and known.life.incarnation > life.incarnation:
            return False, None
        if life not in self._places:
            self._lives.recognize(life)
            self._lives.watch_over(life)
            self._places.open(life)
            self.feed(RingMemberReady(life, held, wasted))
        return await self._places.wait(life)

    def turned(self, life: Life, ring: int, held: TrainingPosition) -> None:
        """Record the position of the current ring; a no-op for another ring."""
        if ring == self.ring.ring and life in self._effects.formed.members:
            self.feed(StepsFinished(ring, held))

    def keep(self, state: RingState) -> None:
        """Store a snapshot, unless a newer one is stored."""
        if state.held > self.ring.kept:
            self.records.keep(state, self.ring.ring)

    # --- events and effects -----------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Pass an event to the rules, and start all their effects.

        An exception in here is a failure of the conductor, not of the caller; it is raised again.
        """
        try:
            self._take_in(event)
        except Exception as error:
            self._fail(error)
            raise

    def remember(self) -> asyncio.Task[None]:
        """Write the memory; return a task that ends when the write has succeeded or failed."""
        self._remembered_s = self._now_s()
        return self.records.remember()

    def close(self) -> None:
        """Cancel all tasks, for example those that watch lives."""
        self._tasks.cancel()

    def _take_in(self, event: Event) -> None:
        now_s, before, counts = self._now_s(), self.ring, self.measures.counts
        self.ring, effects = advance(self.rules, before, event)
        steps = self.ring.held.step - before.held.step
        if steps > 0 and self._effects.formed.members:
            self._accounts.stepped(self._effects.formed.members, steps, now_s)
        if not isinstance(event, StepsFinished) or effects:
            self._store.note(now_s, event, effects)
        if before.stopping is None and self.ring.stopping is not None:
            counts.stopping_s = now_s
        if isinstance(event, RingMemberLost) and self.ring is not before:
            self._effects.forget(event, before)
        if self.ring.broken and not before.broken and self.ring.turning:
            self._effects.end_stuck_members()
        for effect in effects:
            self._effects.carry_out(before, effect)
        if effects or now_s - self._remembered_s >= MEMORY_S:
            self.remember()

    def _lost(self, life: Life, why: str) -> None:
        self.feed(RingMemberLost(life, why))

    # --- the depot --------------------------------------------------------------------------------

    def _memory(self) -> RingMemory:
        measures, events = self.measures.memory(), self._store.events
        return RingMemory(self.ring, self._now_s(), measures, self._lives.granted, events)

    def _kept(self, state: RingState, ring: int) -> None:
        """Note that a snapshot of this ring is durable.

        Ignore it if a later ring has begun before its position: the run continues without it.
        """
        passed = ring == self.ring.ring or state.held <= self._effects.formed.held
        if passed and state.held > self.ring.kept:
            self.snapshot = max(self.snapshot, state, key=lambda each: each.held)
            self.feed(SnapshotStored(state.held))

    def _fail(self, error: BaseException) -> None:
        if error is self.failure:
            return
        log.error("the conductor has failed: %s", class_and_message(error), exc_info=error)
        self.failure = self.failure or error
        self._failed(error)
