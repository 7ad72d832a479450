"""Invariants of fencing: dead lives are ignored, the gate refuses what is poisoned, bars grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from archipelago.lab.checks.claims import believed
from archipelago.lab.checks.facts import Poison, Violation
from archipelago.lab.checks.history import (
    ALMOST,
    BARRED_S,
    LONGEST_BARRED_S,
    MOST,
    NORMS,
    PASSING,
    REFUSALS,
    REMEMBERED,
    STRICT_FOR,
    JudgeMemory,
)
from coordinator.advance import advance
from coordinator.membership import SPEAKING, Member, Status
from coordinator.protocol import (
    Adopted,
    Arrived,
    Cause,
    Contribution,
    Discard,
    Effect,
    Event,
    Fate,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Missing,
    Report,
    Tick,
    Void,
)
from coordinator.state import State

NEVER_OF_THE_HEALTHY = (Cause.NOT_FINITE, Cause.COUNTERS, Cause.LAYOUT)
"""Causes for which the gate never refuses a contribution of a healthy learner."""


def look(
    memory: JudgeMemory,
    before: State,
    event: Event,
    after: State,
    effects: Sequence[Effect],
    now_s: float,
) -> None:
    """Check that messages of dead lives change nothing, and that only they get `Void` as an answer.

    A living learner may get it too, if its message cannot be true.

    Errors: `Violation`.
    """
    match event:
        case Report(life) | Adopted(life) | LeaseWanted(life) | Left(life):
            expects_answer = True
        case Lost(life) | Missing(life):
            expects_answer = False
        case Arrived(contribution):
            life, expects_answer = contribution.id.life, False
        case _:
            return
    member = before.members.get(life.island)
    if member is not None and member.life == life and member.status in SPEAKING:
        voids = [e for e in effects if isinstance(e, Void) and e.life == life]
        if expects_answer and voids:
            _ends(memory, event, life, after.members[life.island], voids[0])
            return
        if isinstance(event, Arrived):
            _gate(memory, before, event.contribution, after, effects, now_s)
        elif isinstance(event, LeaseWanted) and not any(
            isinstance(e, LeaseGranted) and e.life == life for e in effects
        ):
            raise Violation("everyone is answered", f"{event}: {effects}")
        return
    idle, _ = advance(memory.rule, before, Tick(), now_s)
    if replace(idle, wake_s=None) != replace(after, wake_s=None):
        raise Violation("messages of dead lives are void", f"{event} changed something")
    if expects_answer and not any(isinstance(e, Void) and e.life == life for e in effects):
        raise Violation("everyone is answered", f"{event}: {effects}")


def _ends(memory: JudgeMemory, event: Event, life: Life, member: Member, void: Void) -> None:
    """Check that a living learner gets `Void` only for a message that cannot be true."""
    new_status = Status.LOST if isinstance(event, LeaseWanted) else Status.QUARANTINED
    distrusted = void.distrusted == (new_status is Status.QUARANTINED)
    if memory.rule.edition == 0 or member.life != life or member.status is not new_status:
        raise Violation("messages of active lives count", f"{event} was answered {void}")
    if not distrusted:
        raise Violation("messages of active lives count", f"{event} was answered {void}, {member}")
    believed(memory, life, void.why)


def _gate(
    memory: JudgeMemory,
    before: State,
    c: Contribution,
    after: State,
    effects: Sequence[Effect],
    now_s: float,
) -> None:
    """Check that the gate refuses what is poisoned, and that refusals lead to a quarantine.

    A learner with enough refusals in a row is quarantined. If it was quarantined before and has
    contributed nothing since, it is barred for longer each time.
    """
    p, life = c.id.fragment, c.id.life
    refused = next((e for e in effects if isinstance(e, Discard) and e.contribution is c), None)
    made = memory.truth.made(c.id)
    poison = made.poison if made else None
    if refused is not None:
        if refused.fate is Fate.GATE:
            memory.refusals[life] = memory.refusals.get(life, 0) + 1
            needed = REFUSALS if memory.rule.overlap > 0 else 1
            member = after.members[life.island]
            if (memory.refusals[life] >= needed) != (member.status is Status.QUARANTINED):
                text = f"{life} is {member.status} after {memory.refusals[life]} refusals"
                raise Violation("quarantine", text)
            if member.status is Status.QUARANTINED:
                _bars(memory, before.members[life.island], member, now_s)
            _strict(memory, before.members[life.island], member, refused.cause)
            healthy = made is not None and poison is None and not memory.truth.lied(life)
            if healthy and refused.cause in NEVER_OF_THE_HEALTHY:
                raise Violation("healthy contributions are merged", f"{c.id}: {refused.why}")
        return
    fragment = before.fragments[p]
    if c in fragment.inbox or (fragment.round and c in fragment.round.items):
        return  # a repeated message
    memory.refusals[life] = 0
    member = after.members[life.island]
    old = before.members[life.island]
    if not member.trial and member.quarantines != (old.quarantines if old.strict > 1 else 0):
        raise Violation("a contributor is trusted, on trial or under the strict limit", f"{member}")
    if not member.trial and member.strict != max(0, old.strict - 1):
        raise Violation(
            "the strict limit ends after so many contributions", f"{old}, then {member}"
        )
    if c.base > fragment.version or poison not in (None, *PASSING):
        raise Violation("the gate", f"{c} was admitted, poisoned by {poison}")
    if fragment.version.number - c.base.number > memory.rule.max_staleness:
        raise Violation("the gate", f"{c} was admitted, stale onto {fragment.version}")
    healthy = [each for _, each in memory.norms[p][-REMEMBERED:]]
    usual = sum(healthy) >= max(NORMS, MOST * len(healthy))
    if poison is Poison.LOUD and usual:
        raise Violation("the gate", f"{c} was admitted, a thousand times too large")
    if not member.trial:
        memory.norms[p].append((c.norm, poison is not Poison.LOUD))


def _strict(memory: JudgeMemory, old: Member, new: Member, cause: Cause | None) -> None:
    """Check that a quarantine for norms begins the strict limit, and nothing else does."""
    begins = new.status is Status.QUARANTINED and cause in (Cause.NORM, Cause.MOMENTS)
    wanted = STRICT_FOR if begins and memory.rule.edition >= 3 else old.strict
    if new.strict != wanted:
        raise Violation("a quarantine for norms begins the strict limit", f"{old}, then {new}")


def _bars(memory: JudgeMemory, old: Member, new: Member, now_s: float) -> None:
    """Check that one more quarantine bars the island for the right time."""
    count, bar_s = old.quarantines + 1, 0.0
    for _ in range(count - 1):
        bar_s = min(2 * bar_s or BARRED_S, LONGEST_BARRED_S)
    if new.quarantines != count or abs(new.barred_s - now_s - bar_s) > ALMOST:
        raise Violation("bars grow", f"{new} at {now_s}, the {count}th is for {bar_s} s")
