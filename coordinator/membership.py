"""Who is live, joining, draining, lost; a restart is a new incarnation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coordinator.frozen import replace
from coordinator.protocol import Island, Lease, Life, Progress, Region

SILENCE_FLOOR_S = 10.0
"""No learner is given up for silence sooner: compilations and page faults take seconds."""
SILENCE_JOINING_S = 120.0
"""A joining learner is given longer: it takes in the whole model before it can speak."""
SILENCE_STEPS = 30.0
"""A learner is not given up before this many of its own steps should have been over either."""
REFUSALS_UNTIL_QUARANTINE = 3
"""So many refusals by the gate in a row, and the learner must recover."""
BARRED_S, BARRED_DOUBLINGS = 5.0, 6
"""An island that is quarantined again before it has contributed may not join for so long; twice as
long each time, so many times: up to 320 s."""


class Status(StrEnum):
    """Where a learner stands."""

    JOINING = "joining"  # has a life, has not reported a step
    LIVE = "live"  # counts for the clock, is asked, is waited for
    DRAINING = "draining"  # hands in what it has, steps no more
    QUARANTINED = "quarantined"  # its numbers are not to be trusted: must join again
    LOST = "lost"  # its life is over; the island may join again
    LEFT = "left"  # drained to the end


SPEAKING = frozenset({Status.JOINING, Status.LIVE, Status.DRAINING})
"""Learners whose words are heard."""


@dataclass(frozen=True, slots=True)
class Member:
    """What the syncer knows of one island's learner.

    `offset`: clock = steps + offset. `heard_s`: last word; `advanced_s`: last inner step.
    `held`: leases, in reading order; `covered`: the data cursor that an admitted contribution
    vouches for, from where another learner would read on. `quarantines`: of this island since its
    last admitted contribution, over all its lives; `barred_s`: it may not join again before.
    `against`: merges in a row in which it pointed against the others; `trial`: so many
    contributions that do not are still wanted, over all its lives, before one is merged again.

    From edition 1 of the rules on: `granted`: windows in all leases that this life was ever given;
    `passed`: windows of those that are not in `held` any more; `vouched`: the step up to which an
    admitted contribution has said what it read; `fastest_s`: the shortest step that
    it has reported, 0 before the first; `credit_s`: seconds of stepping that it may still claim as
    of `credited_s`; `doubted`: it claims to have passed the end of the run in one leap, and has not
    said so twice.
    """

    life: Life
    group: str
    status: Status
    why: str
    offset: int
    progress: Progress
    heard_s: float
    advanced_s: float
    step_s: float = 0.0
    refusals: int = 0
    quarantines: int = 0
    barred_s: float = 0.0
    against: int = 0
    trial: int = 0
    region: Region | None = None
    held: tuple[Lease, ...] = ()
    covered: Lease | None = None
    granted: int = 0
    passed: int = 0
    vouched: int = 0
    fastest_s: float = 0.0
    credit_s: float = 0.0
    credited_s: float = 0.0
    doubted: bool = False

    @property
    def clock(self) -> int:
        return self.progress.steps + self.offset


Members = Mapping[Island, Member]


def live(members: Members) -> dict[Island, Member]:
    return {island: m for island, m in members.items() if m.status is Status.LIVE}


def speaking(members: Members, life: Life) -> Member | None:
    """The member if these are the words of its present life, None if they are void."""
    member = members.get(life.island)
    return member if member and member.life == life and member.status in SPEAKING else None


def barred_for_s(quarantines: int) -> float:
    """How long an island may not join after so many quarantines without a contribution between.

    There is no delay after the first quarantine: it may have been transient.
    """
    if quarantines < 2:
        return 0.0
    return BARRED_S * 2 ** min(quarantines - 2, BARRED_DOUBLINGS)


def suspended(member: Member, why: str, now_s: float) -> tuple[Member, str]:
    """Return the member with one more quarantine and how long it is barred; and why, in words."""
    quarantines = member.quarantines + 1
    if (barred_s := barred_for_s(quarantines)) > 0:
        times = f"{quarantines} times without a contribution between"
        why += f"; quarantined {times}, barred for {barred_s:g} s"
    return replace(member, quarantines=quarantines, barred_s=now_s + barred_s), why


def silence_limit_s(member: Member) -> float:
    """After how many seconds without a sign the learner is given up."""
    floor = SILENCE_JOINING_S if member.status is Status.JOINING else SILENCE_FLOOR_S
    return max(floor, SILENCE_STEPS * member.step_s)


def silent_since_s(member: Member, *, must_advance: bool) -> float:
    """Since when nothing was heard, or, where learners do not wait, since when no step was done."""
    stepping = must_advance and member.status is Status.LIVE
    return member.advanced_s if stepping else member.heard_s
