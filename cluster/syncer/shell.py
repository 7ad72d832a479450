"""The syncer's shell: it feeds events to the rules and has their effects carried out.

The shell decides nothing. Everything runs on one event loop, so that events are applied one after
another; whatever takes long is a task that ends in an event (`syncer.effects`). Effects are carried
out in the order in which the rules return them (`syncer.effect_queue`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from cluster.failures import Failure
from cluster.syncer.effect_queue import EffectQueue
from cluster.syncer.effects import EffectRunner
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Log, Ports
from cluster.tasks import Tasks
from coordinator.advance import advance
from coordinator.protocol import (
    Adopted,
    Answer,
    Drain,
    Effect,
    Event,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Publish,
    Refused,
    Report,
    ShardBack,
    ShardLost,
    Stop,
    Version,
    Vitals,
    Void,
)
from coordinator.state import Phase, Rule, State

log = logging.getLogger("archipelago.syncer")
ORDERS = (Stop, Drain)
"""Events that are flushed before they are answered, so that no order has to be repeated."""
PROMISES = (Granted, LeaseGranted, Publish)
"""Effects that are flushed before they are carried out, so that nothing is promised twice."""


class Syncer:
    """The rules, their state, and the tasks under way; for one event loop."""

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
        """Create the shell. `failed` is called if the run cannot continue, `noted` at each failure.

        Without `noted` the measures record the failures directly.
        """
        self.rule, self.state, self.measures = rule, state, measures
        self._now_s, self._tape, self._failed = now_s, tape, failed
        self._noted = measures.failed if noted is None else noted
        self._tasks = Tasks(self._fail)
        self._broken: dict[Island, Life] = {}  # the last life of each island that a failure ended
        self._effects = EffectRunner(self, ports, measures, now_s)
        self._queue = EffectQueue(self._effects.carry_out, self.spawn)
        self.finished = asyncio.Event()
        self.failure: BaseException | None = None

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Apply an event to the rules, and start everything that follows from it.

        An exception in here fails the run, whichever process sent the event.
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
            self._queue.flushed = self._tape.flush()
        self.measures.saw(before, event, self.state, effects, now_s)
        self._queue.put(effects)
        return effects

    async def durable(self) -> None:
        """Return when everything promised so far is on the tape; answers wait for this."""
        await self._queue.durable()

    # --- messages of learners ---------------------------------------------------------------------

    def join(self, event: Join) -> Granted | Refused:
        """Apply a join; return the life that is granted, or the refusal."""
        return _answer(self.feed(event), Granted, Refused)

    def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted] = ()
    ) -> Answer | Void:
        """Apply a report and the adoptions before it; return the answer."""
        for each in adopted:
            self.adopted(each)
        for effect in self.feed(event):
            if isinstance(effect, Void) and effect.life == event.life:
                return effect
        self.measures.heard(event.life, vitals, self._now_s())
        offset = self.state.members[event.life.island].offset
        return Answer(self.state.t, offset, self.state.phase is not Phase.RUNNING)

    def adopted(self, event: Adopted) -> None:
        """Record that a learner has adopted a version."""
        self.feed(event)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        """Apply a request for data; return the lease."""
        return _answer(self.feed(event), LeaseGranted, Void)

    def left(self, event: Left) -> None:
        """Record that a draining learner has left."""
        self.feed(event)

    def broke(self, life: Life | None, failure: Failure) -> None:
        """Record a failure of an island: at worst it ends this life, never the run.

        A life that is over is counted once, however many of its calls fail.
        """
        owner = "" if life is None else f" of {life}"
        log.error("a failure%s, %s: %s", owner, failure.reason, failure.why)
        if life is not None and failure.ends:
            if self._broken.get(life.island) == life:
                return
            self._broken[life.island] = life
        self._noted(life, failure)
        if life is not None and failure.ends:
            self.feed(Lost(life, failure.why))

    # --- requests of people -----------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """Stop the run: open rounds are completed, then each fragment has a last one."""
        self.feed(Stop(why))

    def drain(self, island: Island, why: str) -> None:
        """Have an island hand in everything it has, and leave."""
        self.feed(Drain(island, why))

    # --- messages of the shards' keeper -----------------------------------------------------------

    def shard_lost(self, fragments: Sequence[Fragment]) -> dict[Fragment, Version]:
        """Note that the shard of these fragments is dead; return the versions to recover."""
        self.feed(ShardLost(tuple(fragments)))
        return {p: self.state.fragments[p].version for p in fragments}

    def shard_back(self, fragments: Sequence[Fragment]) -> None:
        """Note that the shard of these fragments is back."""
        self.feed(ShardBack(tuple(fragments)))

    # --- tasks ------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run this beside everything else; if it fails, so does the run."""
        self._tasks.spawn(work)

    def _fail(self, error: BaseException) -> None:
        if error is self.failure:
            return
        log.error("the syncer has failed: %r", error)
        self.failure = self.failure or error
        self._failed(error)
        self.finished.set()

    def close(self) -> None:
        """End all tasks, such as the watches over lives."""
        self._effects.close()
        self._tasks.cancel()


Grant = TypeVar("Grant")
Denial = TypeVar("Denial")


def _answer(
    effects: tuple[Effect, ...], granted: type[Grant], denied: type[Denial]
) -> Grant | Denial:
    """Return the effect that answers a request."""
    return next(effect for effect in effects if isinstance(effect, (granted, denied)))
