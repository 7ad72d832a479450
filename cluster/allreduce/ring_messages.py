"""The messages of a ring: events that the rules take in, and effects that they return.

The journal of a run has their fields, and the kinds that `journal.KINDS` names.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.protocol import Island, Life


@dataclass(frozen=True, slots=True, order=True)
class TrainingPosition:
    """How far a training state has come. A later position is greater."""

    step: int
    """Steps that were taken."""
    tokens: int = 0
    """Tokens that the state was trained on."""
    windows: int = 0
    """Data windows that the state was trained on."""


START = TrainingPosition(0)
"""The position of the initial model."""


# --- events: what happened ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RingMemberReady:
    """An island waits to be in a ring. `held`: the state that it has, None if it has none;
    `wasted`: tokens of a step that it has not finished, since the ring broke."""

    life: Life
    held: TrainingPosition | None = None
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class StepsFinished:
    """The ring has finished steps; `held`: what all its members have now."""

    ring: int
    held: TrainingPosition


@dataclass(frozen=True, slots=True)
class RingMemberLost:
    """The process of this life has died, or cannot be reached."""

    life: Life
    why: str


@dataclass(frozen=True, slots=True)
class SnapshotStored:
    """A snapshot of this state is durable."""

    held: TrainingPosition


@dataclass(frozen=True, slots=True)
class RingDrain:
    """An island shall leave, and the others go on."""

    island: Island
    why: str


@dataclass(frozen=True, slots=True)
class RingStop:
    """The run shall end after the step that is under way."""

    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The conductor has the final state, which is the result."""

    held: TrainingPosition


@dataclass(frozen=True, slots=True)
class FinalStateLost:
    """No island can give this state any more, though some had it."""

    held: TrainingPosition
    why: str


@dataclass(frozen=True, slots=True)
class RingResume:
    """The conductor is back: it knows of no process, and has the last snapshot."""

    generation: int


Event = (
    RingMemberReady
    | StepsFinished
    | RingMemberLost
    | SnapshotStored
    | RingDrain
    | RingStop
    | Ended
    | FinalStateLost
    | RingResume
)


# --- effects: what the conductor does -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """Have these be a ring, in order of their ranks, from this state on. `donor`: who has it, for
    those that do not; None: it is the last snapshot."""

    ring: int
    members: tuple[Life, ...]
    held: TrainingPosition
    donor: Life | None
    why: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Tell the members of this ring to leave it after their step."""

    ring: int
    why: str


@dataclass(frozen=True, slots=True)
class RingRelease:
    """This life is over: nothing is asked of it any more."""

    life: Life
    why: str


@dataclass(frozen=True, slots=True)
class RingFinish:
    """Fetch the final state, and answer with `Ended` or `FinalStateLost`. `donor`: an island that
    has it; None: it is the last snapshot."""

    donor: Life | None


Effect = Form | Pause | RingRelease | RingFinish


@dataclass(frozen=True, slots=True)
class RingDecision:
    """A place in a ring. `address`: where its members meet, empty for one that is alone; `held`:
    the state that it begins with; `donor`: who has that, None: it is the last snapshot."""

    ring: int
    address: str
    rank: int
    members: int
    held: TrainingPosition
    donor: Life | None
