"""Invariants of effects: each in its order, none for dead lives, durable before published."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archipelago.lab.checks.clock import is_due
from archipelago.lab.checks.facts import Violation
from archipelago.lab.checks.history import ALMOST, JudgeMemory
from archipelago.lab.checks.merges import discarded, merged, published
from coordinator.membership import SPEAKING, Status
from coordinator.protocol import (
    Arrived,
    Ask,
    Discard,
    Effect,
    Event,
    Finish,
    Fragment,
    Granted,
    Join,
    LeaseGranted,
    Life,
    Merge,
    Merged,
    Missing,
    Publish,
    Refused,
    Release,
    Shift,
    Store,
    Stored,
    Version,
    Void,
    Wake,
)
from coordinator.state import Phase, State


def look(
    memory: JudgeMemory,
    before: State,
    event: Event,
    after: State,
    effects: Sequence[Effect],
    now_s: float,
) -> None:
    """Check every effect of this event: its order, its recipient and its reason.

    Errors: `Violation`.
    """
    for effect in effects:
        match effect:
            case Ask(life, p, last):
                _lives(memory, effect, after, life, Status.LIVE)
                if (round_ := after.fragments[p].round) and round_.last != last:
                    raise Violation("the last round", f"{effect} in {round_}")
                if after.fragments[p].asked.get(life.island) != life:
                    raise Violation("every asked life is waited for", f"{effect}")
                if before.fragments[p].asked.get(life.island) == life and not (
                    isinstance(event, Missing | Arrived)
                ):
                    raise Violation("no life is asked twice", f"{effect}")
                _asks(memory, p, before, after, life)
            case Granted(life):
                if life.incarnation <= memory.granted or not isinstance(event, Join):
                    raise Violation("incarnations grow", f"{effect} after {memory.granted}")
                if before.phase is not Phase.RUNNING or event.fingerprint != (
                    memory.rule.fingerprint
                ):
                    raise Violation("the conditions of a join hold", f"{event} in {before.phase}")
                if effect.offset != before.t:
                    raise Violation("a new life begins at t", f"{effect} at {before.t}")
                if (old := before.members.get(life.island)) and now_s < old.barred_s:
                    raise Violation("barred islands wait", f"{effect} at {now_s}, {old}")
                for donor in effect.donors:
                    _lives(memory, effect, before, donor, Status.LIVE)
                    giver = before.members[donor.island]
                    if giver.refusals or giver.quarantines or donor.island == life.island:
                        raise Violation("donors are healthy", f"{effect}, {giver}")
                memory.granted = life.incarnation
            case LeaseGranted(life) | Release(life):
                _lives(memory, effect, before, life)  # the event may also have given it up
            case Shift(life):
                _lives(memory, effect, after, life)
            case Merge():
                merged(memory, before, after, effect, event, now_s)
            case Store(p, version):
                _follows(memory, effect, p, version, Merged, event, Merge)
            case Publish(p, version):
                _follows(memory, effect, p, version, Stored, event, Store)
                published(memory, after, effect, event)
            case Discard():
                discarded(memory, after, effect)
            case Wake(at_s):
                if at_s <= now_s:
                    raise Violation("alarms are for later", f"{effect} at {now_s}")
            case Void(life):
                member = after.members.get(life.island)
                if member and member.life == life and member.status in SPEAKING:
                    raise Violation("messages of active lives count", f"{effect}")
            case Refused():
                _refuses(memory, before, effect, event, now_s)
            case Finish():
                pass
    if isinstance(event, Join) and (
        sum(isinstance(effect, Granted | Refused) for effect in effects) != 1
    ):
        raise Violation("everyone is answered", f"{event}: {effects}")


def _refuses(
    memory: JudgeMemory, before: State, refused: Refused, event: Event, now_s: float
) -> None:
    """Check that no island is refused without a reason, or for longer than it is barred."""
    if refused.retry_s is None:
        fits = isinstance(event, Join) and event.fingerprint == memory.rule.fingerprint
        if before.phase is Phase.RUNNING and fits:
            raise Violation("the conditions of a join hold", f"{refused} in {before.phase}")
    elif abs(before.members[refused.island].barred_s - now_s - refused.retry_s) > ALMOST:
        raise Violation("barred islands wait", f"{refused} at {now_s}")


def _asks(memory: JudgeMemory, p: Fragment, before: State, after: State, life: Life) -> None:
    """Check that a life is asked once in a round, and once more if the fragment is due again."""
    round_ = after.fragments[p].round
    opened_s = round_.opened_s if round_ else math.nan
    known_s, lives = memory.asked[p]
    if opened_s != known_s or is_due(memory, p, before, after):
        lives = frozenset[Life]()
    if life in lives:
        raise Violation("no life is asked twice", f"{life} for f{p}, opened at {opened_s}")
    memory.asked[p] = (opened_s, lives | {life})


def _lives(
    memory: JudgeMemory, effect: Effect, after: State, life: Life, status: Status | None = None
) -> None:
    """Check that the recipient of an effect is alive, or has the given status."""
    member = after.members.get(life.island)
    fits = SPEAKING if status is None else (status,)
    if member is None or member.life != life or member.status not in fits:
        raise Violation("no message goes to a dead life", f"{effect}")


def _follows(
    memory: JudgeMemory,
    effect: Effect,
    p: Fragment,
    version: Version,
    answer: type[Merged] | type[Stored],
    event: Event,
    order: type[Effect],
) -> None:
    """Check the order of a version's effects: merged, then durable, then public, each once."""
    if (
        not isinstance(event, answer)
        or (event.fragment, event.version) != (p, version)
        or memory.step.get((p, version)) is not order
    ):
        raise Violation("durable before published", f"{effect} after {event}")
    memory.step[p, version] = type(effect)
