"""The islands' places and the links between them and the rest, with all that links do to messages.

Also the processes' beginnings and ends, as the one who starts them and watches over them sees them.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from archipelago.lab.checks.facts import Made, Poison, Violation
from archipelago.lab.simulation import lies
from archipelago.lab.simulation.event_loop import VirtualLoop, settle
from archipelago.lab.simulation.fate_checks import Told
from archipelago.lab.simulation.payloads import SimDifference
from archipelago.lab.simulation.plan import SimPlan, Span, Trait
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.shards import Shards
from cluster.shard.retention import Retention
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
"""What learners without a model measure of themselves."""
CALL_TIMEOUT_S = 12.0
"""A call that is not answered for so long has failed."""
NOTICED_S = 0.5
"""So long after its end a process is known to be dead."""
AWAY_S, BACK_S = 10.0, 2.0
"""A drained island comes back within; so long a process that broke takes to begin anew."""
BAD_LUCK = 0.35
"""Share of the messages that a bad link loses, or says twice."""
SLOWNESS = 25.0
"""So many times longer everything takes that is said to be slow."""


@dataclass(slots=True)
class Machine:
    """One island's place: its link, and the process that is there.

    `..._s`: until then the link is cut in that direction, loses messages, says them twice, is slow.
    `troubles`: when something was wrong with it, in seconds of the syncer's clock. `retired`: it is
    not wanted any more, and no process begins.
    """

    trait: Trait
    process: SimProcess | None = None
    started: int = 0
    up_cut_s: float = 0.0
    down_cut_s: float = 0.0
    loss_s: float = 0.0
    twice_s: float = 0.0
    slow_s: float = 0.0
    retired: bool = False
    troubles: list[Span] = field(default_factory=list[Span])


class Site:
    """What all parts of a simulated cluster share."""

    def __init__(self, plan: SimPlan) -> None:
        self.plan, self.rng = plan, random.Random(f"{plan.seed}/world")
        self.loop = VirtualLoop()
        retention = Retention(plan.anchor, plan.rule.max_staleness, plan.store_every)
        rng = random.Random(f"{plan.seed}/shard")
        self.shards = Shards(self.loop, plan.rule.schedule.fragments, retention, rng)
        self.machines = {trait.island: Machine(trait) for trait in plan.traits}
        self.made_of: dict[ContributionId, Made] = {}
        self.lied: set[Life] = set()  # lives that may have said something untrue
        self.told = Told()
        self.syncer: Syncer | None = None  # while it is alive
        self.everywhere: list[Span] = []
        self.jump_s = self.disk_fails_s = self.disk_slow_s = self.shard_slow_s = 0.0

    def now_s(self) -> float:
        """The syncer's clock."""
        return self.loop.now_s + self.jump_s

    def suspect(self, island: Island) -> None:
        """What is said of this island now may cost it its life."""
        now_s, slack_s = self.now_s(), self.plan.aftermath_s
        if island in self.machines:
            self.machines[island].troubles.append((now_s - slack_s, now_s + slack_s))


class Network:
    """Carries words between processes and the syncer; it is every process's `Link`."""

    def __init__(self, site: Site) -> None:
        self.site, self.loop, self.rng = site, site.loop, site.rng
        self.machines, self.shards = site.machines, site.shards
        self.watched: dict[Life, asyncio.Future[str]] = {}

    # --- processes --------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        """A process begins, where none is."""
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
        """A process dies; `after_s` later it is known."""
        process.dead = True
        for waiter in process.waiters:
            self.loop.at(self.loop.now_s + after_s, settle, waiter, None)
        if machine.process is process:
            machine.process = None
        for life, waiter in self.watched.items():
            if life.island == process.island:
                known_s = self.loop.now_s + after_s
                self.loop.at(known_s, settle, waiter, "its process ended")

    def ended(self, who: SimProcess, life: Life) -> None:
        """A life is over, and whoever watches it is told."""
        loop, now_s = self.loop, self.loop.now_s
        for other, waiter in self.watched.items():
            if other.island == life.island and other.incarnation <= life.incarnation:
                loop.at(now_s + NOTICED_S, settle, waiter, "its learner ended it")

    def left(self, who: SimProcess) -> None:
        """An island that was drained comes back, whether or not it was in a life when it left."""
        back_s = self.loop.now_s + self.rng.random() * AWAY_S
        self.loop.at(back_s, self.start, self.machines[who.island])

    # --- messages ---------------------------------------------------------------------------------

    def delay_s(self, machine: Machine) -> float:
        slow = SLOWNESS if self.loop.now_s < machine.slow_s else 1.0
        return machine.trait.latency_s * slow * (0.5 + self.rng.random())

    def lost(self, machine: Machine, cut_s: float) -> bool:
        now_s = self.loop.now_s
        return now_s < cut_s or (now_s < machine.loss_s and self.rng.random() < BAD_LUCK)

    def _call(
        self,
        process: SimProcess,
        words: Callable[[Syncer], Any],
        heard: Callable[[Any], None],
        unheard: Callable[[], None],
    ) -> None:
        """Say something to the syncer; then either `heard` its answer, or `unheard`."""
        machine, now_s = self.machines[process.island], self.loop.now_s
        if self.lost(machine, machine.up_cut_s):
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, unheard)
            return
        self.loop.at(
            now_s + self.delay_s(machine), self._comes, process, machine, words, heard, unheard
        )

    def _comes(
        self,
        process: SimProcess,
        machine: Machine,
        words: Callable[[Syncer], Any],
        heard: Callable[[Any], None],
        unheard: Callable[[], None],
    ) -> None:
        now_s = self.loop.now_s
        if self.site.syncer is None:
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, unheard)
            return
        answer = words(self.site.syncer)
        if now_s < machine.twice_s and self.rng.random() < BAD_LUCK:
            late_s = self.rng.random() * SLOWNESS * machine.trait.latency_s
            self.loop.at(now_s + late_s, self._comes_again, process.island, words)
        if self.lost(machine, machine.down_cut_s):
            self.loop.at(now_s + CALL_TIMEOUT_S, process.reached, unheard)
            return
        self.loop.at(now_s + self.delay_s(machine), process.reached, heard, answer)

    def _comes_again(self, island: Island, words: Callable[[Syncer], Any]) -> None:
        self.site.suspect(island)
        if self.site.syncer is not None:
            words(self.site.syncer)

    async def reach(self, life: Life, *, again: bool = False) -> SimProcess | None:
        """The process where this life should be, once a message is there; None if it is not.

        `again`: what was lost is said again, until it is heard.
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

    # --- what a process says ----------------------------------------------------------------------

    def join(self, who: SimProcess, event: Join) -> None:
        def again() -> None:
            if not who.let_go:
                who.begin()

        self._call(who, lambda syncer: syncer.join(event), who.granted, again)

    def whole(self, who: SimProcess) -> None:
        """All public fragments; a process that cannot have them breaks."""
        machine = self.machines[who.island]
        if self.lost(machine, max(machine.up_cut_s, machine.down_cut_s)):
            self.crash(machine, who, NOTICED_S)
            self.loop.at(self.loop.now_s + BACK_S, self.start, machine)
            return
        self.loop.at(self.loop.now_s + 2 * self.delay_s(machine), who.reached, self._give, who)

    def _give(self, who: SimProcess) -> None:
        if self.shards.all_there:
            who.start(self.shards.whole())
        else:
            self.loop.at(self.loop.now_s + NOTICED_S, who.reached, self._give, who)

    def can_follow(self, known: tuple[Version, int], said: Publication) -> bool:
        """Is there who has what it missed?"""
        return said.previous == known[0] or self.shards.of(said.fragment).process is not None

    def follow(
        self, known: tuple[Version, int], said: Publication, payload: SimDifference
    ) -> tuple[Version, int]:
        """The public fragment, as a learner that knew it like this has it after a publication."""
        (version, value), p = known, said.fragment
        found = [] if said.previous == version else self.shards.missed(p, version, said.previous)
        if isinstance(found, list):
            newest = said.version, value + sum(each.tokens for each in (*found, payload))
        else:
            newest = found
        if (public := self.shards.history[p, newest[0]]) != newest[1]:
            words = f"f{p} {newest[0]} is {public}, a learner has {newest[1]}"
            raise Violation("the public chain", words)
        return newest

    def report(self, who: SimProcess, event: Report, adopted: Sequence[Adopted]) -> None:
        life = event.life
        if who.poison is Poison.LYING:
            self.site.lied.add(life)
            event, adopted = lies.report(
                event, adopted, self.site.plan.rule.schedule.fragments, who.rng
            )
        self._call(
            who,
            lambda syncer: syncer.report(event, SILENT_VITALS, adopted),
            lambda answer: who.heard(life, answer),
            lambda: who.unheard(life),
        )

    def lease(self, who: SimProcess, event: LeaseWanted) -> None:
        life = event.life
        if who.poison is Poison.LYING:
            self.site.lied.add(life)
            for _ in range(lies.floods(who.rng)):
                self._call(who, lambda syncer: syncer.lease(event), lambda _: None, lambda: None)
        self._call(
            who,
            lambda syncer: syncer.lease(event),
            lambda answer: who.heard(life, answer),
            lambda: who.unheard(life),
        )

    def made(self, id_: ContributionId, made: Made) -> None:
        self.site.made_of[id_] = made
        if made.poison is Poison.LYING:
            self.site.lied.add(id_.life)
        self.site.told.made(id_)

    def kept(self, keeps: Sequence[ContributionId]) -> None:
        self.site.told.kept(keeps)
