"""Invariants of the end: each fragment has a last round, and a run ends once, with nothing left."""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.lab.checks.facts import Violation
from archipelago.lab.checks.history import ALMOST, IN_PACE, LEARNT_S, SILENCE_S, JudgeMemory
from archipelago.lab.checks.rounds import counted_islands, still_awaited, waited_for_s
from coordinator.membership import Status
from coordinator.protocol import (
    Effect,
    Event,
    Finish,
    Publish,
    Resume,
)
from coordinator.state import FragmentState, Phase, Round, Stage, State


def look(
    memory: JudgeMemory,
    before: State,
    event: Event,
    after: State,
    effects: Sequence[Effect],
    now_s: float,
) -> None:
    """Check that each fragment has a last round, which is merged or rightly given up.

    A last round may be given up under the quorum if there was no learner to wait for, or none that
    could be waited for any longer.

    Errors: `Violation`.
    """
    live = [m.life for m in after.members.values() if m.status is Status.LIVE]
    for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
        if new.round and new.round.stage is Stage.OPEN:
            _check_patience(memory, p, after, new, new.round, now_s)
        if memory.last_rounds[p] or new.round or new.due:
            continue
        memory.last_rounds[p] = True
        round_ = None if isinstance(event, Resume) else old.round
        if round_ is None or not round_.last:
            if live:
                raise Violation("the last round", f"f{p} has none, though there are {live}")
        elif round_.stage is Stage.OPEN:
            held = counted_islands(memory, after, new, round_)
            waits_for = new.asked.keys() & {life.island for life in live}
            if len(held) >= memory.rule.min_quorum:
                raise Violation("the last round", f"f{p} was given up with {sorted(held)}")
            if waits_for and now_s < waited_for_s(memory, round_) - ALMOST:
                text = f"f{p} was given up at {now_s} without {sorted(waits_for)}: {round_}"
                raise Violation("the last round", text)
        elif not any(isinstance(e, Publish) and e.fragment == p for e in effects):
            raise Violation("the last round", f"f{p} was merged, and is not public")


def _check_patience(
    memory: JudgeMemory, p: int, after: State, fragment: FragmentState, round_: Round, now_s: float
) -> None:
    """Check that a last round waits for some learner, and not forever for a straggler.

    A last round that had its quorum also has its usual grace window.
    """
    with_quorum = len(counted_islands(memory, after, fragment, round_)) >= memory.rule.min_quorum
    if with_quorum and not round_.last:
        return
    if not still_awaited(memory, after, fragment, round_):
        raise Violation("rounds close", f"f{p} waits for no answer: {round_}")
    steps_s = [m.step_s for m in after.members.values() if m.status is Status.LIVE]
    quorum_s, count = after.pace.quorum_s, memory.rule.schedule.fragments
    handed_in_s = LEARNT_S if quorum_s is None else count * quorum_s
    over_s = max(round_.opened_s, memory.ending_s) + handed_in_s
    over_s += max(SILENCE_S, IN_PACE * max(steps_s, default=0.0))
    if with_quorum and round_.quorum_since_s is not None:
        over_s = max(over_s, round_.quorum_since_s + (memory.rule.grace_s or 0.0))
    if now_s > over_s + ALMOST:
        raise Violation("rounds close", f"f{p} waits at {now_s}, the end of it was {over_s}")


def ended(memory: JudgeMemory, after: State, effects: Sequence[Effect]) -> None:
    """Check that the run ends once, with nothing under way.

    Errors: `Violation`.
    """
    if after.phase is not Phase.FINISHED:
        raise Violation("a run ends once", f"{after.phase}")
    if sum(isinstance(effect, Finish) for effect in effects) != 1:
        raise Violation("a run ends once", f"{effects}")
    if any(fragment.round or fragment.due for fragment in after.fragments):
        raise Violation("no round is open at the end", f"{after.fragments}")
