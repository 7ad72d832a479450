"""The state that all parts of a simulated cluster share: machines, shards, and clocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from archipelago.lab.checks.facts import ContributionTruth
from archipelago.lab.simulation.fate_checks import FateChecker
from archipelago.lab.simulation.plan import SimPlan, Span, Trait
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.shards import SimShards
from archipelago.lab.virtual.site import IslandPlace, VirtualSite
from cluster.shard.retention import Retention
from coordinator.protocol import ContributionId, Island, Life


@dataclass(slots=True, kw_only=True)
class Machine(IslandPlace[SimProcess]):
    """One island's place: its link, and the process that runs there."""

    trait: Trait
    loss_s: float = 0.0
    """The time until which some messages are lost."""
    twice_s: float = 0.0
    """The time until which some messages arrive twice."""
    slow_s: float = 0.0
    """Messages are slow until this time."""
    troubles: list[Span] = field(default_factory=list[Span])
    """The times at which a fault was active, in seconds of the syncer's clock."""


class SimSite(VirtualSite[Machine]):
    """The state that all parts of a simulated cluster share."""

    def __init__(self, plan: SimPlan) -> None:
        super().__init__(plan.seed, [Machine(trait.island, trait=trait) for trait in plan.traits])
        self.plan, self.rng = plan, random.Random(f"{plan.seed}/world")
        retention = Retention(plan.anchor, plan.rule.max_staleness, plan.store_every)
        rng = random.Random(f"{plan.seed}/shard")
        self.shards = SimShards(self.loop, plan.rule.schedule.fragments, retention, rng)
        self.made_of: dict[ContributionId, ContributionTruth] = {}
        self.lied: set[Life] = set()  # lives that may have lied
        self.told = FateChecker()
        self.everywhere: list[Span] = []
        self.jump_s = self.disk_fails_s = self.disk_slow_s = self.shard_slow_s = 0.0

    def now_s(self) -> float:
        """Return the time on the syncer's clock."""
        return self.loop.now_s + self.jump_s

    def close(self) -> None:
        """Cancel all requests of the shards to learners."""
        self.shards.close()

    def suspect(self, island: Island) -> None:
        """Excuse this island for a while: a message about it may cost it its life."""
        now_s, slack_s = self.now_s(), self.plan.aftermath_s
        if island in self.places:
            self.places[island].troubles.append((now_s - slack_s, now_s + slack_s))
