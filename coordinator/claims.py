"""Bounds on what a learner can have done: its steps, tokens and place in the data.

A clock moves by what one island reports, so one flipped bit could end the run as a success.
The bounds follow from facts that are not the island's: the leases that it was given, the windows of
a step, and the syncer's clock. Claims of other islands are used only where the number of tokens in
a window is unknown.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort

from coordinator import leases
from coordinator.frozen import replace
from coordinator.membership import Member, density
from coordinator.protocol import Contribution, Progress
from coordinator.roster import Roster
from coordinator.state import Rule

SHARE_OF_FASTEST = 0.5
"""The least duration of a step, as a share of the fastest one that its learner has reported."""
CREDIT_S, CREDIT_STEPS = 120.0, 4.0
"""The credit of a learner in seconds and in steps of its own; the longer of the two counts.

A learner that sent nothing for a while may claim steps of that much time at once: reports that
waited for a stopped syncer arrive together. A moving average that begins with one slow step (the
first one) overrates those after it by less than three times that step in all.
"""
DENSER = 16.0
"""The most tokens in a window where their number is unknown, as a multiple of the usual number.

Up to edition 3 that was the largest number of any learner so far, this one's last claim included,
so that each claim could raise the next one's limit. From edition 4 on see `_usual`.
"""
MOST_UNREAD, MOST_HELD, MOST_H = 16, 1024, 8
"""The most leases that a learner may have.

- MOST_UNREAD: leases ahead of it, beyond those of two steps
- MOST_HELD: all leases, beyond those of MOST_H times H steps, also if nothing vouches for what it
  has read
"""


def impossible(
    rule: Rule,
    members: Roster,
    member: Member,
    progress: Progress,
    now_s: float,
    step_s: float | None = None,
) -> str | None:
    """Return why this life cannot have come so far, None if it can.

    `step_s`: seconds per step in the report that claims it; None for other messages.
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
    """Return why its leases have too little data for these steps or this place; None if not."""
    batch, lease = rule.batch_of(member.group), progress.lease
    needed = progress.steps * batch
    if batch == 0:
        return None
    if lease.start > rule.lease_windows:
        return f"it has read {lease.start} windows of a lease, which has {rule.lease_windows}"
    consumed = leases.consumed(member.held, member.passed, lease, rule.lease_windows)
    if consumed is None and progress.steps > member.vouched:
        return f"it reads lease {lease.number}, which it does not hold"
    reached = member.granted if consumed is None else consumed
    if needed <= reached <= member.granted:
        return None
    return (
        f"it claims {progress.steps} steps of {batch} window{'s' * (batch > 1)}, and has read "
        f"{reached} of the {member.granted} windows in its leases"
    )


def _too_many_tokens(rule: Rule, members: Roster, member: Member, progress: Progress) -> str | None:
    """Return why it cannot have trained that many tokens in its steps; None if it can."""
    steps, tokens, batch = progress.steps, progress.tokens, rule.batch_of(member.group)
    if tokens <= member.progress.tokens or batch == 0:
        return None
    if rule.window_tokens:
        limit = float(rule.window_tokens * batch * steps)
    elif rule.edition >= 4:
        usual = _usual(rule, members, member)
        limit = DENSER * usual * batch * steps if usual > 0 or steps == 0 else math.inf
    elif tokens <= (limit := DENSER * _density(rule, member) * batch * steps):
        return None
    else:  # a search of all members is rarely needed
        largest = max(_density(rule, other) for other in members.values())
        limit = DENSER * largest * batch * steps if largest > 0 or steps == 0 else math.inf
    return None if tokens <= limit else f"{tokens} tokens in {steps} steps, the most is {limit:.0f}"


def _density(rule: Rule, member: Member) -> float:
    """Return the tokens per window that this learner has trained so far."""
    return density(member, rule.batch_of(member.group))


def _usual(rule: Rule, members: Roster, member: Member) -> float:
    """Return the usual number of tokens per window, 0 if none is known.

    This is the upper median of what each other learner has trained so far, and of the first report
    of this life. No later claim of the life counts, and no single other learner among two or more
    can set it.
    """
    known, same = [*members.densities(rule.batch_of)], members.get(member.life.island)
    if same is not None and same.life == member.life and (own := _density(rule, same)) > 0:
        del known[bisect_left(known, own)]
    if member.first_density > 0:
        insort(known, member.first_density)
    return known[len(known) // 2] if known else 0.0


def too_dense(rule: Rule, members: Roster, member: Member, c: Contribution) -> bool:
    """Return whether a contribution claims more tokens than its steps can have had."""
    is_bounded_by_others = rule.edition >= 4 and not rule.window_tokens
    usual = _usual(rule, members, member) if is_bounded_by_others else _density(rule, member)
    per_window = rule.window_tokens or DENSER * usual
    return rule.bounded and 0 < per_window * rule.batch_of(member.group) * c.steps < c.tokens


def _needed_s(member: Member, progress: Progress, step_s: float | None) -> float:
    """Return the least number of seconds that the new steps take."""
    durations = [seconds for seconds in (member.fastest_s, step_s or 0.0) if seconds > 0]
    steps = progress.steps - member.progress.steps
    return steps * SHARE_OF_FASTEST * min(durations, default=0.0)


def _credit_s(member: Member, now_s: float) -> float:
    """Return the seconds of stepping that the learner may claim now."""
    most_s = max(CREDIT_S, CREDIT_STEPS * member.step_s)
    return min(most_s, member.credit_s) + now_s - member.credited_s


def charged(
    rule: Rule, member: Member, progress: Progress, now_s: float, step_s: float | None = None
) -> Member:
    """Return the member after a claim of `progress`, which is new and accepted.

    Its credit is reduced, and the first claim of a life sets its `first_density`.
    """
    if not rule.bounded:
        return member
    credit_s = _credit_s(member, now_s) - _needed_s(member, progress, step_s)
    first = member.first_density
    if rule.edition >= 4 and not rule.window_tokens and first == 0:
        first = _density(rule, replace(member, progress=progress))
    return replace(member, credit_s=credit_s, credited_s=now_s, first_density=first)


def timed(rule: Rule, member: Member, step_s: float) -> Member:
    """Return the member after a report of its seconds per step."""
    if not rule.bounded or not step_s > 0 or 0 < member.fastest_s <= step_s:
        return member
    is_first = member.fastest_s == 0
    credit_s = max(member.credit_s, CREDIT_STEPS * step_s) if is_first else member.credit_s
    return replace(member, credit_s=credit_s, fastest_s=step_s)


def leaps_to_the_end(rule: Rule, member: Member, progress: Progress) -> bool:
    """Return whether a report would take its learner's clock to the end of the run past a whole H.

    One message does not end a run: such a clock is doubted until the learner has reported it twice.
    """
    at_end = progress.steps + member.offset >= rule.steps
    return (
        rule.bounded and at_end and progress.steps - member.progress.steps > rule.schedule.longest
    )


def hoards(rule: Rule, member: Member) -> str | None:
    """Return why a learner that holds more data than it can need gets no more, else None."""
    if not rule.bounded:
        return None
    batch = rule.batch_of(member.group)
    step_leases = -(-2 * batch // rule.lease_windows)
    round_leases = -(-MOST_H * rule.schedule.longest * batch // rule.lease_windows)
    numbers = [lease.number for lease in member.held]
    current = member.progress.lease.number
    unread = len(numbers) - (numbers.index(current) + 1 if current in numbers else 0)
    if unread >= MOST_UNREAD + step_leases:
        return f"it wants data and has {unread} leases that it has not begun to read"
    if len(numbers) >= MOST_HELD + step_leases + round_leases:
        return f"it wants data and holds {len(numbers)} leases, for which no contribution vouches"
    return None
