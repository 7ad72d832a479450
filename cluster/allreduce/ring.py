"""The rules for rings: who sums gradients with whom, from which step, and when all pause.

`advance` takes the state and an event and returns the state after it and effects, in order; the
conductor (`actors.conductor`) carries them out. A *ring* is one formation of islands; it turns a
step at a time, all its members together. It ends when a member dies, or after a step at which all
agree to pause. Nothing here knows a clock, a process or an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from cluster.allreduce.ring_messages import (
    START,
    Effect,
    Ended,
    Event,
    FinalStateLost,
    Form,
    Pause,
    RingDrain,
    RingFinish,
    RingMemberLost,
    RingMemberReady,
    RingRelease,
    RingResume,
    RingStop,
    SnapshotStored,
    StepsFinished,
    TrainingPosition,
)
from coordinator.frozen import replace
from coordinator.protocol import Island, Life


@dataclass(frozen=True, slots=True)
class Rules:
    """`count`: islands that the run begins with; `steps`: T. `elastic`: the ring goes on with fewer
    and grows again; else it needs all of them, and begins again from the last snapshot."""

    elastic: bool
    count: int
    steps: int


class RingStage(StrEnum):
    GATHERING = "gathering"  # islands come, and no ring turns
    TURNING = "turning"
    PAUSING = "pausing"  # its members were told to leave after their step
    ENDING = "ending"  # the conductor fetches the final state; its members wait
    OVER = "over"


@dataclass(frozen=True, slots=True)
class RingMemberState:
    """One island's present life. `held`: what it had when it was last ready; `turns`: it is in the
    ring."""

    life: Life
    held: TrainingPosition | None
    turns: bool = False

    @property
    def is_new(self) -> bool:
        """It waits, and has been in no ring."""
        return self.held is None and not self.turns


@dataclass(frozen=True, slots=True)
class Ring:
    """All that is known. `ring`: number of the one that turns, or turned last; `held`: what its
    members have at least; `kept`: the last snapshot. `leaving`: islands that are drained.
    `broken`: a member has died since the ring formed. `lost`: tokens trained and not in the model.
    """

    stage: RingStage = RingStage.GATHERING
    ring: int = 0
    generation: int = 0
    members: Mapping[Island, RingMemberState] = field(default_factory=dict[Island, RingMemberState])
    held: TrainingPosition = START
    kept: TrainingPosition = START
    leaving: frozenset[Island] = frozenset()
    stopping: str | None = None
    broken: str | None = None
    lost: int = 0

    @property
    def turning(self) -> tuple[Life, ...]:
        return tuple(each.life for each in self.members.values() if each.turns)

    @property
    def trained(self) -> int:
        """Tokens, whatever has become of them."""
        return self.held.tokens + self.lost


Outcome = tuple[Ring, tuple[Effect, ...]]


def advance(rules: Rules, ring: Ring, event: Event) -> Outcome:
    """The state after this event, and what follows from it."""
    return _settle(rules, _hear(ring, event))


def _hear(ring: Ring, event: Event) -> Ring:
    match event:
        case RingMemberReady(life, held, wasted):
            known = ring.members.get(life.island)
            if known is not None and known.life.incarnation > life.incarnation:
                return ring
            if known is not None and known.turns and known.life != life:
                ring = replace(ring, broken=ring.broken or f"{life.island} has begun anew")
            ring = replace(ring, lost=ring.lost + wasted)
            ends = ring.stage in (
                RingStage.ENDING,
                RingStage.OVER,
            )  # with a state that is decided on
            if held is not None and held > ring.held and not ends:
                ring = replace(ring, held=held)
            return _with(ring, RingMemberState(life, held))
        case StepsFinished(number, held):
            if number != ring.ring or ring.stage not in (RingStage.TURNING, RingStage.PAUSING):
                return ring
            return replace(ring, held=max(held, ring.held))
        case RingMemberLost(life, why):
            known = ring.members.get(life.island)
            if known is None or known.life != life:
                return ring
            if known.turns:
                ring = replace(ring, broken=ring.broken or f"{life} is lost: {why}")
            return _without(ring, life.island)
        case SnapshotStored(held):
            return replace(ring, kept=max(held, ring.kept), held=max(held, ring.held))
        case RingDrain(island):
            return replace(ring, leaving=ring.leaving | {island})
        case RingStop(why):
            return replace(ring, stopping=ring.stopping or why)
        case Ended(held):
            return replace(ring, stage=RingStage.OVER, held=held)
        case FinalStateLost(held, why):
            broken = f"the final state is lost: {why}"
            members = {
                island: replace(each, held=None) if each.held == held else each
                for island, each in ring.members.items()
            }
            return replace(ring, stage=RingStage.GATHERING, members=members, broken=broken)
        case RingResume(generation):
            return replace(
                ring,
                stage=RingStage.GATHERING,  # whether the run is over is decided anew: see `_settle`
                generation=generation,
                members={},
                held=max(ring.held, ring.kept),  # what it remembers may be older than the snapshot
                broken="the conductor is back",
            )
        case _:
            assert_never(event)


def _settle(rules: Rules, ring: Ring) -> Outcome:
    """What follows, whatever has happened."""
    if ring.stage is RingStage.OVER:
        return _release(ring, ring.members, "the run is over")
    if ring.stage is RingStage.ENDING:
        return ring, ()
    if ring.turning:
        return _pause(rules, ring)
    if ring.ring > 0 and ring.stage is not RingStage.GATHERING:
        ring = replace(ring, stage=RingStage.GATHERING)
    if ring.stopping is not None or ring.held.step >= rules.steps:
        donor = _donor(ring, ring.held)
        if donor is None and ring.held != ring.kept and ring.stopping is None:
            return _form(rules, _back(ring, ring.kept))  # who had the end is gone
        ring = ring if donor is not None else _back(ring, ring.kept)
        return replace(ring, stage=RingStage.ENDING), (RingFinish(donor),)
    gone = {i: each for i, each in ring.members.items() if i in ring.leaving}
    ring, released = _release(ring, gone, "drained")
    ring, formed = _form(rules, ring)
    return ring, (*released, *formed)


def _pause(rules: Rules, ring: Ring) -> Outcome:
    """A ring turns: should its members leave it?"""
    if ring.stage is RingStage.PAUSING or ring.broken is not None:
        return ring, ()
    why = None
    if ring.stopping is not None:
        why = ring.stopping
    elif leaving := sorted(ring.leaving & {life.island for life in ring.turning}):
        why = f"{', '.join(leaving)} leaves"
    elif rules.elastic and (new := sorted(i for i, m in ring.members.items() if m.is_new)):
        why = f"{', '.join(new)} joins"
    if why is None:
        return ring, ()
    return replace(ring, stage=RingStage.PAUSING), (Pause(ring.ring, why),)


def _form(rules: Rules, ring: Ring) -> Outcome:
    """Nobody turns: can they begin?"""
    there = [ring.members[island] for island in sorted(ring.members)]
    first = ring.held.step == 0 and ring.ring == 0
    needed = rules.count - len(ring.leaving) if first or not rules.elastic else 1
    if len(there) < max(1, needed):
        return ring, ()
    if rules.elastic and (donor := _donor(ring, ring.held)) is not None:
        held, why = ring.held, "all go on from what they have"
        if ring.broken is not None:
            why = f"{ring.broken}; the others go on"
    else:
        donor, held = None, ring.kept
        why = f"{ring.broken}; from the last snapshot" if ring.broken else "all are there"
    ring = _back(ring, held)
    number = ring.ring + 1
    members = {each.life.island: replace(each, turns=True) for each in there}
    ring = replace(ring, stage=RingStage.TURNING, ring=number, members=members, broken=None)
    return ring, (Form(number, tuple(each.life for each in there), held, donor, why),)


def _back(ring: Ring, held: TrainingPosition) -> Ring:
    """Go on from there; what was trained since then is lost."""
    return replace(ring, held=held, lost=ring.lost + ring.held.tokens - held.tokens)


def _donor(ring: Ring, held: TrainingPosition) -> Life | None:
    """Who has this state; nobody need have the initial one."""
    if held.step == 0:
        return None
    for island in sorted(ring.members):
        if ring.members[island].held == held:
            return ring.members[island].life
    return None


def _release(ring: Ring, members: Mapping[Island, RingMemberState], why: str) -> Outcome:
    effects = tuple(RingRelease(each.life, why) for each in members.values())
    return _without(ring, *members), effects


def _with(ring: Ring, member: RingMemberState) -> Ring:
    return replace(ring, members={**ring.members, member.life.island: member})


def _without(ring: Ring, *islands: Island) -> Ring:
    gone: Iterable[Island] = islands
    return replace(ring, members={i: m for i, m in ring.members.items() if i not in gone})
