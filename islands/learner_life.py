"""The state of one life of a learner, and its start; `learner_state` changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.protocol import (
    Adopted,
    Fragment,
    Granted,
    Lease,
    Life,
    MomentsTaken,
    Progress,
    Version,
    Void,
)
from islands.learner_messages import HandOver, Terms, Track, Words


@dataclass(frozen=True, slots=True)
class LearnerState:
    """The state of one life of a learner."""

    terms: Terms
    life: Life
    offset: int
    """Difference of the clock to the inner steps: clock = steps + offset."""
    tracks: tuple[Track, ...]
    """The start of the next contribution to each fragment."""
    newest: Mapping[Fragment, Version]
    """The newest version of each fragment that this life has seen."""
    progress: Progress
    ahead_windows: int
    """Windows of data for which it has leases."""
    past_t: int = 0
    """The clock minus the syncer's t, when t was last received."""
    goes_on: bool = True
    """Whether the life has not been ended."""
    over: Void | None = None
    """The syncer's message that ended it, if one did."""
    stepping: bool = True
    """Whether it may step; if not, it only hands in and adopts."""
    step_s: float = 0.0
    """Moving average of the seconds per step."""
    asks: tuple[Fragment, ...] = ()
    """Fragments that were asked for and are not handed in yet."""
    news: tuple[Fragment, ...] = ()
    """Fragments with a version to adopt at the next boundary."""
    awaiting: tuple[tuple[Fragment, Version], ...] = ()
    """Fragments whose base must be replaced before the next step (lock-step)."""
    kept: tuple[HandOver, ...] = ()
    """Hand-ins that were copied at their due points and not asked for yet."""
    flying: tuple[tuple[Fragment, Version, int], ...] = ()
    """The copied fragments, each with its base and the clock at which it is replaced."""
    busy: bool = False
    """Whether a step is under way."""
    rested: bool = False
    """Whether the carrier could begin a step."""
    held: bool = False
    """Whether it had to wait for others before the next step."""
    adoptions: tuple[Adopted, ...] = ()
    """Adoptions that have not been reported to the syncer."""
    reporting: tuple[Adopted, ...] = ()
    """Adoptions in the report that is under way."""
    has_report: bool = False
    """Whether the learner has something to report to the syncer."""
    taken: MomentsTaken | None = None
    """Moments that it took from a donor, until a report of them is answered."""
    needs_data: bool = False
    """Whether the learner needs another lease of data."""
    asks_data: bool = False
    """Whether the learner requests data once the report under way is answered."""
    fetching: bool = False
    """Whether a lease is granted and not in the data yet."""
    flight: bool = False
    """Whether a message is under way."""
    quiet: bool = False
    """Whether a message failed, so that the next heartbeat sends again."""

    @property
    def clock(self) -> int:
        """The learner's logical clock: its inner steps plus its offset."""
        return self.progress.steps + self.offset

    @property
    def rate_clock(self) -> int:
        """The clock whose learning rate the next step takes.

        It is the learner's own clock, and out of lock-step never further than H from the syncer's
        t. So islands of any speed end their schedules together: one at a third of the speed would
        merge deltas of the full rate with those of islands whose rate has fallen.
        """
        if self.terms.until is not None:
            return self.clock
        most = self.terms.schedule.longest
        return self.clock - self.past_t + max(-most, min(self.past_t, most))


LearnerOutcome = tuple[LearnerState, Words]


def begun(
    terms: Terms,
    granted: Granted,
    versions: Sequence[Version],
    cursor: Lease,
    ahead_windows: int,
    taken: MomentsTaken | None = None,
) -> LearnerState:
    """Return a life that begins at these versions, one per fragment, and at this data cursor.

    `taken`: the moments that it took from a donor.
    """
    return LearnerState(
        terms,
        granted.life,
        granted.offset,
        tuple(Track(version) for version in versions),
        {Fragment(p): version for p, version in enumerate(versions)},
        Progress(0, 0, cursor),
        ahead_windows,
        taken=taken,
    )
