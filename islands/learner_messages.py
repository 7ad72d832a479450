"""The terms of a learner, and the inputs (happenings) and outputs (words) of `learner_state`."""

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
    """The rules that a learner works by, constant over the run."""

    schedule: Schedule
    overlap: int
    """Overlap in inner steps; 0: the learner waits for adoption at each due point."""
    carries: bool
    """Whether steps since the last hand-in survive an adoption (adopt = "carry")."""
    keeps: bool
    """Whether hand-ins that are no part of an adopted version survive it, too (anchor "base").

    With the anchor "current" they are in the next delta anyway.
    """
    batch_windows: int
    """Windows of data in one step."""
    lease_windows: int
    """Windows in a lease; the learner keeps at least that many ahead."""
    until: int | None
    """The clock at which the run ends, in lock-step; None: only an overlap of 0 makes it wait.

    In lock-step the learner hands in a fragment as it was at its due point, adopts the new version
    exactly `overlap` steps later, and waits at this clock for the end of the run.
    """

    def __post_init__(self) -> None:
        """Check that a version is adopted before its fragment is due again.

        Errors: `ValueError`; the configuration refuses such an overlap (`sync.overlap`).
        """
        if self.until is not None and self.overlap >= (least := self.schedule.least):
            raise ValueError(f"{self.overlap} steps of flight, and due every {least}")

    @property
    def in_flight(self) -> bool:
        """Whether the learner trains on while a fragment is merged, and waits for it in the end."""
        return self.until is not None and self.overlap > 0

    @property
    def wanted_windows(self) -> int:
        """Windows below which the learner asks for data."""
        return max(self.lease_windows, self.batch_windows)


@dataclass(frozen=True, slots=True)
class Track:
    """The start of the next contribution to one fragment."""

    base: Version
    """The version adopted last."""
    since_step: int = 0
    """The inner step from which the delta counts."""
    from_step: int = 0
    """First inner step of the next contribution: the last hand-in, or the adoption."""
    from_tokens: int = 0
    """Tokens trained up to `from_step`."""
    waiting: tuple[ContributionId, ...] = ()
    """Contributions that are in no version yet, according to the notices received."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The shard's request for a contribution to a fragment."""

    fragment: Fragment
    held: tuple[ContributionId, ...] | None = None
    """Former contributions that still wait; None if unknown, or older than what is known."""


@dataclass(frozen=True, slots=True)
class Offered:
    """The arrival of a version that is ready to be put in place."""

    fragment: Fragment
    version: Version


@dataclass(frozen=True, slots=True)
class Settled:
    """Contributions that are resolved: merged, or dropped for good.

    They may be of an earlier life.
    """

    contributions: tuple[ContributionId, ...]


@dataclass(frozen=True, slots=True)
class Parked:
    """The order to stop stepping until this life ends."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """The order to end this life and begin no other."""


@dataclass(frozen=True, slots=True)
class Ceased:
    """The syncer's message that a life is over; `over` gives the reason."""

    over: Void


@dataclass(frozen=True, slots=True)
class Ready:
    """The carrier's readiness for a step: at the start of a life, or after the data ran out.

    `ahead_windows`: windows of data that are left.
    """

    ahead_windows: int


@dataclass(frozen=True, slots=True)
class Fed:
    """The arrival of a lease in the data; `ahead_windows`: windows of data there now."""

    ahead_windows: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """The end of an inner step of `tokens`, with the data cursor after it and the windows left."""

    tokens: int
    cursor: Lease
    ahead_windows: int


@dataclass(frozen=True, slots=True)
class Rested:
    """The end of all work of a step; `took_s`: seconds since the same moment of the step before."""

    took_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer to the last message."""

    answer: Answer | LeaseGranted | Void


@dataclass(frozen=True, slots=True)
class Unheard:
    """The failure of the last message: no answer came."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat interval without any message."""


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


# --- words: instructions for the carrier ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """The order to begin an inner step, and to report its end."""

    held: bool
    """Whether the time since the step before was spent waiting for others."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The order to answer a request for this fragment from the present parameters."""

    fragment: Fragment
    contribution: ContributionId | None
    """The contribution; None if there is nothing to hand in."""
    track: Track
    """The track before this hand-in."""
    progress: Progress
    """The progress at this step boundary."""

    @property
    def tokens(self) -> int:
        """Tokens in the contribution."""
        return self.progress.tokens - self.track.from_tokens


@dataclass(frozen=True, slots=True)
class Keep:
    """The order to copy this fragment now; it is handed over once it is asked for."""

    hand_over: HandOver


@dataclass(frozen=True, slots=True)
class Adopt:
    """The order to put the newest version of this fragment in place.

    The steps since the last hand-in stay in place beside it if the learner carries them.
    """

    fragment: Fragment
    version: Version
    keeps: tuple[ContributionId, ...] = ()
    """Contributions that are no part of the version and stay in place beside it, in their order."""


@dataclass(frozen=True, slots=True)
class Take:
    """The order to add this lease to the data, and to report how much is there then."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Say:
    """The order to report to the syncer, with the adoptions since the report before."""

    report: Report
    adopted: tuple[Adopted, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """The order to ask the syncer for data."""

    event: LeaseWanted


@dataclass(frozen=True, slots=True)
class End:
    """The end of this life; nothing follows."""

    distrusted: bool
    """Whether neither parameters nor moments of this life may be used in the next one."""


Word = Step | HandOver | Keep | Adopt | Take | Say | Want | End
Words = tuple[Word, ...]
