"""What a learner works by, what its carrier tells `learner_state`, and what it is to do: terms,
happenings and words."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Fragment,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Progress,
    Report,
    Version,
    Void,
)
from coordinator.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Terms:
    """What a learner works by; constant over the run.

    `overlap`: 0 = it waits for adoption at each due point. `carries`: what it trained since its
    last hand-in survives an adoption (adopt = "carry"); `keeps`: so does what was handed in and is
    no part of that version (with the anchor "base": else it would be in the next delta, too).
    `batch_windows`: data of one step; `lease_windows`: of a lease, and what it likes to have ahead.
    `until`: None = it never waits but for an overlap of 0; else it is in lock-step, hands in a
    fragment as it was at its due point, puts the new version in place `overlap` steps later and no
    step earlier or later, and waits at this clock for the end of the run.
    """

    schedule: Schedule
    overlap: int
    carries: bool
    keeps: bool
    batch_windows: int
    lease_windows: int
    until: int | None

    def __post_init__(self) -> None:
        """Errors: `ValueError` if a fragment would be due again before its version is put in place,
        which would then never be; the door refuses it (`sync.overlap`)."""
        if self.until is not None and self.overlap >= (least := self.schedule.least):
            raise ValueError(f"{self.overlap} steps of flight, and due every {least}")

    @property
    def in_flight(self) -> bool:
        """Does it train on while a fragment is merged, and wait for it in the end?"""
        return self.until is not None and self.overlap > 0

    @property
    def wanted_windows(self) -> int:
        """It asks for data when it has less than this."""
        return max(self.lease_windows, self.batch_windows)


@dataclass(frozen=True, slots=True)
class Track:
    """From where the next contribution to one fragment counts.

    `base`: the version adopted last; `since_step`: the step from which its steps count. Steps and
    tokens of the next contribution count from `from_step` and `from_tokens`: the last hand-in, or
    the adoption. `waiting`: what was handed in and is part of no version yet, as far as is known.
    """

    base: Version
    since_step: int = 0
    from_step: int = 0
    from_tokens: int = 0
    waiting: tuple[ContributionId, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """The shard asks for what was trained on a fragment. `held`: of what was handed in of it
    before, only this waits still; None if that is not known, or older than what is."""

    fragment: Fragment
    held: tuple[ContributionId, ...] | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """A version has come, and is ready to be put in place."""

    fragment: Fragment
    version: Version


@dataclass(frozen=True, slots=True)
class Settled:
    """What has become of these is known, of whatever life they are: they are part of a version that
    has come or is to come, or never will be of any."""

    said: tuple[ContributionId, ...]


@dataclass(frozen=True, slots=True)
class Parked:
    """It shall step no more in this life."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """It shall end this life, and begin no other."""


@dataclass(frozen=True, slots=True)
class Ceased:
    """This life is over by the syncer's word."""

    over: Void


@dataclass(frozen=True, slots=True)
class Ready:
    """The carrier could begin a step: at the beginning of a life, or where data ran out after all
    (`ahead_windows` is what there is)."""

    ahead_windows: int


@dataclass(frozen=True, slots=True)
class Fed:
    """A lease was added to the data: so much is there now."""

    ahead_windows: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """An inner step is over: `tokens` of it, the data cursor after it, and the data left."""

    tokens: int
    cursor: Lease
    ahead_windows: int


@dataclass(frozen=True, slots=True)
class Rested:
    """All that belongs to the step is done; it took so long in all, since the one before."""

    took_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer to what was said last."""

    answer: Answer | LeaseGranted | Void


@dataclass(frozen=True, slots=True)
class Unheard:
    """No answer came to what was said last."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Nothing was said for a heartbeat."""


Happening = (
    Asked
    | Offered
    | Settled
    | Parked
    | LetGo
    | Ceased
    | Ready
    | Fed
    | Stepped
    | Rested
    | Heard
    | Unheard
    | Beat
)


# --- words: what the carrier does -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """Begin an inner step, and tell when it is over. `held`: the time since the one before was
    spent on waiting for others, and is none of its own."""

    held: bool


@dataclass(frozen=True, slots=True)
class HandOver:
    """Answer whoever asked for this fragment, from the parameters as they are now.

    `said`: the interval, None if there is nothing to hand in. `track`: as it was before.
    """

    fragment: Fragment
    said: ContributionId | None
    track: Track
    progress: Progress

    @property
    def tokens(self) -> int:
        return self.progress.tokens - self.track.from_tokens


@dataclass(frozen=True, slots=True)
class Keep:
    """Take this fragment from the parameters as they are now; it is handed over once asked for."""

    hand_over: HandOver


@dataclass(frozen=True, slots=True)
class Adopt:
    """Put the newest version of this fragment that has come in place; what was handed in and is no
    part of it (`keeps`, in their order) stays in place beside it, as do the steps since."""

    fragment: Fragment
    version: Version
    keeps: tuple[ContributionId, ...] = ()


@dataclass(frozen=True, slots=True)
class Take:
    """Add this lease to the data, and tell how much is there then."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Say:
    """Report to the syncer, with what was adopted since the report before."""

    report: Report
    adopted: tuple[Adopted, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Ask the syncer for data."""

    event: LeaseWanted


@dataclass(frozen=True, slots=True)
class End:
    """This life is over; nothing follows any more. `distrusted`: neither parameters nor moments of
    it may be used in the next one."""

    distrusted: bool


Word = Step | HandOver | Keep | Adopt | Take | Say | Want | End
Words = tuple[Word, ...]
