"""The shape and the faults of a simulated run, drawn from one seed before it begins."""

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
"""The least that a schedule has: events, faults, and rounds of each fragment."""
EVENTS_AIMED = 270
"""Events that a schedule is laid out for, since some of its time is lost."""
FAULTY_SHARE, HEALED_SHARE = 0.55, 0.62
"""Shares of the expected duration by which all faults have begun, and have been repaired."""
EXCUSED_S, EXCUSED_STEPS = 20.0, 5.0
PATIENCE_S, PATIENCE_STEPS = 100.0, 80.0
LONGEST_BARRED_S = 320.0
"""The longest time that an island quarantined repeatedly stays away after the repair."""
TOO_MANY_EVENTS = 30_000
"""Events above which a randomly drawn run is in a livelock."""
REGIONS: tuple[tuple[Region | None, ...], ...] = ((None,), (None, Region("eu"), Region("us")))
MOST_TOKENS = 9
"""The most tokens of a step, and so of a window."""
HOSTS = (1, 2, 4)
"""Numbers of hosts of an island, chosen by its name."""
SLOWER = 4.0
"""The factor on the step time of a randomly slowed island."""
OFTENER = 3
"""Sampling weight of crashes of syncer and shards: their timing matters most."""
LOCK_STEP_SHARE = 0.75
"""The share of schedules with overlap 0 that are in lock-step (`run.mode`)."""
FOLLOWS_SHARE = 0.7
"""The share of schedules with overlap 1 where the overlap follows the duration of rounds."""
STOPPED_SHARE = 0.6
"""The share of schedules that are stopped by request, after the repair and enough events."""


class Trouble(StrEnum):
    """The kinds of faults of a simulated run; a configuration can ask for some (`from_config`)."""

    CRASH = "crash"  # a process dies, and Ray reports it
    VANISH = "vanish"  # ... which goes unnoticed for a while
    HANG = "hang"  # a process stands still, then continues as if nothing had happened
    STUCK = "stuck"  # a step does not end for a while, but heartbeats continue
    SLOW = "slow"  # its steps take longer by a factor
    CUT_UP = "cut-up"  # messages from the learner are lost
    CUT_DOWN = "cut-down"  # messages to the learner are lost
    CUT = "cut"  # both
    LOSS = "loss"  # some messages are lost
    TWICE = "twice"  # messages arrive twice, the second time late
    DELAY = "delay"  # messages are slow, and overtake one another
    ECHO = "echo"  # old messages arrive again
    NAN = "nan"  # poison, like all down to LYING: see `Poison`
    INCURABLE = "incurable"  # not finite, in every later life of the process, too
    LOUD = "loud"
    FLIPPED = "flipped"
    ROTTEN = "rotten"
    COUNTERS = "counters"
    LAYOUT = "layout"
    FUTURE = "future"
    LYING = "lying"  # one number of some messages is changed: see `lies`
    JUMP = "jump"  # the syncer's clock jumps forward
    DISK = "disk"  # the disk fails: nothing becomes durable
    SLOW_DISK = "slow-disk"
    SLOW_SHARD = "slow-shard"
    DRAIN = "drain"  # an island is asked to leave, and comes back later
    RUMOUR = "rumour"  # the shell wrongly treats a life as lost
    DOUBLE = "double"  # a second process joins under the same name
    STRAY = "stray"  # a drain of an unknown island, a join with another layout
    RESTART = "restart"  # the syncer dies and recovers from durable state
    SHARD = "shard"  # the process of some fragments dies, but not the syncer


Span = tuple[float, float]
"""The begin and the end of a period, in seconds of the syncer's clock."""
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
"""Troubles of the syncer, the shards or the disk, which no single island has."""


class SimFault(NamedTuple):
    """One fault, of one island unless `EVERYWHERE` lists its kind."""

    at_s: float
    trouble: Trouble
    island: Island
    lasts_s: float
    """Infinite for a drained island that stays away, and for poison that survives a rejoin."""
    factor: float = SLOWER
    """The factor on the step time if the trouble is `SLOW`."""

    @property
    def until_s(self) -> float:
        """The end of the fault, in seconds."""
        return self.at_s + self.lasts_s


@dataclass(frozen=True, slots=True)
class Trait:
    """The properties of one island."""

    island: Island
    joins_s: float
    step_s: float
    """The usual step time; a step takes that, ± `jitter` as a share of it."""
    jitter: float
    tokens: int
    """Tokens trained in one step."""
    windows: int
    """Windows read in one step."""
    latency_s: float
    """The one-way latency of its link."""
    region: Region | None = None
    """The region whose windows it reads."""
    hosts: int = 1
    """The number of hosts, each of which hands in a part."""
    group: str = "group"
    """The group that its join names."""

    @property
    def slowest_s(self) -> float:
        """The longest step time in seconds."""
        return self.step_s * (1 + self.jitter)


@dataclass(frozen=True, slots=True)
class SimPlan:
    """One schedule: the rule under test, the islands, the faults, and the time of their repair."""

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
    """The value of `durability.every`."""
    anchor: Anchor
    """The value of `sync.anchor`."""
    lock_step: int | None
    """The overlap of learners that wait for merges to the end; None: they wait by the rule only."""
    most_events: int = TOO_MANY_EVENTS
    """Events above which the run is in a livelock."""
    unruly: bool = True
    """Whether it was drawn at random: faults are repaired, and harmless ones follow its end."""

    def __post_init__(self) -> None:
        """Refuse plans whose learners might wait forever for a merge without them.

        A configuration cannot ask for such a run (`cluster.config.modes`).

        Errors: `ValueError` if a lock-step run has a quorum below the number of islands.
        """
        if self.lock_step is not None and self.rule.min_quorum < len(self.traits):
            raise ValueError(f"lock-step with a quorum of {self.rule.min_quorum}: all are needed")

    @property
    def slowest_s(self) -> float:
        """The longest step time of all islands in seconds."""
        return max(trait.slowest_s for trait in self.traits)

    @property
    def aftermath_s(self) -> float:
        """Seconds before and after a fault during which its island is excused."""
        return EXCUSED_S + EXCUSED_STEPS * self.slowest_s

    @property
    def patience_s(self) -> float:
        """The longest time, in seconds, of a round with no fault, or right after the repair."""
        return PATIENCE_S + PATIENCE_STEPS * self.slowest_s + (self.rule.grace_s or 0.0)

    @property
    def limit_s(self) -> float:
        """The time by which the run must have ended, even if each step needs a whole round."""
        mended_s = self.healed_s + LONGEST_BARRED_S
        return mended_s + 2 * self.patience_s + 4 * self.rule.steps * self.slowest_s


def draw(seed: str, *, stretch: float = 1) -> SimPlan:
    """Return a random plan; `stretch` is a factor on the length of the run."""
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
    least_steps = max(ROUNDS_WANTED * every + 2, EVENTS_AIMED / per_step)
    steps = math.ceil(least_steps * stretch)
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
    is_lock_step = rng.random() < LOCK_STEP_SHARE and overlap == 0
    if is_lock_step:
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
        lock_step=min(rng.choice((0, 1, 1, 2, 3)), every - 1) if is_lock_step else None,
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
"""Troubles excluded where learners wait for adoption: none continues without a lost message.

If a shard dies there, the syncer begins a new generation (docs/explanation/protocol.md,
Durability).
"""
