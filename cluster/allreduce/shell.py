"""The conductor's shell: it feeds events to the rules of `ring` and carries their effects out.

It runs on one event loop and knows neither Ray nor a disk: `RingPorts` and `RingStore` are its ways
out. What takes long is a task that ends in an event. An exception of a task, or of the rules, is
the failure of the shell, and its owner is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import assert_never

from cluster.allreduce.accounts import RingAccounts
from cluster.allreduce.final_state import final_state
from cluster.allreduce.ports import RingPorts
from cluster.allreduce.records import Records
from cluster.allreduce.ring import (
    Effect,
    Ended,
    Event,
    Finish,
    Form,
    Gone,
    Held,
    Kept,
    Lost,
    Pause,
    Ready,
    Release,
    Ring,
    Rules,
    Stage,
    Turn,
    Turned,
    advance,
)  # fmt: skip
from cluster.allreduce.saved_state import MEMORY_S, Memory, RingState
from cluster.allreduce.store import RingStore
from cluster.failures import words_of
from cluster.names import group_name
from cluster.syncer.counts import Watched
from cluster.syncer.measures import Measures
from cluster.tasks import Tasks
from coordinator.protocol import Incarnation, Island, Life

log = logging.getLogger("archipelago.conductor")
STUCK_S = 15.0
"""After a death the others leave their ring at once; one that has not by then does not hear of it,
and its process is ended."""
WAIT_S = 10.0
"""An island that waits for a place is answered by then, and asks again."""
AGAIN_S = 1.0
"""Between two attempts to open a meeting point."""
MEETINGS = 5
"""Attempts to open a meeting point; after the last one the conductor's process starts over."""
END_S = 30.0
"""For so long the end of the run waits for the depot; storing the final state goes on after it."""


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
        self.ring, self.snapshot, self.measures, self.lives = ring, snapshot, measures, lives
        self.failure: BaseException | None = None
        self.rules, self._ports, self._store, self._accounts = rules, ports, store, accounts
        self._now_s, self._failed = now_s, failed
        self._tasks = Tasks(self._fail)
        self._places: dict[Life, asyncio.Future[Turn | None]] = {}
        self._watched: set[Life] = set()
        self._formed = Form(0, (), Held(0), None, "")
        self._remembered_s = float("-inf")
        self._durable = asyncio.Event()  # the final state, and that it is final
        self.records = Records(store, self._tasks, measures, now_s, self._memory, self._kept)

    # --- what islands say -------------------------------------------------------------------------

    def enter(self, island: Island) -> Life:
        """Grant a life to a process of this island."""
        self.lives += 1
        life = Life(island, Incarnation(self.lives))
        watched = self._watched_island(island)
        watched.lives, watched.refused, watched.rejected = watched.lives + 1, "", False
        known = self.ring.members.get(island)
        if known is not None:
            self.feed(Lost(known.life, "its process has begun anew"))
        self._watch_over(life)
        return life

    async def ready(self, life: Life, held: Held | None, wasted: int) -> tuple[bool, Turn | None]:
        """Wait for a place in a ring: whether to ask again, and the place; None if this life gets
        none any more.

        The life may be one that a conductor before this one has granted.
        """
        known = self.ring.members.get(life.island)
        if known is not None and known.life.incarnation > life.incarnation:
            return False, None
        if life not in self._places:
            self.lives = max(self.lives, life.incarnation)
            self._watched_island(life.island)
            self._watch_over(life)
            self._places[life] = asyncio.get_running_loop().create_future()
            self.feed(Ready(life, held, wasted))
        place = self._places[life]
        done, _ = await asyncio.wait({place}, timeout=WAIT_S)
        if not done:
            return True, None
        if self._places.get(life) is place:
            del self._places[life]
        return False, place.result()

    def turned(self, life: Life, ring: int, held: Held) -> None:
        """Take in how far a ring is; what is said of another ring is passed over."""
        if ring == self.ring.ring and life in self._formed.members:
            self.feed(Turned(ring, held))

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
        if steps > 0 and self._formed.members:
            self._accounts.stepped(self._formed.members, steps, now_s)
        if not isinstance(event, Turned) or effects:
            self._store.note(now_s, event, effects)
        if before.stopping is None and self.ring.stopping is not None:
            counts.stopping_s = now_s
        if isinstance(event, Lost) and self.ring is not before:
            self._gone(event, before)
        if self.ring.broken and not before.broken and self.ring.turning:
            self._tasks.spawn(self._end_who_is_stuck(self.ring.ring))
        for effect in effects:
            self._carry_out(before, effect)
        if effects or now_s - self._remembered_s >= MEMORY_S:
            self.remember()

    def _gone(self, lost: Lost, before: Ring) -> None:
        """Forget a member that has died; one that was only out of reach asks again, and is back.

        The others of a ring that has not turned yet wait for each other inside the library, which
        only ends with their meeting point.
        """
        log.warning("%s is gone: %s", lost.life, lost.why)
        self._places.pop(lost.life, None)
        if lost.life in before.turning and self.ring.held.step <= self._formed.held.step:
            self._tasks.spawn(self._ports.part(self.ring.ring))

    def _carry_out(self, before: Ring, effect: Effect) -> None:
        match effect:
            case Form():
                self._formed = effect
                self._accounts.formed(before, effect)
                names = ", ".join(life.island for life in effect.members)
                log.info("ring %d: %s; %s", effect.ring, names, effect.why)
                self._tasks.spawn(self._form(effect))
            case Pause(ring, why):
                log.info("ring %d pauses: %s", ring, why)
                for life in self.ring.turning:
                    self._tasks.spawn(self._ports.pause(life, ring))
            case Release(life, why):
                log.info("%s is let go: %s", life, why)
                if self.ring.stage is Stage.OVER:
                    self._tasks.spawn(self._let_go(life))
                else:
                    _answer(self._places.get(life), None)
            case Finish(donor):
                self._tasks.spawn(self._finish(donor, self.ring.held))
            case _:
                assert_never(effect)

    async def _form(self, form: Form) -> None:
        """Open a meeting point, and tell the members their places. A ring that breaks before that
        has not begun: its members, which still wait, are ready for another one."""
        for attempt in count(1):
            if self._is_off(form):
                break
            try:
                address = await self._ports.meet(form.ring, len(form.members))
            except OSError as error:
                if attempt == MEETINGS:
                    raise
                log.warning("no meeting point for ring %d: %s", form.ring, error)
                await asyncio.sleep(AGAIN_S)
                continue
            if self._is_off(form):
                break
            for rank, life in enumerate(form.members):
                turn = Turn(form.ring, address, rank, len(form.members), form.held, form.donor)
                _answer(self._places.get(life), turn)
            return
        for life in form.members:
            member = self.ring.members.get(life.island)
            if member is not None and member.life == life and member.turns:
                held = form.held if member.held == form.held else None
                self.feed(Ready(life, held))

    def _is_off(self, form: Form) -> bool:
        return self.ring.ring != form.ring or self.ring.broken is not None

    async def _finish(self, donor: Life | None, wanted: Held) -> None:
        """Fetch the final state, which is the result, from any island that has it; without a donor
        it is the last snapshot."""
        ring, state = self.ring.ring, self.snapshot
        if donor is not None and self.snapshot.held != wanted:
            members = [each.life for each in self.ring.members.values() if each.held == wanted]
            asked = sorted(members, key=lambda life: life != donor)
            found = await final_state(self._ports, asked, wanted, self._now_s)
            if isinstance(found, str):
                log.error("the final state is lost: %s", found)
                self.feed(Gone(wanted, found))
                return
            state = found
        await asyncio.wait({self._tasks.spawn(self._make_durable(state, ring))}, timeout=END_S)
        self.snapshot = state  # also if the depot does not take it
        self.measures.counts.ended_s = self._now_s()
        self.feed(Ended(self.snapshot.held))

    async def _make_durable(self, state: RingState, ring: int) -> None:
        """Store the final state, and that it is final, however long the depot does not take it."""
        if self.ring.kept < state.held:
            await self.records.keep_surely(state, ring)
        await self.records.remember_surely()
        self._durable.set()

    async def _let_go(self, life: Life) -> None:
        """Tell an island that the run is over, once a conductor that comes back knows it: until
        then the island may be the only one that has the final state."""
        await self._durable.wait()
        _answer(self._places.get(life), None)

    async def _end_who_is_stuck(self, ring: int) -> None:
        """A ring has broken: end the processes that have not noticed after a while."""
        while True:
            await asyncio.sleep(STUCK_S)
            if self.ring.ring != ring or not self.ring.turning:
                return
            for life in self.ring.turning:
                log.warning("%s has not left ring %d: its process is ended", life, ring)
                self._tasks.spawn(self._ports.end(life))

    def _watched_island(self, island: Island) -> Watched:
        return self.measures.counts.islands.setdefault(island, Watched(group_name(island)))

    def _watch_over(self, life: Life) -> None:
        if life not in self._watched:
            self._watched.add(life)
            self._tasks.spawn(self._watch(life))

    async def _watch(self, life: Life) -> None:
        why = await self._ports.watch(life)
        self._watched.discard(life)
        self.feed(Lost(life, why))

    # --- the depot --------------------------------------------------------------------------------

    def _memory(self) -> Memory:
        measures, events = self.measures.memory(), self._store.events
        return Memory(self.ring, self._now_s(), measures, self.lives, events)

    def _kept(self, state: RingState, ring: int) -> None:
        """A snapshot of this ring is durable; one of a ring that has gone back behind it since is
        not gone on from."""
        passed = ring == self.ring.ring or state.held <= self._formed.held
        if passed and state.held > self.ring.kept:
            self.snapshot = max(self.snapshot, state, key=lambda each: each.held)
            self.feed(Kept(state.held))

    def _fail(self, error: BaseException) -> None:
        if error is self.failure:
            return
        log.error("the conductor cannot go on: %s", words_of(error), exc_info=error)
        self.failure = self.failure or error
        self._failed(error)


def _answer(place: asyncio.Future[Turn | None] | None, turn: Turn | None) -> None:
    if place is not None and not place.done():
        place.set_result(turn)
