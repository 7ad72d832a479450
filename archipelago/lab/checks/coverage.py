"""Coverage: the pairs of (state, event) that a schedule went through, and the effects it caused.

A pair is met when an event is handled in that state. For an event about a life or an island the
state is the member's status; for one about a fragment, the stage of its round; and for every event,
the phase of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from coordinator.membership import Status
from coordinator.protocol import (
    Adopted,
    Arrived,
    Discard,
    Drain,
    Effect,
    Event,
    Fate,
    Join,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Merged,
    Missing,
    Reached,
    Refused,
    Report,
    ShardLost,
    Stored,
    Unsound,
    Void,
)
from coordinator.state import Phase, Stage, State

UNKNOWN, REPLACED, NO_ROUND = "unknown", "replaced", "no round"

OF_A_LIFE: tuple[type[Event], ...] = (
    Report, Arrived, Missing, Adopted, Lost, LeaseWanted, Left,
)  # fmt: skip
OF_AN_ISLAND: tuple[type[Event], ...] = (Join, Drain)
OF_A_FRAGMENT: tuple[type[Event], ...] = (
    Arrived, Missing, Adopted, Merged, Unsound, Stored, Reached, ShardLost,
)  # fmt: skip

Pair = tuple[str, str]
"""A state and the name of an event's class."""

PAIRS: frozenset[Pair] = frozenset(
    (state, kind.__name__)
    for states, kinds in (
        ((UNKNOWN, REPLACED, *Status), OF_A_LIFE),
        ((UNKNOWN, *Status), OF_AN_ISLAND),
        ((NO_ROUND, *Stage), OF_A_FRAGMENT),
        (tuple(Phase), get_args(Event)),
    )
    for state in map(str, states)
    for kind in kinds
)
"""Every conceivable pair."""

EFFECTS: frozenset[str] = frozenset(
    {
        *(kind.__name__ for kind in get_args(Effect) if kind is not Discard),
        *(f"Discard, {fate}" for fate in Fate if fate is not Fate.OVERWRITTEN),
        "Void, distrusted",
        "Refused, for a while",
    }
)
"""The name of every effect; a discard is named with its fate."""

NEVER: dict[Pair, str] = {
    (UNKNOWN, kind.__name__): "a life is granted once its join is on the durable tape, so the "
    "syncer has every active life"
    for kind in OF_A_LIFE
} | {
    (Status.JOINING.value, kind): "only learners that have reported a step, or are drained, are "
    "asked; so an answer is impossible"
    for kind in ("Arrived", "Missing")
}
"""The pairs that cannot be met, each with the reason."""


class Coverage:
    """The pairs and effects that were met."""

    def __init__(self) -> None:
        self.pairs: set[Pair] = set()
        self.effects: set[str] = set()

    def saw(self, before: State, event: Event, effects: Sequence[Effect]) -> None:
        """Record the pairs that this event meets in the state `before`, and its effects."""
        kind = type(event).__name__
        add = self.pairs.add
        add((before.phase, kind))
        match event:
            case Report(life) | Lost(life) | LeaseWanted(life) | Left(life):
                add((_standing(before, life), kind))
            case Arrived(contribution):
                add((_standing(before, contribution.id.life), kind))
                add((_stage(before, contribution.id.fragment), kind))
            case Missing(life, p) | Adopted(life, p):
                add((_standing(before, life), kind))
                add((_stage(before, p), kind))
            case Merged(p) | Unsound(p) | Stored(p) | Reached(p):
                add((_stage(before, p), kind))
            case ShardLost(fragments):
                for p in fragments:
                    add((_stage(before, p), kind))
            case Join(island) | Drain(island):
                member = before.members.get(island)
                add((UNKNOWN if member is None else member.status, kind))
            case _:
                pass
        for effect in effects:
            match effect:
                case Discard(_, fate):
                    self.effects.add(f"Discard, {fate}")
                case Refused(retry_s=float()):
                    self.effects.add("Refused, for a while")
                case Void(distrusted=True):
                    self.effects.add("Void, distrusted")
                case _:
                    self.effects.add(type(effect).__name__)


def _standing(state: State, life: Life) -> str:
    member = state.members.get(life.island)
    if member is None:
        return UNKNOWN
    return member.status if member.life == life else REPLACED


def _stage(state: State, p: int) -> str:
    round_ = state.fragments[p].round
    return NO_ROUND if round_ is None else round_.stage
