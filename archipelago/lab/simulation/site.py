"""The state that all parts of a simulated cluster share: machines, shards, and clocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from archipelago.lab.checks.facts import ContributionTruth
from archipelago.lab.simulation.event_loop import VirtualLoop
from archipelago.lab.simulation.fate_checks import FateChecker
from archipelago.lab.simulation.plan import SimPlan, Span, Trait
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.shards import SimShards
from cluster.shard.retention import Retention
from cluster.syncer.shell import Syncer
from coordinator.protocol import ContributionId, Island, Life


@dataclass(slots=True)
class Machine:
    """One island's place: its link, and the process that runs there."""

    trait: Trait
    process: SimProcess | None = None
    started: int = 0
    """The number of processes that have started there."""
    up_cut_s: float = 0.0
    """Messages from the island are lost until this time."""
    down_cut_s: float = 0.0
    """Messages to the island are lost until this time."""
    loss_s: float = 0.0
    """The time until which some messages are lost."""
    twice_s: float = 0.0
    """The time until which some messages arrive twice."""
    slow_s: float = 0.0
    """Messages are slow until this time."""
    retired: bool = False
    """Whether the island is no longer wanted, so that no process starts."""
    troubles: list[Span] = field(default_factory=list[Span])
    """The times at which a fault was active, in seconds of the syncer's clock."""


class Site:
    """The state that all parts of a simulated cluster share."""

    def __init__(self, plan: SimPlan) -> None:
        self.plan, self.rng = plan, random.Random(f"{plan.seed}/world")
        self.loop = VirtualLoop()
        retention = Retention(plan.anchor, plan.rule.max_staleness, plan.store_every)
        rng = random.Random(f"{plan.seed}/shard")
        self.shards = SimShards(self.loop, plan.rule.schedule.fragments, retention, rng)
        self.machines = {trait.island: Machine(trait) for trait in plan.traits}
        self.made_of: dict[ContributionId, ContributionTruth] = {}
        self.lied: set[Life] = set()  # lives that may have lied
        self.told = FateChecker()
        self.syncer: Syncer | None = None  # while it is alive
        self.everywhere: list[Span] = []
        self.jump_s = self.disk_fails_s = self.disk_slow_s = self.shard_slow_s = 0.0

    def now_s(self) -> float:
        """Return the time on the syncer's clock."""
        return self.loop.now_s + self.jump_s

    def suspect(self, island: Island) -> None:
        """Excuse this island for a while: a message about it may cost it its life."""
        now_s, slack_s = self.now_s(), self.plan.aftermath_s
        if island in self.machines:
            self.machines[island].troubles.append((now_s - slack_s, now_s + slack_s))
