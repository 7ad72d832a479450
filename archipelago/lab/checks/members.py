"""Invariants of members and leases: no learner is given up for nothing, nothing is leased twice."""

from __future__ import annotations

from archipelago.lab.checks.claims import believed
from archipelago.lab.checks.facts import Violation
from archipelago.lab.checks.history import ALMOST, SILENCE_S, JudgeMemory
from coordinator.membership import SPEAKING, Member, Status
from coordinator.protocol import (
    Adopted,
    Arrived,
    Event,
    Join,
    LeaseWanted,
    Left,
    Lost,
    Merged,
    Missing,
    Report,
    Resume,
    Unsound,
)
from coordinator.state import State


def look(memory: JudgeMemory, before: State, event: Event, after: State, now_s: float) -> None:
    """Check that no learner is given up without a reason, and that no dead life comes back.

    Errors: `Violation`.
    """
    moved = False
    for island, member in after.members.items():
        old = before.members.get(island)
        if old is member:
            continue
        if old is None or old.held is not member.held:
            moved = True
        if (
            old
            and old.quarantines != member.quarantines
            and not isinstance(event, Arrived | Merged | Unsound | Report | Adopted | Left)
        ):
            raise Violation("quarantines are remembered", f"{old}, by {event} {member}")
        if member.status is Status.LIVE:
            if member.progress.steps == 0:
                raise Violation("live learners have stepped", f"{member}")
            memory.live_since.setdefault(member.life, now_s)
        if old is None or old.life != member.life:
            if not isinstance(event, Join) or member.status is not Status.JOINING:
                raise Violation("lives begin with a join", f"{member.life} by {event}")
        elif old.status is not member.status:
            _changes(memory, old, member, event, now_s)
    if moved:
        leases(memory, after)


def _changes(memory: JudgeMemory, old: Member, new: Member, event: Event, now_s: float) -> None:
    """Check that the change of a member's status was allowed."""
    if old.status not in SPEAKING:
        raise Violation("dead lives stay dead", f"{old.life} from {old.status} to {new.status}")
    if new.status is not Status.LOST or isinstance(event, Resume):
        return
    if isinstance(event, Lost) and event.life == old.life:
        return
    if isinstance(event, LeaseWanted) and event.life == old.life:
        return  # it asked for more than it can need; `fencing` checks that
    is_lock_step = memory.rule.overlap == 0
    if isinstance(event, Missing) and event.life == old.life and event.lost and is_lock_step:
        return  # in lock-step all would wait for a lost hand-in
    if now_s - min(old.heard_s, old.advanced_s) >= SILENCE_S - ALMOST:
        return
    if isinstance(event, Arrived) and event.contribution.id.life == old.life and is_lock_step:
        believed(memory, old.life, new.why)  # its steps were on the account already
    else:
        raise Violation("no learner is given up early", f"{new.life}: {new.why} at {now_s}")


def leases(memory: JudgeMemory, after: State) -> None:
    """Check that each lease of a region has one holder, or is in the pool.

    Errors: `Violation`.
    """
    for region, pool in after.leases.items():
        numbers = [lease.number for lease in pool.returned]
        for member in after.members.values():
            if member.status in SPEAKING and member.region == region:
                numbers += [lease.number for lease in member.held]
        if len(numbers) != len(set(numbers)):
            raise Violation("a lease has one holder", f"{region}: {sorted(numbers)}")
        if numbers and max(numbers) >= pool.fresh:
            raise Violation("a lease has one holder", f"{region}: {numbers} of {pool.fresh}")
