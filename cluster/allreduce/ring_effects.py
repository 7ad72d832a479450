"""The execution of the rules' effects: rings form, pause and end, and islands are released.

Long operations are tasks of the owner that end in an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, assert_never

from cluster.allreduce.accounts import RingAccounts
from cluster.allreduce.final_state import final_state
from cluster.allreduce.meeting_point import open_meeting_point
from cluster.allreduce.ports import RingPorts
from cluster.allreduce.records import Records
from cluster.allreduce.ring import Ring, RingStage
from cluster.allreduce.ring_messages import (
    START,
    Effect,
    Ended,
    Event,
    FinalStateLost,
    Form,
    Pause,
    RingFinish,
    RingMemberLost,
    RingMemberReady,
    RingRelease,
    TrainingPosition,
)
from cluster.allreduce.ring_places import RingPlaces
from cluster.allreduce.saved_state import RingState
from cluster.syncer import run_time
from cluster.syncer.measures import Measures
from cluster.tasks import Tasks
from coordinator.protocol import Life

log = logging.getLogger("archipelago.conductor")
STUCK_S = 15.0
"""Seconds after a death until the processes of members that are still in the ring are ended.

The other members leave a broken ring at once; one that has not by then will not notice the death.
"""
END_S = 30.0
"""Seconds that the end of the run waits for the depot; the final state is still stored after it."""


class RingRun(Protocol):
    """The run that the effects belong to."""

    ring: Ring
    """The state of the rules."""
    snapshot: RingState
    """The newest snapshot, and in the end the result."""

    def feed(self, event: Event) -> None:
        """Pass an event to the rules."""
        ...


class RingEffects:
    """The executor of one run's effects; for one event loop."""

    def __init__(
        self,
        run: RingRun,
        ports: RingPorts,
        places: RingPlaces,
        records: Records,
        measures: Measures,
        accounts: RingAccounts,
        tasks: Tasks,
        now_s: Callable[[], float],
    ) -> None:
        """Begin without a ring. `tasks`: of the owner, which gets their exceptions."""
        self._run, self._ports, self._places, self._records = run, ports, places, records
        self._measures, self._accounts, self._tasks = measures, accounts, tasks
        self._now_s = now_s
        self.formed = Form(0, (), START, None, "")
        """The ring that formed last."""

    def carry_out(self, before: Ring, effect: Effect) -> None:
        """Carry out an effect, or start a task that does. `before`: the state before the event."""
        match effect:
            case Form():
                self.formed = effect
                self._accounts.formed(before, effect)
                names = ", ".join(life.island for life in effect.members)
                log.info("ring %d: %s; %s", effect.ring, names, effect.why)
                self._tasks.spawn(self._form(effect))
            case Pause(ring, why):
                log.info("ring %d pauses: %s", ring, why)
                for life in self._run.ring.turning:
                    self._tasks.spawn(self._ports.pause(life, ring))
            case RingRelease(life, why):
                log.info("%s is released: %s", life, why)
                if self._run.ring.stage is RingStage.OVER:
                    self._tasks.spawn(self._release(life))
                else:
                    self._places.answer(life, None)
            case RingFinish(donor):
                self._tasks.spawn(self._finish(donor, self._run.ring.held))
            case _:
                assert_never(effect)

    def forget(self, lost: RingMemberLost, before: Ring) -> None:
        """Forget a member that has died; one that was only unreachable asks again and rejoins.

        If the ring has not taken a step yet, the other members wait for each other inside the
        collective library. Only closing their meeting point ends that.
        """
        log.warning("%s is lost: %s", lost.life, lost.why)
        self._places.forget(lost.life)
        ring = self._run.ring
        if lost.life in before.turning and ring.held.step <= self.formed.held.step:
            self._tasks.spawn(self._ports.part(ring.ring))

    def end_stuck_members(self) -> None:
        """End the processes that are still in a broken ring after `STUCK_S`, again and again."""
        self._tasks.spawn(self._end_stuck_members(self._run.ring.ring))

    async def _form(self, form: Form) -> None:
        """Open a meeting point, and send the members their places.

        If the ring breaks before that, its members still wait and are ready for another ring.
        """
        address = await open_meeting_point(self._ports, form, lambda: self._is_off(form))
        if address is not None:
            self._places.assign(form, address)
            return
        for life in form.members:
            member = self._run.ring.members.get(life.island)
            if member is not None and member.life == life and member.turns:
                held = form.held if member.held == form.held else None
                self._run.feed(RingMemberReady(life, held))

    def _is_off(self, form: Form) -> bool:
        return self._run.ring.ring != form.ring or self._run.ring.broken is not None

    async def _finish(self, donor: Life | None, wanted: TrainingPosition) -> None:
        """Fetch the final state, the result, from any island that has it, and store it.

        Without a donor the result is the last snapshot.
        """
        run = self._run
        ring, state = run.ring.ring, run.snapshot
        if donor is not None and state.held != wanted:
            members = [each.life for each in run.ring.members.values() if each.held == wanted]
            candidates = sorted(members, key=lambda life: life != donor)
            found = await final_state(self._ports, candidates, wanted, self._now_s)
            if isinstance(found, str):
                log.error("the final state is lost: %s", found)
                run.feed(FinalStateLost(wanted, found))
                return
            state = found
        stored = run.ring.kept >= state.held
        durable = self._tasks.spawn(self._records.make_final(state, ring, stored=stored))
        await asyncio.wait({durable}, timeout=END_S)
        run.snapshot = state  # even if the depot has not stored it
        counts = self._measures.counts
        counts.ended_s = self._now_s()
        run_time.ended(counts, counts.ended_s)
        run.feed(Ended(state.held))

    async def _release(self, life: Life) -> None:
        """Notify an island that the run is over, once the final state is durable.

        Until then the island may be the only one that has the final state.
        """
        await self._records.final.wait()
        self._places.answer(life, None)

    async def _end_stuck_members(self, ring: int) -> None:
        while True:
            await asyncio.sleep(STUCK_S)
            now = self._run.ring
            if now.ring != ring or not now.turning:
                return
            for life in now.turning:
                log.warning("%s has not left ring %d: its process is ended", life, ring)
                self._tasks.spawn(self._ports.end(life))
