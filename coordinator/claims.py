"""Can a learner have done what it says? Its steps, tokens and place in the data, held to its leases
and to the time since it joined.

A clock moves by what one island says of itself, so one flipped bit would end the run as a success.
What is possible follows from facts that are not the island's: the leases that it was given, the
windows of a step, and the syncer's clock. Nothing here looks at the words of other islands, save
where nobody knows how many tokens a window has.
"""

from __future__ import annotations

import math

from coordinator import leases
from coordinator.frozen import replace
from coordinator.membership import Member, Members
from coordinator.protocol import Contribution, Progress
from coordinator.state import Rule

SHARE_OF_FASTEST = 0.5
"""A step is taken to last at least this share of the fastest one that its learner has reported."""
CREDIT_S, CREDIT_STEPS = 120.0, 4.0
"""A learner that was not heard for a while may claim steps of so many seconds at once, or of so
many of its own steps if that is longer: reports that waited for a syncer that stood still come
together. A moving average that begins with one slow step (the first one) overrates those after it
by less than three times that step in all."""
DENSER = 16.0
"""Where nobody knows how many tokens a window has, a learner may claim this many times as many as
it, or any other learner, has trained in a window so far."""
MOST_UNREAD, MOST_HELD, MOST_H = 16, 1024, 8
"""Leases that a learner may have ahead of it, beyond those of two steps; and all that it may hold,
beyond those of so many times H steps, also if nothing vouches for what it has read."""


def impossible(
    rule: Rule,
    members: Members,
    member: Member,
    progress: Progress,
    now_s: float,
    step_s: float | None = None,
) -> str | None:
    """Return why this life cannot have come so far, None if it can.

    `step_s`: of the report that says so, None for other words.
    """
    if not rule.bounded:
        return None
    if (why := _beyond_its_leases(rule, member, progress)) is not None:
        return why
    if (why := _too_many_tokens(rule, members, member, progress)) is not None:
        return why
    steps, needed_s = progress.steps - member.progress.steps, _needed_s(member, progress, step_s)
    if steps > 0 and needed_s > (credit_s := _credit_s(member, now_s)):
        return (
            f"it claims {steps} more steps, which take {needed_s:.3g} s at twice its fastest "
            f"speed; it had {credit_s:.3g} s"
        )
    return None


def _beyond_its_leases(rule: Rule, member: Member, progress: Progress) -> str | None:
    """Say why its leases do not hold so many steps, or not up to this place."""
    batch, lease = rule.batch_of(member.group), progress.lease
    wanted = progress.steps * batch
    if batch == 0:
        return None
    if lease.start > rule.lease_windows:
        return f"it has read {lease.start} windows of a lease, which has {rule.lease_windows}"
    read = leases.consumed(member.held, member.passed, lease, rule.lease_windows)
    if read is None and progress.steps > member.vouched:
        return f"it reads lease {lease.number}, which it does not hold"
    there = member.granted if read is None else read
    if wanted <= there <= member.granted:
        return None
    return (
        f"it claims {progress.steps} steps of {batch} window{'s' * (batch > 1)}, and has read "
        f"{there} of the {member.granted} windows in its leases"
    )


def _too_many_tokens(
    rule: Rule, members: Members, member: Member, progress: Progress
) -> str | None:
    """Say why it cannot have trained so many tokens in its steps."""
    steps, tokens, batch = progress.steps, progress.tokens, rule.batch_of(member.group)
    if tokens <= member.progress.tokens or batch == 0:
        return None
    if rule.window_tokens:
        most = float(rule.window_tokens * batch * steps)
    elif tokens <= (most := DENSER * _density(rule, member) * batch * steps):
        return None
    else:  # seldom must all be looked through
        density = max(_density(rule, each) for each in members.values())
        most = DENSER * density * batch * steps if density > 0 or steps == 0 else math.inf
    return None if tokens <= most else f"{tokens} tokens in {steps} steps, the most is {most:.0f}"


def _density(rule: Rule, member: Member) -> float:
    """Return the tokens that this learner has trained in a window so far."""
    windows = member.progress.steps * rule.batch_of(member.group)
    return member.progress.tokens / windows if windows > 0 else 0.0


def too_dense(rule: Rule, member: Member, c: Contribution) -> bool:
    """Whether a contribution claims more tokens than its steps can have had."""
    per_window = rule.window_tokens or DENSER * _density(rule, member)
    return rule.bounded and 0 < per_window * rule.batch_of(member.group) * c.steps < c.tokens


def _needed_s(member: Member, progress: Progress, step_s: float | None) -> float:
    """Return the least time that the steps take which are new."""
    known = [each for each in (member.fastest_s, step_s or 0.0) if each > 0]
    steps = progress.steps - member.progress.steps
    return steps * SHARE_OF_FASTEST * min(known, default=0.0)


def _credit_s(member: Member, now_s: float) -> float:
    """Return the seconds of stepping that it may claim now."""
    most_s = max(CREDIT_S, CREDIT_STEPS * member.step_s)
    return min(most_s, member.credit_s) + now_s - member.credited_s


def charged(
    rule: Rule, member: Member, progress: Progress, now_s: float, step_s: float | None = None
) -> Member:
    """Return the member after it has claimed this, `progress` being ahead of what was known."""
    if not rule.bounded:
        return member
    credit_s = _credit_s(member, now_s) - _needed_s(member, progress, step_s)
    return replace(member, credit_s=credit_s, credited_s=now_s)


def timed(rule: Rule, member: Member, step_s: float) -> Member:
    """Return the member after it has reported how long a step takes it."""
    if not rule.bounded or not step_s > 0 or 0 < member.fastest_s <= step_s:
        return member
    first = member.fastest_s == 0
    credit_s = max(member.credit_s, CREDIT_STEPS * step_s) if first else member.credit_s
    return replace(member, credit_s=credit_s, fastest_s=step_s)


def leaps_to_the_end(rule: Rule, member: Member, progress: Progress) -> bool:
    """Whether a report would take its learner's clock to the end of the run past a whole H.

    One word does not end a run: such a clock is doubted until the learner has said so twice.
    """
    ends = progress.steps + member.offset >= rule.steps
    return rule.bounded and ends and progress.steps - member.progress.steps > rule.schedule.longest


def hoards(rule: Rule, member: Member) -> str | None:
    """Return why a learner gets no more data: it has more ahead than it can need; None if not."""
    if not rule.bounded:
        return None
    batch = rule.batch_of(member.group)
    need = -(-2 * batch // rule.lease_windows)
    rounds = -(-MOST_H * rule.schedule.longest * batch // rule.lease_windows)
    numbers = [lease.number for lease in member.held]
    reading = member.progress.lease.number
    unread = len(numbers) - (numbers.index(reading) + 1 if reading in numbers else 0)
    if unread >= MOST_UNREAD + need:
        return f"it wants data and has {unread} leases that it has not begun to read"
    if len(numbers) >= MOST_HELD + need + rounds:
        return f"it wants data and holds {len(numbers)} leases, for which no contribution vouches"
    return None
