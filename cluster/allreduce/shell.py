"""The conductor's shell: it feeds events to the rules of `ring` and has their effects carried out.

It runs on one event loop and knows neither Ray nor a disk: `RingPorts` and `RingStore` are its ways
out. An exception of a task, or of the rules, is
the failure of the shell, and its owner is told.
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
from cluster.failures import words_of
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
        """`lives`: incarnations granted so far. `failed`: the conductor cannot go on."""
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

    # --- what islands say -------------------------------------------------------------------------

    def enter(self, island: Island) -> Life:
        """Grant a life to a process of this island."""
        life = self._lives.grant(island)
        known = self.ring.members.get(island)
        if known is not None:
            self._lost(known.life, "its process has begun anew")
        self._lives.watch_over(life)
        return life

    async def ready(
        self, life: Life, held: TrainingPosition | None, wasted: int
    ) -> tuple[bool, RingDecision | None]:
        """Wait for a place in a ring: whether to ask again, and the place; None if this life gets
        none any more.

        The life may be one that a conductor before this one has granted.
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
        """Take in how far a ring is; what is said of another ring is passed over."""
        if ring == self.ring.ring and life in self._effects.formed.members:
            self.feed(StepsFinished(ring, held))

    def keep(self, state: RingState) -> None:
        """Keep a snapshot, unless a newer one is kept."""
        if state.held > self.ring.kept:
            self.records.keep(state, self.ring.ring)

    # --- deciding and doing -----------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Let the rules take in an event, and start everything that follows from it.

        What goes wrong in here is the failure of the conductor, whoever has spoken.
        """
        try:
            self._take_in(event)
        except Exception as error:
            self._fail(error)
            raise

    def remember(self) -> asyncio.Task[None]:
        """Have the memory written, and return a task that ends when it is."""
        self._remembered_s = self._now_s()
        return self.records.remember()

    def close(self) -> None:
        """End all tasks, such as watching over lives."""
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
        """A snapshot of this ring is durable; one of a ring that has gone back behind it since is
        not gone on from."""
        passed = ring == self.ring.ring or state.held <= self._effects.formed.held
        if passed and state.held > self.ring.kept:
            self.snapshot = max(self.snapshot, state, key=lambda each: each.held)
            self.feed(SnapshotStored(state.held))

    def _fail(self, error: BaseException) -> None:
        if error is self.failure:
            return
        log.error("the conductor cannot go on: %s", words_of(error), exc_info=error)
        self.failure = self.failure or error
        self._failed(error)
