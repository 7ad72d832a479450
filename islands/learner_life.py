"""One life of a learner as a value, and as it begins; `learner_state` says what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.protocol import (
    Adopted,
    Fragment,
    Granted,
    Lease,
    Life,
    Progress,
    Version,
    Void,
)
from islands.learner_messages import HandOver, Terms, Track, Words


@dataclass(frozen=True, slots=True)
class LearnerState:
    """One life of a learner.

    `past_t`: its clock less the syncer's t, when it last heard of t. `goes_on`: it has not been
    ended; `over`: by whose word it was. `stepping`: it may step; else it hands in and adopts only.
    `asks`: fragments that were asked for and are not handed in yet. `news`: versions to adopt at
    the next boundary; `newest`: the newest heard of. `awaiting`: what must be replaced before the
    next step (lock-step). `kept`: taken at their due points, and not asked for yet; `flying`: the
    fragments that were taken, with the base that they have and the clock at which it is replaced.
    `ahead_windows`: data for which it has leases. `busy`: a step is under way; `rested`: the
    carrier could begin one; `held`: it may not yet, because of others. `said`: adoptions that the
    syncer has not been told of, and `saying` those on their way. `spoke`: it has news. `flight`: a
    message is under way; `quiet`: one was not heard, and nothing is said before the next beat.
    `hungry`: data is wanted; `wants`: it is asked for once the report under way is answered;
    `fetching`: it is granted and not there yet.
    """

    terms: Terms
    life: Life
    offset: int
    tracks: tuple[Track, ...]
    newest: Mapping[Fragment, Version]
    progress: Progress
    ahead_windows: int
    past_t: int = 0
    goes_on: bool = True
    over: Void | None = None
    stepping: bool = True
    step_s: float = 0.0
    asks: tuple[Fragment, ...] = ()
    news: tuple[Fragment, ...] = ()
    awaiting: tuple[tuple[Fragment, Version], ...] = ()
    kept: tuple[HandOver, ...] = ()
    flying: tuple[tuple[Fragment, Version, int], ...] = ()
    busy: bool = False
    rested: bool = False
    held: bool = False
    said: tuple[Adopted, ...] = ()
    saying: tuple[Adopted, ...] = ()
    spoke: bool = False
    hungry: bool = False
    wants: bool = False
    fetching: bool = False
    flight: bool = False
    quiet: bool = False

    @property
    def clock(self) -> int:
        """Its step on the syncer's clock."""
        return self.progress.steps + self.offset

    @property
    def rate_clock(self) -> int:
        """The clock whose learning rate its next step takes: its own, and out of lock-step never
        further than H from the syncer's t.

        So islands of any speed end their schedules together: one at a third of the speed would
        merge deltas of the full rate with those of islands whose rate has fallen.
        """
        if self.terms.until is not None:
            return self.clock
        most = self.terms.schedule.longest
        return self.clock - self.past_t + max(-most, min(self.past_t, most))


Outcome = tuple[LearnerState, Words]


def begun(
    terms: Terms, granted: Granted, versions: Sequence[Version], cursor: Lease, ahead_windows: int
) -> LearnerState:
    """A life that begins at these versions, one for each fragment; `cursor`: in its data."""
    return LearnerState(
        terms,
        granted.life,
        granted.offset,
        tuple(Track(version) for version in versions),
        {Fragment(p): version for p, version in enumerate(versions)},
        Progress(0, 0, cursor),
        ahead_windows,
    )
