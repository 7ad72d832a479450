"""The invariant of claims: no message moves a clock, tokens or data further than is possible.

Besides, the reports of a learner that reports correctly are accepted.

The possible progress is counted here from the effects: from the leases that a life was granted, and
from the time since its last message.
"""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.lab.checks.facts import Violation
from archipelago.lab.checks.history import ALMOST, CREDIT_S, CREDIT_STEPS, HURRY, JudgeMemory
from coordinator.membership import SPEAKING, Member
from coordinator.protocol import Effect, Event, Granted, Lease, LeaseGranted, Life, Report
from coordinator.state import State


def look(
    memory: JudgeMemory,
    before: State,
    event: Event,
    after: State,
    effects: Sequence[Effect],
    now_s: float,
) -> None:
    """Check that each life has come no further than its leases and its time allow.

    Errors: `Violation`.
    """
    if memory.rule.edition == 0:
        return
    for effect in effects:
        if isinstance(effect, Granted):
            _grants(memory, effect.life, effect.leases)
        elif isinstance(effect, LeaseGranted):
            _grants(memory, effect.life, (effect.lease,))
    if isinstance(event, Report):
        known_s = memory.slowest_s.get(event.life, 0.0)
        memory.slowest_s[event.life] = max(known_s, event.step_s)
    for island, member in after.members.items():
        old = before.members.get(island)
        if old is None or old is member or old.life != member.life or old.status not in SPEAKING:
            continue
        if member.progress is not old.progress:
            _advances(memory, old, member, event, now_s)
    for life, account in after.ledger.accounts.items():
        old_account = before.ledger.accounts.get(life)
        if account is old_account or not memory.rule.window_tokens:
            continue
        if account.tokens > memory.windows_of[life] * memory.rule.window_tokens:
            text = f"{life} has {account.tokens} tokens of {memory.windows_of[life]} windows"
            raise Violation("no message moves the ledger too far", f"{text}, by {event}")


def _grants(memory: JudgeMemory, life: Life, leases: Sequence[Lease]) -> None:
    """Count the windows of newly granted leases."""
    windows = sum(memory.rule.lease_windows - lease.start for lease in leases)
    memory.windows_of[life] = memory.windows_of.get(life, 0) + windows


def _advances(memory: JudgeMemory, old: Member, new: Member, event: Event, now_s: float) -> None:
    """Check that a life had the windows, and the time, for the steps that it claims."""
    batch = dict(memory.rule.batches).get(new.group, 1)
    if new.progress.steps * batch > memory.windows_of.get(new.life, 0):
        text = f"{new.life} has {new.progress.steps} steps of {batch} windows"
        raise Violation(
            "no message moves t too far", f"{text}, {memory.windows_of[new.life]} in its leases"
        )
    fastest_s = memory.truth.fastest_s(new.life)
    if old.fastest_s == 0 or fastest_s == 0:
        return  # its fastest step is not known yet
    slowest_s = max(memory.slowest_s.get(new.life, 0.0), old.step_s)
    had_s = now_s - old.credited_s + max(CREDIT_S, CREDIT_STEPS * slowest_s)
    new_steps = new.progress.steps - old.progress.steps
    if new_steps * fastest_s > HURRY * had_s + ALMOST:
        text = (
            f"{new.life} has done {new_steps} steps in {had_s:.1f} s, one takes {fastest_s:.2f} s"
        )
        raise Violation("no message moves t too far", f"{text}, by {event}")


def believed(memory: JudgeMemory, life: Life, why: str) -> None:
    """Check that a life that was ended for its claims may have reported something wrong."""
    if not memory.truth.lied(life):
        raise Violation("correct reports are accepted", f"{life}: {why}")
