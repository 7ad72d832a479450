"""The execution of the rules' effects; the outcome of each is an event.

Whatever takes long (collecting, merging, storing, publishing) is a task that ends in an event. A
version is stored before it is published, because the rules return `Publish` only in answer to
`Stored` (docs/explanation/protocol.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Protocol, assert_never

from cluster.failures import Failure
from cluster.syncer.durability_text import fragment_subject
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Ports
from coordinator.protocol import (
    Arrived,
    Ask,
    Discard,
    Effect,
    Event,
    Finish,
    Fragment,
    Granted,
    LeaseGranted,
    Left,
    Life,
    Lost,
    Merge,
    Missing,
    Publish,
    Refused,
    Release,
    Shift,
    Store,
    Stored,
    Tick,
    Void,
    Wake,
)
from coordinator.state import Rule, State

log = logging.getLogger("archipelago.syncer")
LEAVE_S = 5.0
"""Seconds for which the end of a life waits for the answer of its learner, which has left.

Otherwise the watch over the life, which ends at the same moment, could report it as lost.
"""


class EventSink(Protocol):
    """The part of the syncer that receives the outcome of each effect of an `EffectRunner`."""

    @property
    def rule(self) -> Rule:
        """The rules of the run."""
        ...

    @property
    def state(self) -> State:
        """The present state of the rules."""
        ...

    @property
    def finished(self) -> asyncio.Event:
        """Set when the run is finished."""
        ...

    def feed(self, event: Event) -> object:
        """Apply an event to the rules."""
        ...

    def broke(self, life: Life | None, failure: Failure) -> None:
        """Record a failure of an island."""
        ...

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a task; its failure is a failure of the run."""
        ...


class EffectRunner:
    """The executor of one syncer's effects, as tasks on its event loop."""

    def __init__(
        self, syncer: EventSink, ports: Ports, measures: Measures, now_s: Callable[[], float]
    ) -> None:
        self._syncer, self._ports = syncer, ports
        self._measures, self._now_s = measures, now_s
        self._parking: dict[Life, asyncio.Event] = {}
        self._collecting: dict[tuple[Life, Fragment], tuple[asyncio.Event, ...]] = {}
        self._leaving: dict[Life, asyncio.Event] = {}
        self._alarm: asyncio.TimerHandle | None = None

    def carry_out(self, effect: Effect) -> None:
        """Begin to carry out an effect; whatever takes long continues as a task."""
        match effect:
            case Granted():
                log.info("%s joins at t = %d", effect.life, self._syncer.state.t)
                self._syncer.spawn(self._watch(effect.life))
            case Refused():
                log.warning("%s may not join: %s", effect.island, effect.why)
            case Ask():
                self._syncer.spawn(self._collect(effect))
            case Merge():
                self._syncer.spawn(self._merge(effect))
            case Store():
                self._syncer.spawn(self._store(effect))
            case Publish():
                self._syncer.spawn(self._publish(effect))
            case Discard():
                log.warning("%s discarded, %s: %s", effect.contribution.id, effect.fate, effect.why)
                self._syncer.spawn(self._ports.discard(effect))
            case Void():
                self._syncer.spawn(self._ports.cease(effect))
            case Release():
                self._syncer.spawn(self._release(effect))
            case Wake():
                self._set_alarm(effect.at_s)
            case Finish():
                log.info("finished: %s", effect.why)
                self._syncer.finished.set()
            case LeaseGranted() | Shift():
                pass  # the learner gets it in the answer to its request or to its next report
            case _:
                assert_never(effect)

    async def _watch(self, life: Life) -> None:
        why = await self._ports.watch(life)
        if (left := self._leaving.get(life)) is not None:  # it was ordered to end, and has
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(left.wait(), LEAVE_S)
        self._syncer.feed(Lost(life, why))

    async def _collect(self, ask: Ask) -> None:
        """Ask a learner for a fragment, and feed its answer to the rules.

        A last request never shares the answer of one in flight, since the learner may have decided
        that answer before its last step.
        """
        key = ask.life, ask.fragment
        if ask.last:
            await self._parked(ask.life)
            for answered in self._collecting.get(key, ()):
                await answered.wait()
        answered = asyncio.Event()
        self._collecting[key] = (*self._collecting.get(key, ()), answered)
        try:
            answer = await self._ports.collect(ask.life, ask.fragment)
        finally:
            others = tuple(each for each in self._collecting.pop(key) if each is not answered)
            if others:
                self._collecting[key] = others
            answered.set()
        match answer:
            case None:
                self._syncer.feed(Missing(ask.life, ask.fragment, "nothing to hand in"))
            case str() as why:
                self._syncer.feed(Missing(ask.life, ask.fragment, why, lost=True))
            case Failure() as failure:
                self._found(ask.life, failure)
                self._syncer.feed(Missing(ask.life, ask.fragment, failure.why, lost=True))
            case contribution:
                self._syncer.feed(Arrived(contribution))

    async def _parked(self, life: Life) -> None:
        """Park the learner, once for all fragments, and return when it has the order."""
        if (parked := self._parking.get(life)) is not None:
            await parked.wait()
            return
        parked = self._parking[life] = asyncio.Event()
        await self._ports.park(life)
        parked.set()

    async def _merge(self, order: Merge) -> None:
        """Have the shard merge, unless the round is void.

        A round is void if its shard has died while the order was held back.
        """
        round_ = self._syncer.state.fragments[order.fragment].round
        if round_ is None or round_.version != order.version:
            return
        if (event := await self._ports.merge(order)) is not None:
            self._syncer.feed(event)

    async def _store(self, order: Store) -> None:
        if (outcome := await self._ports.store(order)) is None:
            return
        if outcome is not False:
            why = outcome if isinstance(outcome, str) else None
            self._measures.trouble(fragment_subject(order.fragment), why)
        self._syncer.feed(Stored(order.fragment, order.version, durable=outcome is True))

    async def _publish(self, order: Publish) -> None:
        failed, reached, uploads = await self._ports.publish(order)
        self._measures.received(self._syncer.state, uploads, self._now_s())
        for life, failure in failed:
            self._found(life, failure)
        if reached is not None:
            self._syncer.feed(reached)

    async def _release(self, order: Release) -> None:
        """Collect everything the learner has, then have it leave."""
        for p in range(self._syncer.rule.schedule.fragments):
            await self._collect(Ask(order.life, Fragment(p), last=True))
        self._parking.pop(order.life, None)
        self._leaving[order.life] = left = asyncio.Event()
        if (progress := await self._ports.leave(order.life)) is not None:
            self._syncer.feed(Left(order.life, progress))
        left.set()
        del self._leaving[order.life]

    def _set_alarm(self, at_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay_s = max(0.0, at_s - self._now_s())
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._syncer.feed(Tick())

    def close(self) -> None:
        """Cancel the alarm; the syncer ends the tasks itself."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _found(self, life: Life | None, failure: Failure) -> None:
        """Record a failure that the island has not noticed, and restart its process.

        Without a restart the process would continue.
        """
        self._syncer.broke(life, failure)
        if life is not None and failure.ends:
            self._syncer.spawn(self._ports.break_down(life, failure.why))
