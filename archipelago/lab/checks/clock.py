"""Invariants of the clock: t never falls and is the K-th largest; no silent learner is kept."""

from __future__ import annotations

from archipelago.lab.checks.facts import Violation
from archipelago.lab.checks.history import ALMOST, SILENCE_S, SILENCE_STEPS, JudgeMemory
from coordinator.membership import Member, Status
from coordinator.protocol import (
    Event,
    Report,
    Stop,
)
from coordinator.state import Phase, State


def look(memory: JudgeMemory, before: State, event: Event, after: State, now_s: float) -> None:
    """Check that t never falls and is the K-th largest live clock, and that none is silent.

    A clock that leaps to the end of the run does not count until its learner has reported that
    twice.

    Errors: `Violation`.
    """
    k = memory.rule.min_quorum
    steps_count = memory.rule.overlap > 0 and after.phase is Phase.RUNNING
    clocks: list[int] = []
    for m in after.members.values():
        if m.status is Status.LIVE:
            _leaps(memory, before, event, m)
            if not m.doubted:
                clocks.append(m.progress.steps + m.offset)
            since_s = m.advanced_s if steps_count else m.heard_s
            if now_s - since_s > max(SILENCE_S, SILENCE_STEPS * m.step_s) + ALMOST:
                raise Violation("silent learners are given up", f"{m} at {now_s}")
    clocks.sort(reverse=True)
    if not before.t <= after.t <= memory.rule.steps:
        raise Violation("t never falls", f"{before.t} to {after.t} of {memory.rule.steps}")
    if len(clocks) < k or before.phase is not Phase.RUNNING:
        if after.t != before.t:
            raise Violation("t is the K-th clock", f"{after.t}, of {len(clocks)} clocks")
    elif after.t != _believed(memory, before, after, clocks[k - 1]) and not isinstance(event, Stop):
        raise Violation("t is the K-th clock", f"{after.t}, the clocks are {clocks}")
    if after.t > before.t:
        for p, fragment in enumerate(after.fragments):
            if is_due(memory, p, before, after) and fragment.round is None and not fragment.due:
                raise Violation("due rounds are opened", f"f{p} at t = {after.t}")


def _believed(memory: JudgeMemory, before: State, after: State, clock: int) -> int:
    """Return where t must be, given the K-th largest of the accepted clocks.

    While a learner is doubted, t stays at least where it was: that learner may have moved it there.
    """
    t = min(clock, memory.rule.steps)
    return max(t, before.t) if any(m.doubted for m in after.members.values()) else t


def _leaps(memory: JudgeMemory, before: State, event: Event, member: Member) -> None:
    """Check that only a clock that passes T and a whole H at once is doubted, until repeated."""
    old, steps = before.members.get(member.life.island), member.progress.steps
    if old is member or memory.rule.edition == 0:
        return
    old_steps = old.progress.steps if old is not None and old.life == member.life else 0
    longest = max([memory.rule.schedule.every, *(b.every for b in memory.rule.schedule.before)])
    leaps = steps - old_steps > longest and steps + member.offset >= memory.rule.steps
    was_doubted = old is not None and old.life == member.life and old.doubted
    if leaps and not was_doubted and not member.doubted:
        raise Violation("no island ends a run alone", f"{member} by {event}")
    is_repeated = (
        isinstance(event, Report)
        and event.life == member.life
        and event.progress.steps >= old_steps
    )
    if was_doubted and not member.doubted and not is_repeated:
        raise Violation("no island ends a run alone", f"{member} by {event}")
    if member.doubted and not (leaps or was_doubted):
        raise Violation("every doubted clock has leapt", f"{member} by {event}")


def is_due(memory: JudgeMemory, p: int, before: State, after: State) -> bool:
    """Return whether fragment `p` was due at a step after `before.t` and up to `after.t`.

    This evaluates the formula at one step after the other, unlike the rules.
    """
    schedule = memory.rule.schedule
    for t in range(before.t + 1, after.t + 1):
        every = next((b.every for b in schedule.before if t <= b.upto), schedule.every)
        if (t - p * every // schedule.fragments) % every == 0:
            return True
    return False
