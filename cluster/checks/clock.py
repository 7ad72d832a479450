"""Invariants of the clock: t never falls and is the K-th largest, nobody silent is kept."""

from __future__ import annotations

from cluster.checks.memory import ALMOST, SILENCE_S, SILENCE_STEPS, Memory
from cluster.checks.truth import Violation
from coordinator.membership import Status
from coordinator.protocol import (
    Event,
    Stop,
)
from coordinator.state import Phase, State


def look(memory: Memory, before: State, event: Event, after: State, now_s: float) -> None:
    """t never falls, and is the K-th largest clock of the live learners; none is silent."""
    k = memory.rule.min_quorum
    steps_count = memory.rule.overlap > 0 and after.phase is Phase.RUNNING
    clocks: list[int] = []
    for m in after.members.values():
        if m.status is Status.LIVE:
            clocks.append(m.progress.steps + m.offset)
            since_s = m.advanced_s if steps_count else m.heard_s
            if now_s - since_s > max(SILENCE_S, SILENCE_STEPS * m.step_s) + ALMOST:
                raise Violation("the silent are given up", f"{m} at {now_s}")
    clocks.sort(reverse=True)
    if not before.t <= after.t <= memory.rule.steps:
        raise Violation("t never falls", f"{before.t} to {after.t} of {memory.rule.steps}")
    if len(clocks) < k or before.phase is not Phase.RUNNING:
        if after.t != before.t:
            raise Violation("t is the K-th clock", f"{after.t}, of {len(clocks)} clocks")
    elif after.t != min(clocks[k - 1], memory.rule.steps) and not isinstance(event, Stop):
        raise Violation("t is the K-th clock", f"{after.t}, the clocks are {clocks}")
    if after.t > before.t:
        for p, fragment in enumerate(after.fragments):
            if is_due(memory, p, before, after) and fragment.round is None and not fragment.due:
                raise Violation("what is due is done", f"f{p} at t = {after.t}")


def is_due(memory: Memory, p: int, before: State, after: State) -> bool:
    """By the formula, one step after the other."""
    schedule = memory.rule.schedule
    for t in range(before.t + 1, after.t + 1):
        every = next((b.every for b in schedule.before if t <= b.upto), schedule.every)
        if (t - p * every // schedule.fragments) % every == 0:
            return True
    return False
