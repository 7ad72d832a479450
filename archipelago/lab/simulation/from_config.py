"""`archipelago simulate CONFIG.toml`: a configured run with its fault plan, in virtual time.

The rules, the syncer's shell and the fault plan are those of `archipelago run`. Only the duration
of the learners' work matters, which is one second a step at full speed. Each fault happens as soon
as the syncer's clock t reaches its step, as on Ray. After every event the judge checks the rules.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from archipelago.lab.simulation.fuzz_failures import BREAKAGES
from archipelago.lab.simulation.plan import (
    LAYOUT,
    LOSSY,
    TOO_MANY_EVENTS,
    SimFault,
    SimPlan,
    Trait,
    Trouble,
)
from archipelago.lab.simulation.poison import LOUDER
from archipelago.lab.simulation.world import SimWorld
from cluster.config.fault_kinds import FAULTS, SERVICES, FaultKind
from cluster.config.rule import group_of, rule_for, shards_come_back_alone
from cluster.config.schema import Config, Harm
from cluster.config.schema import PlannedFault as Planned
from cluster.config.values import AUTO
from cluster.fleet.fault_plan import FaultPlan
from cluster.names import SHARD, SYNCER
from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.membership import live
from coordinator.protocol import Anchor, Island, Region
from coordinator.state import Phase

STEP_S = 1.0
"""The step time, in seconds, of an island whose speed is 1."""
LEARNER_BACK_S, NODE_BACK_S, SYNCER_BACK_S = 8.0, 20.0, 3.0
"""Seconds from a kill to the next process, as measured in docs/lab/benchmarks.md (recovery)."""
LEEWAY = 4
"""The factor of the expected duration, and of the events, above which a run will not end."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result that `simulate CONFIG.toml` prints."""

    t: int
    merges: int
    events: int
    lasts_s: float
    """The duration in virtual seconds."""
    faults: int
    """The number of faults that have struck."""
    left_out: list[str]
    """The planned faults without a counterpart in the simulator, each with the reason."""
    violations: int
    violated: str | None
    """The invariant that ended the run, if `violations` is 1."""


def simulate(config: Config, seed: int) -> Simulated:
    """Play the run to its end, or to the first violation; the seed draws latencies and jitter.

    Errors: `UserMistake` if the run does not use the rules of `coordinator`.
    """
    if (mode := config.run.mode).sums_gradients:
        raise UserMistake(
            f'run.mode = "{mode}": only runs that merge contributions are simulated; a ring of '
            "gradients has other rules (cluster/allreduce/ring.py)"
        )
    if config.sync.every == AUTO:
        raise UserMistake(
            'sync.every: "auto" is chosen from a measured link and step, and the simulator has no '
            "link; give a number"
        )
    counterparts = [(each, counterpart(each, config)) for each in config.faults.plan]
    planned_faults = [(each, fault) for each, fault in counterparts if isinstance(fault, SimFault)]
    world = SimWorld(plan_of(config, [fault for _, fault in planned_faults], seed))
    world.site.loop.at(0.0, _Watch(world, planned_faults, config.monitor.refresh_s).look)
    violated: str | None = None
    try:
        world.run()
    except BREAKAGES as error:
        violated = f"{error}" if isinstance(error, ArchipelagoError) else repr(error)
    last = world.seat.states[-1] if world.seat.states else None
    return Simulated(
        t=0 if last is None else last.t,
        merges=0 if last is None else last.merges,
        events=len(world.seat.tape),
        lasts_s=world.site.loop.now_s,
        faults=world.faults.struck,
        left_out=[
            f"{each.kind} of {each.island} at step {each.at_step}: {reason}"
            for each, reason in counterparts
            if isinstance(reason, str)
        ],
        violations=0 if violated is None else 1,
        violated=violated,
    )


def plan_of(config: Config, troubles: Sequence[SimFault], seed: int) -> SimPlan:
    """Return the run as a plan without faults, since those wait for a step."""
    rng = random.Random(f"{seed}/config")
    rule = rule_for(config, LAYOUT)
    traits = tuple(_trait(config, island, rng) for island in config.island_names)
    ending_s = [fault.lasts_s * fault.factor for fault in troubles if math.isfinite(fault.lasts_s)]
    steps_s = rule.steps * max(trait.slowest_s for trait in traits)
    return SimPlan(
        f"{seed}/config",
        rule,
        traits,
        carry=config.sync.adopt == "carry",
        faults=(),
        healed_s=LEEWAY * (steps_s + sum(ending_s)),
        stop_s=math.inf,
        merge_s=rng.uniform(0, 0.2) * STEP_S,
        store_s=rng.uniform(0, 0.4) * STEP_S,
        store_every=config.durability.counted,
        anchor=Anchor(config.sync.anchor),
        lock_step=config.sync.least_overlap if config.run.mode.lock_step else None,
        most_events=TOO_MANY_EVENTS + LEEWAY * rule.steps * (2 + len(traits) * 4),
        unruly=False,
    )


def _trait(config: Config, island: Island, rng: random.Random) -> Trait:
    group = group_of(config, island)
    return Trait(
        island,
        joins_s=rng.uniform(0, 4) * STEP_S,
        step_s=max(STEP_S / group.speed, group.step_s),
        jitter=rng.uniform(0, 0.3),
        tokens=group.batch_size * config.data.window,
        windows=group.batch_size,
        latency_s=rng.uniform(0.01, 0.15) * STEP_S,
        region=None if group.region is None else Region(group.region),
        hosts=group.hosts,
        group=group.group,
    )


def counterpart(harm: Harm, config: Config) -> SimFault | str:
    """Return the simulator's form of a planned fault, to strike at once, or why there is none."""
    hits_all = harm.island in SERVICES  # then any island can be named
    island = config.island_names[0] if hits_all else Island(harm.island)

    def fault(trouble: Trouble, lasts_s: float, factor: float = 1.0) -> SimFault | str:
        is_lock_step = config.sync.least_overlap == 0 or config.run.mode.lock_step
        if is_lock_step and trouble in LOSSY:
            return "where learners wait for adoption, the simulator loses no words"
        return SimFault(0.0, trouble, island, lasts_s, factor)

    kind = harm.kind
    if hits_all:
        if kind is FaultKind.KILL and harm.island in (SYNCER, SHARD):
            shard_only = harm.island == SHARD and shards_come_back_alone(config)
            return fault(Trouble.SHARD if shard_only else Trouble.RESTART, SYNCER_BACK_S)
        if kind is FaultKind.DISK and harm.island == SHARD:
            return fault(Trouble.DISK, harm.for_s)
        return f"the simulator has no {harm.island} to which that could happen"
    if not (simulated := FAULTS[kind].simulated):
        return "an island has no disk"
    if kind is FaultKind.SCALE and abs(harm.factor) < LOUDER:
        return f"the simulator knows no factor below {LOUDER:g}"
    lasts_s = {FaultKind.KILL: LEARNER_BACK_S, FaultKind.NODE: NODE_BACK_S}.get(kind, math.inf)
    if "for_s" in FAULTS[kind].takes:
        lasts_s = harm.for_s
    factor = max(1.0, harm.factor) if kind is FaultKind.SLOW else 1.0
    return fault(Trouble(simulated), lasts_s, factor)


class _Watch:
    """A periodic check for faults that are due, as the fleet does it on Ray."""

    def __init__(
        self, world: SimWorld, known: Sequence[tuple[Planned, SimFault]], every_s: float
    ) -> None:
        self._world, self._every_s = world, every_s
        self._plan = FaultPlan([planned for planned, _ in known])
        self._faults = [fault for _, fault in known]

    def look(self) -> None:
        """Strike the faults that are due, and schedule the next check."""
        site = self._world.site
        if (syncer := site.syncer) is not None and syncer.state.phase is Phase.RUNNING:
            for number in self._plan.due_at(syncer.state.t, live(syncer.state.members).keys()):
                self._plan.struck(number)
                self._world.faults.strike(self._faults[number]._replace(at_s=site.loop.now_s))
        site.loop.at(site.loop.now_s + self._every_s, self.look)
