"""The members of a run: one learner per island, with its status and its silence timeout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coordinator.frozen import replace
from coordinator.protocol import Island, Lease, Life, Progress, Region

SILENCE_FLOOR_S = 10.0
"""Shortest silence timeout in seconds: compilations and page faults take seconds."""
SILENCE_JOINING_S = 120.0
"""Silence timeout of a joining learner in seconds: it loads the whole model before it can speak."""
SILENCE_STEPS = 30.0
"""Silence timeout in steps of the learner's own; the longer of this and the seconds counts."""
REFUSALS_UNTIL_QUARANTINE = 3
"""Refusals by the gate in a row after which the learner is quarantined."""
STRICT_FOR = 64
"""Contributions after a quarantine for norms to which a strict limit applies (edition 3).

Without this, an island whose deltas grow steadily would be admitted again in each new life, because
a life begins with short deltas, for which the limit is higher.
"""
BARRED_S, BARRED_DOUBLINGS = 5.0, 6
"""Back-off of an island that is quarantined again before it has contributed, in seconds.

The time for which it may not join doubles with each quarantine, up to 320 s.
"""

STEPS = "steps"
"""The reason of every live learner: it has reported a step."""


class Status(StrEnum):
    """The status of a learner."""

    JOINING = "joining"  # has a life, has not reported a step
    LIVE = "live"  # counts for the clock, is asked, is waited for
    DRAINING = "draining"  # hands in what it has, and stops stepping
    QUARANTINED = "quarantined"  # its numbers are not trusted: it must join again
    LOST = "lost"  # its life is over; the island may join again
    LEFT = "left"  # drained to the end


SPEAKING = frozenset({Status.JOINING, Status.LIVE, Status.DRAINING})
"""Statuses in which a learner's messages count."""


@dataclass(frozen=True, slots=True)
class Member:
    """The syncer's record of one island's learner.

    The fields from `granted` on belong to edition 1 of the rules.
    """

    life: Life
    group: str
    """The name of the learner's group in the configuration."""
    status: Status
    why: str
    """The reason for the status, in words."""
    offset: int
    """Difference of the clock to the inner steps: clock = steps + offset."""
    progress: Progress
    heard_s: float
    """Time of its last message."""
    advanced_s: float
    """Time of its last inner step."""
    step_s: float = 0.0
    """Seconds that an inner step takes it; 0 before the first report."""
    refusals: int = 0
    """Refusals by the gate in a row."""
    quarantines: int = 0
    """Quarantines of the island since its last admitted contribution, over all its lives.

    From edition 3 on, a contribution under the strict limit does not set it back to 0.
    """
    strict: int = 0
    """Admitted contributions that it still owes before the usual limit of norms applies to it.

    The count is kept over all lives of the island.
    """
    barred_s: float = 0.0
    """Time before which the island may not join again."""
    against: int = 0
    """Merges in a row in which it pointed against the others."""
    trial: int = 0
    """Contributions in line with the others that it still owes before one is merged again.

    The count is kept over all lives of the island.
    """
    region: Region | None = None
    """The region of the corpus that it reads."""
    held: tuple[Lease, ...] = ()
    """Leases, in reading order."""
    covered: Lease | None = None
    """The data cursor that an admitted contribution vouches for; another learner reads on there."""
    granted: int = 0
    """Windows in all leases that this life was given."""
    passed: int = 0
    """Windows of the leases that are no longer in `held`."""
    vouched: int = 0
    """Inner step up to which an admitted contribution has vouched for the data read."""
    fastest_s: float = 0.0
    """Seconds of the shortest step that it has reported; 0 before the first."""
    credit_s: float = 0.0
    """Seconds of stepping that it could still claim at the time `credited_s`."""
    credited_s: float = 0.0
    """Time at which `credit_s` was computed."""
    first_density: float = 0.0
    """Tokens per window in the first claim of this life (edition 4); 0 before it, or if known."""
    doubted: bool = False
    """Whether it claims a leap past the end of the run, and has reported it only once."""

    @property
    def clock(self) -> int:
        """The learner's logical clock: its inner steps plus its offset."""
        return self.progress.steps + self.offset


Members = Mapping[Island, Member]


def live(members: Members) -> dict[Island, Member]:
    """Return the members that are live."""
    return {island: m for island, m in members.items() if m.status is Status.LIVE}


def speaking(members: Members, life: Life) -> Member | None:
    """Return the member if this is its present life; None if messages of this life are void."""
    member = members.get(life.island)
    return member if member and member.life == life and member.status in SPEAKING else None


def barred_for_s(quarantines: int) -> float:
    """Return the back-off in seconds after this many quarantines without a contribution between.

    There is none after the first quarantine: its cause may have been transient.
    """
    if quarantines < 2:
        return 0.0
    return BARRED_S * 2 ** min(quarantines - 2, BARRED_DOUBLINGS)


def suspended(member: Member, why: str, now_s: float) -> tuple[Member, str]:
    """Return the member with one more quarantine and its back-off, and the reason in words."""
    quarantines = member.quarantines + 1
    if (barred_s := barred_for_s(quarantines)) > 0:
        between = f"{STRICT_FOR} contributions" if member.strict else "a contribution"
        times = f"{quarantines} times without {between} between"
        why += f"; quarantined {times}, barred for {barred_s:g} s"
    return replace(member, quarantines=quarantines, barred_s=now_s + barred_s), why


def density(member: Member, batch: int) -> float:
    """Return the tokens per window that a learner has trained so far; 0 before its first step.

    `batch`: windows in one of its steps.
    """
    windows = member.progress.steps * batch
    return member.progress.tokens / windows if windows > 0 else 0.0


def silence_limit_s(member: Member) -> float:
    """Return the seconds of silence after which the learner is given up."""
    floor = SILENCE_JOINING_S if member.status is Status.JOINING else SILENCE_FLOOR_S
    return max(floor, SILENCE_STEPS * member.step_s)


def silent_since_s(member: Member, *, must_advance: bool) -> float:
    """Return the time since when the learner is silent.

    If learners do not wait for adoption (`must_advance`), the silence of a live learner begins with
    its last step, else with its last message.
    """
    stepping = must_advance and member.status is Status.LIVE
    return member.advanced_s if stepping else member.heard_s
