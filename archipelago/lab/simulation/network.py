"""The links between islands and the rest of a simulated cluster, which lose and delay messages.

The network also starts and ends processes, like the supervisor that watches over them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from archipelago.lab.checks.facts import ContributionTruth, Poison
from archipelago.lab.simulation import lies
from archipelago.lab.simulation.event_loop import settle
from archipelago.lab.simulation.payloads import SimDifference
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.site import Machine, Site
from cluster.syncer.shell import Syncer
from coordinator.protocol import (
    Adopted,
    ContributionId,
    Island,
    Join,
    LeaseWanted,
    Life,
    Publication,
    Report,
    Version,
    Vitals,
)

SILENT_VITALS = Vitals(math.nan)
"""The vitals of learners without a model, which measure nothing."""
CALL_TIMEOUT_S = 12.0
"""Seconds after which an unanswered call has failed."""
NOTICED_S = 0.5
"""Seconds from the end of a process until its death is detected."""
AWAY_S, BACK_S = 10.0, 2.0
"""Seconds at most until a drained island comes back, and until a broken process restarts."""
BAD_LUCK = 0.35
"""The share of messages that a bad link loses, or delivers twice."""
SLOWNESS = 25.0
"""The factor by which slow links, disks and shards are slower."""


class SimNetwork:
    """The network that carries messages between processes and syncer; every process's link."""

    def __init__(self, site: Site) -> None:
        self.site, self.loop, self.rng = site, site.loop, site.rng
        self.machines, self.shards = site.machines, site.shards
        self.watched: dict[Life, asyncio.Future[str]] = {}

    # --- processes --------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        """Start a process on a machine without a live one, unless its island is retired."""
        old = machine.process
        if machine.retired:
            return
        if old is not None and not old.dead and not old.let_go:
            return
        machine.started += 1
        seed = f"{self.site.plan.seed}/{machine.trait.island}/{machine.started}"
        machine.process = SimProcess(self.site.plan, machine.trait, self.loop, self, seed)
        machine.process.begin()

    def crash(self, machine: Machine, process: SimProcess, after_s: float) -> None:
        """Kill a process; this is noticed `after_s` later."""
        process.dead = True
        for waiter in process.waiters:
            self.loop.at(self.loop.now_s + after_s, settle, waiter, None)
        if machine.process is process:
            machine.process = None
        for life, waiter in self.watched.items():
            if life.island == process.island:
                known_s = self.loop.now_s + after_s
                self.loop.at(known_s, settle, waiter, "its process ended")

    def ended(self, process: SimProcess, life: Life) -> None:
        """Notify the watchers of a life that it is over."""
        loop, now_s = self.loop, self.loop.now_s
        for other, waiter in self.watched.items():
            if other.island == life.island and other.incarnation <= life.incarnation:
                loop.at(now_s + NOTICED_S, settle, waiter, "its learner ended it")

    def left(self, process: SimProcess) -> None:
        """Bring a drained island back later, whether or not it had a life when it left."""
        back_s = self.loop.now_s + self.rng.random() * AWAY_S
        self.loop.at(back_s, self.start, self.machines[process.island])

    # --- messages ---------------------------------------------------------------------------------

    def delay_s(self, machine: Machine) -> float:
        """Draw the delay of one message, one way."""
        slow = SLOWNESS if self.loop.now_s < machine.slow_s else 1.0
        return machine.trait.latency_s * slow * (0.5 + self.rng.random())

    def lost(self, machine: Machine, cut_s: float) -> bool:
        """Draw whether a message is lost; `cut_s` is the end of the cut in its direction."""
        now_s = self.loop.now_s
        return now_s < cut_s or (now_s < machine.loss_s and self.rng.random() < BAD_LUCK)

    def _call(
        self,
        process: SimProcess,
        words: Callable[[Syncer], Any],
        reply: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        """Send a message to the syncer, then call `reply` with its answer, or `failed`."""
        machine, now_s = self.machines[process.island], self.loop.now_s
        if self.lost(machine, machine.up_cut_s):
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, failed)
            return
        self.loop.at(
            now_s + self.delay_s(machine), self._comes, process, machine, words, reply, failed
        )

    def _comes(
        self,
        process: SimProcess,
        machine: Machine,
        words: Callable[[Syncer], Any],
        reply: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        now_s = self.loop.now_s
        if self.site.syncer is None:
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, failed)
            return
        answer = words(self.site.syncer)
        if now_s < machine.twice_s and self.rng.random() < BAD_LUCK:
            late_s = self.rng.random() * SLOWNESS * machine.trait.latency_s
            self.loop.at(now_s + late_s, self._comes_again, process.island, words)
        if self.lost(machine, machine.down_cut_s):
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, failed)
            return
        self.loop.at(now_s + self.delay_s(machine), process.reached, reply, answer)

    def _comes_again(self, island: Island, words: Callable[[Syncer], Any]) -> None:
        self.site.suspect(island)
        if self.site.syncer is not None:
            words(self.site.syncer)

    async def reach(self, life: Life, *, again: bool = False) -> SimProcess | None:
        """Return the process at this life's place, once a message arrives; None if there is none.

        With `again` a lost message is sent again until it arrives.
        """
        machine = self.machines.get(life.island)
        if machine is None:
            return None
        while self.lost(machine, machine.down_cut_s):
            await self.loop.pause(CALL_TIMEOUT_S)
            if not again:
                return None
        await self.loop.pause(self.delay_s(machine))
        process = machine.process
        while process is not None and self.loop.now_s < process.frozen_s:
            await self.loop.pause(process.frozen_s - self.loop.now_s)
            process = machine.process
        return process

    # --- messages of a process --------------------------------------------------------------------

    def join(self, process: SimProcess, event: Join) -> None:
        """Send a join, and try again if no answer comes."""

        def again() -> None:
            if not process.let_go:
                process.begin()

        self._call(process, lambda syncer: syncer.join(event), process.granted, again)

    def whole(self, process: SimProcess) -> None:
        """Fetch all public fragments; a process whose fetch fails dies and restarts."""
        machine = self.machines[process.island]
        if self.lost(machine, max(machine.up_cut_s, machine.down_cut_s)):
            self.crash(machine, process, NOTICED_S)
            self.loop.at(self.loop.now_s + BACK_S, self.start, machine)
            return
        self.loop.at(
            self.loop.now_s + 2 * self.delay_s(machine), process.reached, self._give, process
        )

    def _give(self, process: SimProcess) -> None:
        if self.shards.all_there:
            process.start(self.shards.whole())
        else:
            self.loop.at(self.loop.now_s + NOTICED_S, process.reached, self._give, process)

    def can_follow(self, known: tuple[Version, int], publication: Publication) -> bool:
        """Return whether a learner can fetch what it missed between `known` and a publication."""
        return self.shards.can_follow(known, publication)

    def follow(
        self, known: tuple[Version, int], publication: Publication, payload: SimDifference
    ) -> tuple[Version, int]:
        """Return the public fragment after a publication."""
        return self.shards.follow(known, publication, payload)

    def report(self, process: SimProcess, event: Report, adopted: Sequence[Adopted]) -> None:
        """Send a report; a lying learner may change a number in it."""
        life = event.life
        if process.poison is Poison.LYING:
            self.site.lied.add(life)
            event, adopted = lies.report(
                event, adopted, self.site.plan.rule.schedule.fragments, process.rng
            )
        self._call(
            process,
            lambda syncer: syncer.report(event, SILENT_VITALS, adopted),
            lambda answer: process.answered(life, answer),
            lambda: process.unanswered(life),
        )

    def lease(self, process: SimProcess, event: LeaseWanted) -> None:
        """Ask for data; a lying learner may ask many times."""
        life = event.life
        if process.poison is Poison.LYING:
            self.site.lied.add(life)
            for _ in range(lies.floods(process.rng)):
                self._call(
                    process, lambda syncer: syncer.lease(event), lambda _: None, lambda: None
                )
        self._call(
            process,
            lambda syncer: syncer.lease(event),
            lambda answer: process.answered(life, answer),
            lambda: process.unanswered(life),
        )

    def made(self, id_: ContributionId, made: ContributionTruth) -> None:
        """Record the truth about a contribution."""
        self.site.made_of[id_] = made
        if made.poison is Poison.LYING:
            self.site.lied.add(id_.life)
        self.site.told.made(id_)

    def kept(self, keeps: Sequence[ContributionId]) -> None:
        """Check the contributions that stay in place beside an adopted version."""
        self.site.told.kept(keeps)
