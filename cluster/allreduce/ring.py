"""The rules for rings: the members that sum gradients, the first step, and the pauses.

`advance` takes the state and an event and returns the next state and the effects, in order; the
conductor (`actors.ring.conductor`) carries them out. A *ring* is one formation of islands, whose
members take each step together. A ring ends when a member dies, or after a step at which all agree
to pause. The rules use no clock, no process and no array.
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
    """The parameters of the rules."""

    elastic: bool
    """True if the ring continues with fewer islands and grows again.

    Otherwise it needs all of them, and starts again from the last snapshot.
    """
    count: int
    """The number of islands that the run begins with."""
    steps: int
    """T: the length of the run in steps."""


class RingStage(StrEnum):
    """The stage of a run that sums gradients."""

    GATHERING = "gathering"
    """Islands arrive, and no ring runs."""
    TURNING = "turning"
    """A ring takes steps."""
    PAUSING = "pausing"
    """The members of the ring were ordered to leave after their step."""
    ENDING = "ending"
    """The conductor fetches the final state, and the members wait."""
    OVER = "over"
    """The run is over."""


@dataclass(frozen=True, slots=True)
class RingMemberState:
    """The state of an island's current life."""

    life: Life
    held: TrainingPosition | None
    """The position of its training state when it was last ready; None if it had no state."""
    turns: bool = False
    """True if it is in the ring."""

    @property
    def is_new(self) -> bool:
        """True if it waits and has not been in a ring."""
        return self.held is None and not self.turns


@dataclass(frozen=True, slots=True)
class Ring:
    """The whole state of the rules."""

    stage: RingStage = RingStage.GATHERING
    ring: int = 0
    """The number of the current or last ring; 0 before the first."""
    generation: int = 0
    """The number of restarts of the conductor."""
    members: Mapping[Island, RingMemberState] = field(default_factory=dict[Island, RingMemberState])
    """The islands that are in the ring or wait for one."""
    held: TrainingPosition = START
    """The position that all members of the ring have reached at least."""
    kept: TrainingPosition = START
    """The position of the last durable snapshot."""
    leaving: frozenset[Island] = frozenset()
    """The islands that drain or have drained."""
    stopping: str | None = None
    """The reason why the run stops before its end; None if it does not."""
    broken: str | None = None
    """The reason why the current or last ring broke; None if it did not."""
    lost: int = 0
    """Tokens that were trained and are not in the model."""

    @property
    def turning(self) -> tuple[Life, ...]:
        """The lives that are in the ring."""
        return tuple(each.life for each in self.members.values() if each.turns)

    @property
    def trained(self) -> int:
        """Tokens that were trained, whether or not they are in the model."""
        return self.held.tokens + self.lost


RingOutcome = tuple[Ring, tuple[Effect, ...]]


def advance(rules: Rules, ring: Ring, event: Event) -> RingOutcome:
    """Return the state after this event, and the effects that follow from it."""
    return _settle(rules, _hear(ring, event))


def _hear(ring: Ring, event: Event) -> Ring:
    match event:
        case RingMemberReady(life, held, wasted):
            known = ring.members.get(life.island)
            if known is not None and known.life.incarnation > life.incarnation:
                return ring
            if known is not None and known.turns and known.life != life:
                ring = replace(ring, broken=ring.broken or f"{life.island} has restarted")
            ring = replace(ring, lost=ring.lost + wasted)
            ends = ring.stage in (
                RingStage.ENDING,
                RingStage.OVER,
            )  # the final state is already decided
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
                stage=RingStage.GATHERING,  # `_settle` decides again whether the run is over
                generation=generation,
                members={},
                held=max(ring.held, ring.kept),  # the memory may be older than the snapshot
                broken="the conductor is back",
            )
        case _:
            assert_never(event)


def _settle(rules: Rules, ring: Ring) -> RingOutcome:
    """Return the state and the effects that now follow, after any event."""
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
            return _form(rules, _back(ring, ring.kept))  # no island has the last step any more
        ring = ring if donor is not None else _back(ring, ring.kept)
        return replace(ring, stage=RingStage.ENDING), (RingFinish(donor),)
    leavers = {i: each for i, each in ring.members.items() if i in ring.leaving}
    ring, release_effects = _release(ring, leavers, "drained")
    ring, form_effects = _form(rules, ring)
    return ring, (*release_effects, *form_effects)


def _pause(rules: Rules, ring: Ring) -> RingOutcome:
    """Pause the running ring if the run stops, a member leaves or a new island joins."""
    if ring.stage is RingStage.PAUSING or ring.broken is not None:
        return ring, ()
    why = None
    if ring.stopping is not None:
        why = ring.stopping
    elif leaving := sorted(ring.leaving & {life.island for life in ring.turning}):
        why = f"{', '.join(leaving)} leaves"
    elif rules.elastic and (newcomers := sorted(i for i, m in ring.members.items() if m.is_new)):
        why = f"{', '.join(newcomers)} joins"
    if why is None:
        return ring, ()
    return replace(ring, stage=RingStage.PAUSING), (Pause(ring.ring, why),)


def _form(rules: Rules, ring: Ring) -> RingOutcome:
    """Form a ring if enough islands wait; no ring runs now."""
    present = [ring.members[island] for island in sorted(ring.members)]
    first = ring.held.step == 0 and ring.ring == 0
    needed = rules.count - len(ring.leaving) if first or not rules.elastic else 1
    if len(present) < max(1, needed):
        return ring, ()
    if rules.elastic and (donor := _donor(ring, ring.held)) is not None:
        held, why = ring.held, "all continue from their own state"
        if ring.broken is not None:
            why = f"{ring.broken}; the others continue"
    else:
        donor, held = None, ring.kept
        why = f"{ring.broken}; from the last snapshot" if ring.broken else "all are there"
    ring = _back(ring, held)
    number = ring.ring + 1
    members = {each.life.island: replace(each, turns=True) for each in present}
    ring = replace(ring, stage=RingStage.TURNING, ring=number, members=members, broken=None)
    return ring, (Form(number, tuple(each.life for each in present), held, donor, why),)


def _back(ring: Ring, held: TrainingPosition) -> Ring:
    """Return to this position; the tokens trained since then are lost."""
    return replace(ring, held=held, lost=ring.lost + ring.held.tokens - held.tokens)


def _donor(ring: Ring, held: TrainingPosition) -> Life | None:
    """Return a life that has this state; None if there is none, or it is the initial state."""
    if held.step == 0:
        return None
    for island in sorted(ring.members):
        if ring.members[island].held == held:
            return ring.members[island].life
    return None


def _release(ring: Ring, members: Mapping[Island, RingMemberState], why: str) -> RingOutcome:
    effects = tuple(RingRelease(each.life, why) for each in members.values())
    return _without(ring, *members), effects


def _with(ring: Ring, member: RingMemberState) -> Ring:
    return replace(ring, members={**ring.members, member.life.island: member})


def _without(ring: Ring, *islands: Island) -> Ring:
    removed: Iterable[Island] = islands
    return replace(ring, members={i: m for i, m in ring.members.items() if i not in removed})
