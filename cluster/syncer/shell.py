"""The syncer's shell: feeds events to the rules and carries their effects out.

It holds no opinion of its own. Everything runs on one event loop, so that events are taken in one
after another; what takes long (collecting, merging, storing, publishing) is a task that ends in an
event. The order of acting is the order of the effects: a version is stored before it is published,
because `Publish` is only ever the answer to `Stored` (docs/protocol.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import TypeVar, assert_never

from cluster.failures import Failure
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Log, Ports
from cluster.tasks import Tasks
from coordinator.advance import advance
from coordinator.protocol import (
    Adopted,
    Answer,
    Arrived,
    Ask,
    Discard,
    Drain,
    Effect,
    Event,
    Finish,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Merge,
    Missing,
    Publish,
    Refused,
    Release,
    Report,
    ShardBack,
    ShardLost,
    Shift,
    Stop,
    Store,
    Stored,
    Tick,
    Version,
    Vitals,
    Void,
    Wake,
)
from coordinator.state import Phase, Rule, State

log = logging.getLogger("archipelago.syncer")
ORDERS = (Stop, Drain)
"""Events that are flushed before they are answered: who has asked need not ask again."""
PROMISES = (Granted, LeaseGranted, Publish)
"""Effects that are flushed before they are carried out: nothing promised is ever promised twice."""
FLUSH_TIMEOUT_S = 6.0
"""A little longer than a tape takes to notice that its depot is silent."""


class Syncer:
    """The rules, their state, and the tasks under way; to be used on one event loop."""

    def __init__(
        self,
        rule: Rule,
        state: State,
        ports: Ports,
        *,
        now_s: Callable[[], float],
        tape: Log,
        measures: Measures,
        failed: Callable[[BaseException], None] = lambda error: None,
        noted: Callable[[Life | None, Failure], None] | None = None,
    ) -> None:
        """`failed`: the run cannot go on. `noted`: an island has failed; the measures, if there is
        nobody who keeps it for them."""
        self.rule, self.state, self.measures = rule, state, measures
        self._ports, self._now_s, self._tape, self._failed = ports, now_s, tape, failed
        self._noted = measures.failed if noted is None else noted
        self._tasks = Tasks(self._fail)
        self._parking: dict[Life, asyncio.Event] = {}
        self._collecting: dict[tuple[Life, Fragment], tuple[asyncio.Event, ...]] = {}
        self._broken: dict[Island, Life] = {}  # the last life of each that a failure has ended
        self._alarm: asyncio.TimerHandle | None = None
        self._flushed: Future[None] | None = None  # the last flush, if it took its time
        self._held: deque[tuple[Future[None] | None, tuple[Effect, ...]]] = deque()
        self.finished = asyncio.Event()
        self.failure: BaseException | None = None

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Let the rules take in an event; start everything that follows from it.

        What goes wrong in here fails the run, whoever it was that had something to say.
        """
        try:
            return self._take_in(event)
        except Exception as error:
            self._fail(error)
            raise

    def _take_in(self, event: Event) -> tuple[Effect, ...]:
        now_s = self._now_s()
        before, (self.state, effects) = self.state, advance(self.rule, self.state, event, now_s)
        self._tape.append(now_s, event, effects)
        if isinstance(event, ORDERS) or any(isinstance(effect, PROMISES) for effect in effects):
            self._flushed = self._tape.flush()
        self.measures.saw(before, event, self.state, effects, now_s)
        if is_done(self._flushed) and not self._held:
            for effect in effects:
                self._carry_out(effect)
        elif effects:
            self._hold(effects)
        return effects

    def _hold(self, effects: tuple[Effect, ...]) -> None:
        """Queue effects until the tape is durable up to their event; they are released in order."""
        self._held.append((self._flushed, effects))
        if len(self._held) == 1:
            self.spawn(self._let_go())

    async def _let_go(self) -> None:
        while self._held:
            flushed, effects = self._held[0]
            await done(flushed)
            for effect in effects:
                self._carry_out(effect)
            self._held.popleft()

    async def durable(self) -> None:
        """Return when everything promised so far is on the tape: whoever is answered waits."""
        await done(self._flushed)

    # --- what learners say ------------------------------------------------------------------------

    def join(self, event: Join) -> Granted | Refused:
        return _answer(self.feed(event), Granted, Refused)

    def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted] = ()
    ) -> Answer | Void:
        """`adopted`: what happened to the learner before."""
        for each in adopted:
            self.adopted(each)
        for effect in self.feed(event):
            if isinstance(effect, Void) and effect.life == event.life:
                return effect
        self.measures.heard(event.life, vitals)
        offset = self.state.members[event.life.island].offset
        return Answer(self.state.t, offset, self.state.phase is not Phase.RUNNING)

    def adopted(self, event: Adopted) -> None:
        self.feed(event)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        return _answer(self.feed(event), LeaseGranted, Void)

    def left(self, event: Left) -> None:
        self.feed(event)

    def broke(self, life: Life | None, failure: Failure) -> None:
        """An island has failed: that is its own affair, and at worst the end of this life, which is
        counted once however many of its calls come to nothing."""
        whose = "" if life is None else f" of {life}"
        log.error("a failure%s, %s: %s", whose, failure.reason, failure.why)
        if life is not None and failure.ends:
            if self._broken.get(life.island) == life:
                return
            self._broken[life.island] = life
        self._noted(life, failure)
        if life is not None and failure.ends:
            self.feed(Lost(life, failure.why))

    def _found(self, life: Life | None, failure: Failure) -> None:
        """Take in a failure that the island does not know of: its process goes on until it is
        told."""
        self.broke(life, failure)
        if life is not None and failure.ends:
            self.spawn(self._ports.break_down(life, failure.why))

    # --- what people say --------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        self.feed(Stop(why))

    def drain(self, island: Island, why: str) -> None:
        self.feed(Drain(island, why))

    # --- what the shards' keeper says -------------------------------------------------------------

    def shard_lost(self, fragments: Sequence[Fragment]) -> dict[Fragment, Version]:
        """The shard of these is dead; with which versions it must come back."""
        self.feed(ShardLost(tuple(fragments)))
        return {p: self.state.fragments[p].version for p in fragments}

    def shard_back(self, fragments: Sequence[Fragment]) -> None:
        """The shard of these is back."""
        self.feed(ShardBack(tuple(fragments)))

    # --- effects ----------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Granted():
                log.info("%s joins at t = %d", effect.life, self.state.t)
                self.spawn(self._watch(effect.life))
            case Refused():
                log.warning("%s may not join: %s", effect.island, effect.why)
            case Ask():
                self.spawn(self._collect(effect))
            case Merge():
                self.spawn(self._merge(effect))
            case Store():
                self.spawn(self._store(effect))
            case Publish():
                self.spawn(self._publish(effect))
            case Discard():
                log.warning("%s discarded, %s: %s", effect.contribution.id, effect.fate, effect.why)
                self.spawn(self._ports.discard(effect))
            case Void():
                self.spawn(self._ports.cease(effect))
            case Release():
                self.spawn(self._release(effect))
            case Wake():
                self._set_alarm(effect.at_s)
            case Finish():
                log.info("finished: %s", effect.why)
                self.finished.set()
            case LeaseGranted() | Shift():
                pass  # said in the answer to whoever asked, or to the next report
            case _:
                assert_never(effect)

    async def _watch(self, life: Life) -> None:
        self.feed(Lost(life, await self._ports.watch(life)))

    async def _collect(self, ask: Ask) -> None:
        """Ask a learner, and feed what it answers. A last question is a question of its own: the
        answer to one that is on its way may have been decided before the last step."""
        key = ask.life, ask.fragment
        if ask.last:
            await self._parked(ask.life)
            for answered in self._collecting.get(key, ()):
                await answered.wait()
        answered = asyncio.Event()
        self._collecting[key] = (*self._collecting.get(key, ()), answered)
        try:
            handed = await self._ports.collect(ask.life, ask.fragment)
        finally:
            others = tuple(each for each in self._collecting.pop(key) if each is not answered)
            if others:
                self._collecting[key] = others
            answered.set()
        match handed:
            case None:
                self.feed(Missing(ask.life, ask.fragment, "nothing to hand in"))
            case str() as why:
                self.feed(Missing(ask.life, ask.fragment, why, lost=True))
            case Failure() as failure:
                self._found(ask.life, failure)
                self.feed(Missing(ask.life, ask.fragment, failure.why, lost=True))
            case contribution:
                self.feed(Arrived(contribution))

    async def _parked(self, life: Life) -> None:
        """Park the learner, once for all fragments, and return when it knows."""
        if (parked := self._parking.get(life)) is not None:
            await parked.wait()
            return
        parked = self._parking[life] = asyncio.Event()
        await self._ports.park(life)
        parked.set()

    async def _merge(self, order: Merge) -> None:
        """Have the order carried out, unless its shard has died while this was held back: then its
        round is void."""
        round_ = self.state.fragments[order.fragment].round
        if round_ is None or round_.version != order.version:
            return
        if (event := await self._ports.merge(order)) is not None:
            self.feed(event)

    async def _store(self, order: Store) -> None:
        if (said := await self._ports.store(order)) is None:
            return
        if said is not False:
            self.measures.trouble("fragments", said if isinstance(said, str) else None)
        self.feed(Stored(order.fragment, order.version, durable=said is True))

    async def _publish(self, order: Publish) -> None:
        failed, reached = await self._ports.publish(order)
        for life, failure in failed:
            self._found(life, failure)
        if reached is not None:
            self.feed(reached)

    async def _release(self, order: Release) -> None:
        """Collect everything the learner has, then let it go."""
        for p in range(self.rule.schedule.fragments):
            await self._collect(Ask(order.life, Fragment(p), last=True))
        self._parking.pop(order.life, None)
        if (progress := await self._ports.leave(order.life)) is not None:
            self.feed(Left(order.life, progress))

    def _set_alarm(self, at_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay_s = max(0.0, at_s - self._now_s())
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self.feed(Tick())

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Have this done beside everything else; if it fails, so does the run."""
        self._tasks.spawn(work)

    def _fail(self, error: BaseException) -> None:
        if error is self.failure:
            return
        log.error("the syncer cannot go on: %r", error)
        self.failure = self.failure or error
        self._failed(error)
        self.finished.set()

    def close(self) -> None:
        """End all tasks, such as watching over lives."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._tasks.cancel()


def is_done(flushed: Future[None] | None) -> bool:
    """Return whether a flush is over.

    Errors: what it met that no storage raises: nothing may count as durable then.
    """
    if flushed is None or not flushed.done():
        return flushed is None
    flushed.result()
    return True


async def done(flushed: Future[None] | None) -> None:
    """Wait for a flush, not for ever: what cannot be made durable is not, as with a full disk.

    Errors: as `is_done`.
    """
    if not is_done(flushed) and flushed is not None:
        waiting = asyncio.wrap_future(flushed)
        await asyncio.wait([waiting], timeout=FLUSH_TIMEOUT_S)
        if waiting.done():
            waiting.result()


Yes = TypeVar("Yes")
No = TypeVar("No")


def _answer(effects: tuple[Effect, ...], yes: type[Yes], no: type[No]) -> Yes | No:
    """The one effect among these that answers whoever asked."""
    return next(effect for effect in effects if isinstance(effect, (yes, no)))
