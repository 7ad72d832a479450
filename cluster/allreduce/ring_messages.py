"""The messages of a ring: events for the rules, and effects that they return.

The journal of a run stores their fields, and their names in `journal.KINDS`.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.protocol import Island, Life


@dataclass(frozen=True, slots=True, order=True)
class TrainingPosition:
    """The position of a training state in the run; a later position is greater."""

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
    """An island waits for a place in a ring."""

    life: Life
    held: TrainingPosition | None = None
    """The position of its training state; None if it has none."""
    wasted: int = 0
    """Tokens of the step that it could not finish because the ring broke."""


@dataclass(frozen=True, slots=True)
class StepsFinished:
    """The ring has finished one or more steps."""

    ring: int
    held: TrainingPosition
    """The position that all members have now."""


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
    """An order for an island to leave, while the others continue."""

    island: Island
    why: str


@dataclass(frozen=True, slots=True)
class RingStop:
    """The notice that the run ends after the current step."""

    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The conductor has the final state, which is the result."""

    held: TrainingPosition


@dataclass(frozen=True, slots=True)
class FinalStateLost:
    """No island can give the final state any more, though some had it."""

    held: TrainingPosition
    why: str


@dataclass(frozen=True, slots=True)
class RingResume:
    """The conductor has restarted: it has the last snapshot, and no process."""

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
    """Form a ring."""

    ring: int
    members: tuple[Life, ...]
    """The members, in order of their ranks."""
    held: TrainingPosition
    """The position of the state that the ring begins with."""
    donor: Life | None
    """A life that has that state, for the others to copy; None if it is the last snapshot."""
    why: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Order the members of this ring to leave it after their current step."""

    ring: int
    why: str


@dataclass(frozen=True, slots=True)
class RingRelease:
    """Release a life: it is over, and gets no more places."""

    life: Life
    why: str


@dataclass(frozen=True, slots=True)
class RingFinish:
    """Fetch the final state, and answer with `Ended` or `FinalStateLost`."""

    donor: Life | None
    """A life that has the final state; None if it is the last snapshot."""


Effect = Form | Pause | RingRelease | RingFinish


@dataclass(frozen=True, slots=True)
class RingDecision:
    """A place in a ring."""

    ring: int
    address: str
    """The address of the meeting point; empty for a single member."""
    rank: int
    members: int
    """The number of members."""
    held: TrainingPosition
    """The position of the state that the ring begins with."""
    donor: Life | None
    """A life that has that state; None if it is the last snapshot."""
