"""Invariants of fragments and rounds: versions grow by one, rounds open when due, close in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from archipelago.lab.checks.clock import is_due
from archipelago.lab.checks.facts import Violation
from archipelago.lab.checks.history import (
    ALMOST,
    GAMMA,
    IN_PACE,
    SILENCE_S,
    STALENESS_OF_PACE,
    JudgeMemory,
    MergeRecord,
    averaged,
)
from coordinator.membership import SPEAKING, Status
from coordinator.protocol import (
    Effect,
    Event,
    Fragment,
    Island,
    Publish,
    Reached,
    Resume,
    ShardLost,
    Stop,
    Unsound,
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
    """Check that versions grow by one with each publication only, and that rounds open when due.

    Errors: `Violation`.
    """
    if isinstance(event, Resume):
        _resumed(memory, before, event, after)
        return
    for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
        if new is old:
            continue
        if new.version != old.version:
            publications = [e for e in effects if isinstance(e, Publish) and e.fragment == p]
            if (
                len(publications) != 1
                or publications[0].version != new.version
                or publications[0].previous != old.version
                or new.version.number != old.version.number + 1 + memory.void[p]
            ):
                text = f"f{p} from {old.version} to {new.version}: {publications}"
                raise Violation("versions grow by one", text)
            memory.void[p] = 0
            if old.round is not None and old.round.closed_s is not None:
                memory.pace[1] = averaged(memory.pace[1], now_s - old.round.closed_s)
        if isinstance(event, ShardLost) and p in event.fragments:
            _is_away(memory, p, before, after)
        round_ = new.round
        if round_ is None:
            continue
        if not isinstance(event, Unsound) and (
            old.round is None or old.round.version != round_.version
        ):
            _opens(memory, p, before, event, after)
        had_quorum = old.round is not None and old.round.quorum_since_s is not None
        if round_.quorum_since_s is not None and not had_quorum and not round_.last:
            memory.pace[0] = averaged(memory.pace[0], now_s - round_.opened_s)
    for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
        if new is old or (round_ := new.round) is None:
            continue
        if round_.stage is Stage.OPEN:
            _stays_open(memory, p, after, round_, now_s)


def _resumed(memory: JudgeMemory, before: State, event: Resume, after: State) -> None:
    """Check that a new generation keeps all published versions, and forgets lives and hand-ins."""
    for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
        if new.version < memory.durable[p]:
            raise Violation(
                "published versions are kept", f"f{p} from {old.version} to {new.version}"
            )
        if new.inbox or new.asked:
            raise Violation("a new generation", f"f{p} remembers {new}")
    if any(m.status in SPEAKING for m in after.members.values()):
        raise Violation("a new generation", "a life survived")


def _is_away(memory: JudgeMemory, p: int, before: State, after: State) -> None:
    """Check that a dead shard's fragment has nothing under way, and that its tokens count as lost.

    The same event may end silent lives; what those had not handed in is lost as well.
    """
    old, new = before.fragments[p], after.fragments[p]
    items = (*old.round.items, *old.round.trial) if old.round else ()
    gone = sum(c.tokens for c in (*old.inbox, *items))
    for life, account in before.ledger.accounts.items():
        if life not in after.ledger.accounts:
            gone += account.tokens - account.covered[p]
    if new.round or new.inbox or new.asked or (old.round is not None and not new.due):
        raise Violation("a dead shard has nothing", f"f{p}: {new}")
    if after.ledger.rows[p].lost - before.ledger.rows[p].lost != gone:
        raise Violation(
            "contributions of a dead shard are lost",
            f"f{p}: not {gone} tokens, of {items} and others",
        )


def _opens(memory: JudgeMemory, p: int, before: State, event: Event, after: State) -> None:
    """Check that the round that was just opened was due, or that the run ends."""
    due = is_due(memory, p, before, after)
    ends = before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING
    if ends and not isinstance(event, Stop) and after.t != memory.rule.steps:
        raise Violation("a run ends at T", f"at {after.t} of {memory.rule.steps}, by {event}")
    if not (due or ends or before.fragments[p].due):
        raise Violation("only due rounds are opened", f"f{p} at t = {after.t}")
    round_ = after.fragments[p].round
    if round_ and round_.last != (after.phase is not Phase.RUNNING):
        raise Violation("the last round", f"f{p} in {after.phase}: {round_}")


def _stays_open(memory: JudgeMemory, p: int, after: State, round_: Round, now_s: float) -> None:
    """Check that a round with its quorum waits for some learner, and not past the grace window."""
    fragment = after.fragments[p]
    if len(counted_islands(memory, after, fragment, round_)) < memory.rule.min_quorum:
        return
    if not still_awaited(memory, after, fragment, round_):
        raise Violation("rounds close", f"f{p} has all of {sorted(round_.arrived)} and waits")
    if round_.quorum_since_s is not None and not round_.last:
        over_s = round_.quorum_since_s + _grace_s(memory, after)
        if now_s > over_s + ALMOST:
            raise Violation("rounds close", f"f{p} waits at {now_s}, its grace was {over_s}")


def counted_islands(
    memory: JudgeMemory, state: State, fragment: FragmentState, round_: Round
) -> AbstractSet[Island]:
    """Return the islands that count for the quorum.

    In an open last round these are all islands with a fresh contribution in the inbox, even one
    that was late for an earlier round; islands on trial do not count.
    """
    oldest = fragment.version.number - memory.rule.max_staleness
    fresh = [c.id.life.island for c in fragment.inbox if c.base.number >= oldest]
    held = {island for island in fresh if not state.members[island].trial}
    return held if round_.last and round_.stage is Stage.OPEN else round_.arrived


def still_awaited(
    memory: JudgeMemory, state: State, fragment: FragmentState, round_: Round
) -> AbstractSet[Island]:
    """Return the islands that have not answered yet; in a last round, also the draining ones."""
    drain = [i for i, m in state.members.items() if m.status is Status.DRAINING]
    return {*fragment.asked, *(drain if round_.last else ())} - round_.arrived


def no_round_is_stuck(
    memory: JudgeMemory, state: State, now_s: float, since_s: float, patience_s: float
) -> None:
    """Check liveness: with K live learners every round closes within `patience_s`.

    The time counts from `since_s`, or from when the last bar ends. This runs from time to time
    only.

    Errors: `Violation`.
    """
    since_s = max(since_s, *(m.barred_s for m in state.members.values()), 0.0)
    for p, fragment in enumerate(state.fragments):
        if fragment.round is not None:
            opened_s = max(fragment.round.opened_s, since_s)
            if now_s - opened_s > patience_s:
                text = f"f{p} is under way for {now_s - opened_s:.0f} s: {fragment}"
                raise Violation("due rounds close", text)


def _grace_s(memory: JudgeMemory, after: State) -> float:
    """Return the grace window in seconds from what the judge observed."""
    if memory.rule.grace_s is not None:
        return memory.rule.grace_s
    slowest_s = _slowest_s(memory.rule.edition, after)
    if memory.rule.overlap_follows:
        return slowest_s
    slack_s = memory.rule.overlap * slowest_s - sum(s for s in memory.pace if s is not None)
    return min(slowest_s, max(0.0, GAMMA * slack_s))


def _slowest_s(edition: int, state: State) -> float:
    """Return the step time of the slowest learner that keeps pace; 0 if none has stepped."""
    living = [m.step_s for m in state.members.values() if m.status is Status.LIVE]
    steps = sorted(step_s for step_s in living if step_s > 0)
    if not steps:
        return 0.0
    low, high = steps[(len(steps) - 1) // 2], steps[len(steps) // 2]
    middle = (low + high) / 2 if edition == 0 else low
    return max(step_s for step_s in steps if step_s <= IN_PACE * middle)


def reached(memory: JudgeMemory, before: State, event: Reached) -> None:
    """Record the seconds that a publication takes to the last learner that keeps pace."""
    slowest_s, last_s = _slowest_s(memory.rule.edition, before), -1.0
    for life, after_s in event.after_s:
        member = before.members.get(life.island)
        if member is None or member.life != life or member.status is not Status.LIVE:
            continue
        if member.step_s <= slowest_s:
            last_s = max(last_s, after_s)
    if last_s >= 0:
        memory.pace[2] = averaged(memory.pace[2], last_s)


def closes(memory: JudgeMemory, p: Fragment, after: State, now_s: float) -> None:
    """Check that a round closes after its grace window or with every hand-in, and none starves.

    Errors: `Violation`.
    """
    fragment, round_ = after.fragments[p], after.fragments[p].round
    if round_ is None:
        raise Violation("closed rounds were open", f"f{p}")
    if len(round_.arrived) < memory.rule.min_quorum and not round_.last:
        raise Violation("the quorum is kept", f"f{p}: {sorted(round_.arrived)} arrived")
    waits_for = still_awaited(memory, after, fragment, round_)
    since_s = round_.quorum_since_s
    over_s = math.inf if since_s is None else since_s + _grace_s(memory, after)
    if round_.last:
        over_s = max(over_s, waited_for_s(memory, round_))
    if waits_for and now_s < over_s - ALMOST:
        text = f"f{p} at {now_s}, quorum since {since_s}: {sorted(waits_for)}"
        raise Violation("the grace is kept", text)
    lives = frozenset(c.id.life for c in (*round_.items, *round_.trial))
    live = frozenset(m.life for m in after.members.values() if m.status is Status.LIVE)
    seen = MergeRecord(round_.opened_s, now_s, lives, live)
    last, memory.last[p] = memory.last[p], seen
    if last is None or memory.rule.max_staleness < STALENESS_OF_PACE:
        return
    memory.pace_judged += len(last.live & live)
    for life in sorted(last.live & live - last.lives - lives):
        since_s = memory.live_since.get(life, math.inf)
        if since_s <= last.opened_s and not memory.truth.excused(life, last.opened_s, now_s):
            text = f"{life} is in neither of two merges of f{p}: {last}, {seen}"
            raise Violation("no learner starves", text)


def waited_for_s(memory: JudgeMemory, round_: Round) -> float:
    """Return the earliest time at which a last round may stop waiting for those it asked."""
    return max(round_.opened_s, memory.ending_s) + SILENCE_S
