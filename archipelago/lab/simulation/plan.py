"""What a simulated run is like and what breaks in it: drawn from one seed, before it begins."""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from coordinator.direction_gate import Watch
from coordinator.protocol import Anchor, Island, Region
from coordinator.schedule import Schedule
from coordinator.state import Rule

LAYOUT = "layout"
EVENTS_WANTED, FAULTS_WANTED, ROUNDS_WANTED = 300, 3, 2
"""What a schedule has at least: events, faults, and rounds of each fragment."""
EVENTS_AIMED = 270
"""Events that a schedule is laid out for, since some of its time will be lost."""
FAULTY_SHARE, HEALED_SHARE = 0.55, 0.62
"""Of the expected duration: faults begin before the one; at the other everything is mended."""
EXCUSED_S, EXCUSED_STEPS = 20.0, 5.0
PATIENCE_S, PATIENCE_STEPS = 100.0, 80.0
LONGEST_BARRED_S = 320.0
"""So long an island that was quarantined again and again may stay away after all is mended."""
TOO_MANY_EVENTS = 30_000
"""A run drawn at random that takes more than these turns in circles."""
REGIONS: tuple[tuple[Region | None, ...], ...] = ((None,), (None, Region("eu"), Region("us")))
MOST_TOKENS = 9
"""Of a step, and so of a window."""
HOSTS = (1, 2, 4)
"""Of islands, by their names."""
SLOWER = 4.0
"""So many times longer a step takes that is made slow at random."""
OFTENER = 3
"""Sampling weight of crashes of syncer and shards: their timing matters most."""
LOCK_STEP_SHARE = 0.75
FOLLOWS_SHARE = 0.7
"""Of the runs with the least overlap, in how many it follows what rounds take."""
"""Of the schedules whose learners wait for adoption: so many are in lock-step (`run.mode`)."""
STOPPED_SHARE = 0.6
"""Of the schedules: ended by request, once all is mended and enough has happened."""


class Trouble(StrEnum):
    """The faults of a simulated run; `from_config` has those that a configuration can ask for."""

    CRASH = "crash"  # a process dies, and Ray says so
    VANISH = "vanish"  # ... and nobody says so for a while
    HANG = "hang"  # a process stands still, then goes on as if nothing had been
    STUCK = "stuck"  # its step does not end for a while, and it says that it is there
    SLOW = "slow"  # its steps take so many times as long
    CUT_UP = "cut-up"  # the learner cannot be heard
    CUT_DOWN = "cut-down"  # the learner cannot hear
    CUT = "cut"  # neither
    LOSS = "loss"  # messages get lost
    TWICE = "twice"  # messages come twice, the second one late
    DELAY = "delay"  # messages take long, and overtake one another
    ECHO = "echo"  # words said long ago come again
    NAN = "nan"  # poisoned, from here to LYING: see `Poison`
    INCURABLE = "incurable"  # not finite in every later life of the process either
    LOUD = "loud"
    FLIPPED = "flipped"
    ROTTEN = "rotten"
    COUNTERS = "counters"
    LAYOUT = "layout"
    FUTURE = "future"
    LYING = "lying"  # one number of a message is changed, now and then: `lies`
    JUMP = "jump"  # the syncer's clock jumps forward
    DISK = "disk"  # nothing can be made durable
    SLOW_DISK = "slow-disk"
    SLOW_SHARD = "slow-shard"
    DRAIN = "drain"  # an island shall leave; it comes back later
    RUMOUR = "rumour"  # the shell believes a life lost that is not
    DOUBLE = "double"  # a second process joins under the same name
    STRAY = "stray"  # a drain of nobody, a join of another layout
    RESTART = "restart"  # the syncer dies and comes back from what is durable
    SHARD = "shard"  # the process of some fragments dies, and the syncer lives on


Span = tuple[float, float]
"""From, to: seconds of the syncer's clock."""
EVERYWHERE = frozenset(
    {
        Trouble.JUMP,
        Trouble.DISK,
        Trouble.SLOW_DISK,
        Trouble.SLOW_SHARD,
        Trouble.RESTART,
        Trouble.SHARD,
    }
)
"""Troubles that are not one island's."""


class SimFault(NamedTuple):
    """One trouble of one island (of the syncer, the shard or the disk where it is not one's).

    `lasts_s`: infinite for a drained island that does not come back, and for poison that no new
    life mends. `factor`: of a step's time, if the trouble is `SLOW`.
    """

    at_s: float
    trouble: Trouble
    island: Island
    lasts_s: float
    factor: float = SLOWER

    @property
    def until_s(self) -> float:
        return self.at_s + self.lasts_s


@dataclass(frozen=True, slots=True)
class Trait:
    """What one island is like; a step takes `step_s`, give or take `jitter` of it.

    `tokens` and `windows`: trained and read in one step; `latency_s`: of its link, one way;
    `region`: whose windows it reads; `hosts`: so many hand in a part each; `group`: it says that it
    is of this one.
    """

    island: Island
    joins_s: float
    step_s: float
    jitter: float
    tokens: int
    windows: int
    latency_s: float
    region: Region | None = None
    hosts: int = 1
    group: str = "group"

    @property
    def slowest_s(self) -> float:
        """The longest that a step takes."""
        return self.step_s * (1 + self.jitter)


@dataclass(frozen=True, slots=True)
class SimPlan:
    """One schedule: the rule under test, the islands, what breaks, and when all is mended.

    `store_every`: as `durability.every`; `anchor`: as `sync.anchor`. `lock_step`: the overlap of
    learners that wait for what is merged, up to the last step of the run; None: they wait for
    nothing but what the rule says. `most_events`: with more the run turns in circles. `unruly`: it
    was drawn at random, so that it is mended at some time, and when it has ended more happens that
    does not matter any more.
    """

    seed: str
    rule: Rule
    traits: tuple[Trait, ...]
    carry: bool
    faults: tuple[SimFault, ...]
    healed_s: float
    stop_s: float
    merge_s: float
    store_s: float
    store_every: int
    anchor: Anchor
    lock_step: int | None
    most_events: int = TOO_MANY_EVENTS
    unruly: bool = True

    def __post_init__(self) -> None:
        """Errors: `ValueError` if learners would wait for what is merged without them, which may be
        for ever; the door lets no such run in (`cluster.config.modes`)."""
        if self.lock_step is not None and self.rule.min_quorum < len(self.traits):
            raise ValueError(f"lock-step with a quorum of {self.rule.min_quorum}: all are needed")

    @property
    def slowest_s(self) -> float:
        return max(trait.slowest_s for trait in self.traits)

    @property
    def aftermath_s(self) -> float:
        """So long before and after a fault its island is excused."""
        return EXCUSED_S + EXCUSED_STEPS * self.slowest_s

    @property
    def patience_s(self) -> float:
        """So long a round may take when nothing is broken any more, or has just been mended."""
        return PATIENCE_S + PATIENCE_STEPS * self.slowest_s + (self.rule.grace_s or 0.0)

    @property
    def limit_s(self) -> float:
        """By then it must have ended, even if each step needs a whole round."""
        mended_s = self.healed_s + LONGEST_BARRED_S
        return mended_s + 2 * self.patience_s + 4 * self.rule.steps * self.slowest_s


def draw(seed: str, *, stretch: float = 1) -> SimPlan:
    """A random plan; `stretch` makes the run so many times longer."""
    rng = random.Random(seed)
    count = rng.randint(1, 8)
    quorum = rng.randint(1, count)
    fragments = rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6))
    every = fragments + rng.choice((0, 0, 1, 2, 3))
    overlap = rng.choice((0, 1, 2, 2, 3))
    usual_s = math.exp(rng.uniform(math.log(0.3), math.log(3.0)))
    regions = rng.choice(REGIONS)
    traits = tuple(_trait(rng, f"i{i}", usual_s, regions) for i in range(count))
    pace_s = sorted(trait.step_s for trait in traits)[quorum - 1]
    per_step = count * (1 + 2 * fragments / every) + 2 * fragments / every
    aimed = max(ROUNDS_WANTED * every + 2, EVENTS_AIMED / per_step)
    steps = math.ceil(aimed * stretch)
    lasts_s = steps * pace_s
    stopped = rng.random() < STOPPED_SHARE
    rule = Rule(
        Schedule(every, fragments),
        LAYOUT,
        steps,
        min_quorum=quorum,
        grace_s=rng.choice((None, None, 0.0, 0.5 * usual_s, 3.0 * usual_s)),
        overlap=overlap,
        max_staleness=rng.choice((1, 2, 3, 4, 8)),
        lease_windows=rng.randint(4, 40),
        watch=Watch.QUARANTINE,
        batches=tuple((trait.group, trait.windows) for trait in traits),
        window_tokens=MOST_TOKENS,
    )
    waits = rng.random() < LOCK_STEP_SHARE and overlap == 0
    if waits:
        rule = replace(rule, min_quorum=count)
    elif overlap == 1:
        rule = replace(
            rule, overlap_follows=random.Random(f"{seed} follows").random() < FOLLOWS_SHARE
        )
    return SimPlan(
        seed,
        rule,
        traits,
        carry=overlap > 0 and rng.random() < 0.5,
        faults=_faults(rng, traits, rule, lasts_s),
        healed_s=HEALED_SHARE * lasts_s,
        stop_s=HEALED_SHARE * lasts_s * rng.uniform(1, 1.3) if stopped else math.inf,
        merge_s=rng.uniform(0, 0.2) * usual_s,
        store_s=rng.uniform(0, 0.4) * usual_s,
        store_every=rng.choice((1, 1, 1, 2, 3)),
        anchor=rng.choice((Anchor.BASE, Anchor.BASE, Anchor.CURRENT)),
        lock_step=min(rng.choice((0, 1, 1, 2, 3)), every - 1) if waits else None,
    )


def _trait(
    rng: random.Random, name: str, usual_s: float, regions: tuple[Region | None, ...]
) -> Trait:
    slow = rng.uniform(3, 6) if rng.random() < 0.12 else 1.0
    return Trait(
        Island(name),
        joins_s=rng.uniform(0, 4) * usual_s * (rng.random() < 0.5),
        step_s=usual_s * rng.uniform(0.8, 1.25) * slow,
        jitter=rng.choice((0.0, 0.1, 0.3)),
        tokens=rng.randint(1, MOST_TOKENS),
        windows=rng.randint(1, 3),
        latency_s=usual_s * rng.uniform(0.01, 0.15),
        region=rng.choice(regions),
        hosts=HOSTS[zlib.crc32(name.encode()) % len(HOSTS)],
        group=name,
    )


def _faults(
    rng: random.Random, traits: tuple[Trait, ...], rule: Rule, lasts_s: float
) -> tuple[SimFault, ...]:
    troubles = [trouble for trouble in Trouble if rule.overlap > 0 or trouble not in LOSSY]
    troubles += [Trouble.RESTART] * OFTENER + [Trouble.SHARD] * OFTENER * (rule.overlap > 0)
    faults = [
        SimFault(
            rng.uniform(0.02, FAULTY_SHARE) * lasts_s,
            rng.choice(troubles),
            rng.choice(traits).island,
            rng.uniform(0.02, 0.4) * lasts_s,
        )
        for _ in range(FAULTS_WANTED + rng.randint(0, 4))
    ]
    return tuple(sorted(faults))


LOSSY = frozenset({Trouble.CUT, Trouble.CUT_UP, Trouble.CUT_DOWN, Trouble.LOSS, Trouble.SHARD})
"""Not in lock-step: nobody there goes on without what was lost. Of a shard, the syncer begins a new
generation instead (docs/protocol.md, Durability)."""
