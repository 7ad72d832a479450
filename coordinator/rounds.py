"""The rules for a round until it closes; a round is one fragment and one version."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

from coordinator import ledger
from coordinator.frozen import replace
from coordinator.grace import last_window_s, window_s
from coordinator.membership import Status
from coordinator.orders import merge_order_of, sorting_key
from coordinator.protocol import (
    Ask,
    Discard,
    Effect,
    Fate,
    Finish,
    Fragment,
    Island,
    Version,
)
from coordinator.quorum import Abandon, Close, RoundVerdict, Wait, judge
from coordinator.state import (
    FragmentState,
    Phase,
    Round,
    Rule,
    Stage,
    State,
    StateStep,
    is_open,
    with_fragment,
)


def tell_time(rule: Rule, state: State, clock: int | None, now_s: float) -> State:
    """Move t to the K-th largest clock of the live learners; mark what is due; end at T."""
    if clock is None or clock <= state.t or state.phase is not Phase.RUNNING:
        return state
    t = min(clock, rule.steps)
    if t == rule.steps:
        return _end(replace(state, t=t), f"t reached T = {rule.steps}", now_s)
    for p in rule.schedule.due(after=state.t, upto=t):
        state = with_fragment(state, p, replace(_call_again(state.fragments[p]), due=True))
    return open_due(replace(state, t=t), now_s)


def _call_again(fragment: FragmentState) -> FragmentState:
    """Clear the ask of lives that answered with nothing to merge, so that they are asked again.

    The fragment became due once more while its round is open.
    """
    if (round_ := fragment.round) is None or round_.stage is not Stage.OPEN:
        return fragment
    called = frozenset(
        life
        for life in round_.called
        if life.island in round_.arrived or fragment.asked.get(life.island) == life
    )
    return replace(fragment, round=replace(round_, called=called))


def open_due(state: State, now_s: float) -> State:
    """Open a round of each due fragment that has none under way and whose shard is alive."""
    for p, fragment in enumerate(state.fragments):
        if fragment.due and fragment.round is None and not fragment.away:
            last = state.phase is Phase.STOPPING
            opened = Round(next_version(state, fragment), opened_s=now_s, last=last)
            state = with_fragment(state, Fragment(p), replace(fragment, due=False, round=opened))
    return state


def next_version(state: State, fragment: FragmentState) -> Version:
    """Return the version that the fragment's next merge makes."""
    return Version(state.generation, fragment.version.number + fragment.void + 1)


def stop(state: State, why: str, now_s: float) -> State:
    """End the run early, on request."""
    return _end(state, why, now_s) if state.phase is Phase.RUNNING else state


def _end(state: State, why: str, now_s: float) -> State:
    """Make each fragment due once more, for its last round, so that all hand in their work.

    A fragment with a round under way has its last round after that one. Nothing else becomes due
    from here on.
    """
    fragments = tuple(replace(fragment, due=True) for fragment in state.fragments)
    ending = replace(state, fragments=fragments, phase=Phase.STOPPING, why=why, ending_s=now_s)
    return open_due(ending, now_s)


def opened(state: State) -> list[Fragment]:
    """Return the fragments that have an open round."""
    return [Fragment(p) for p, fragment in enumerate(state.fragments) if is_open(fragment)]


def goes_on(rule: Rule, before: State, state: State, p: Fragment, now_s: float) -> bool:
    """Return whether another look at this round cannot change anything (the fast path)."""
    fragment = state.fragments[p]
    if (round_ := fragment.round) is None:
        return False
    unchanged = (
        fragment is before.fragments[p]
        and state.members.living is before.members.living
        and state.phase is before.phase
    )
    if round_.last:
        unchanged = unchanged and state.members is before.members  # a draining one may have left
    return unchanged and now_s < deadline_s(rule, state, round_)


def further(rule: Rule, state: State, p: Fragment, now_s: float) -> StateStep:
    """Ask the learners that can deliver for the fragment's open round; decide whether it closes."""
    if not is_open(state.fragments[p]):
        return state, ()
    state, asks = _ask(state, p)
    state, decisions = _decide(rule, state, p, now_s)
    return state, (*asks, *decisions)


def _ask(state: State, p: Fragment) -> StateStep:
    """Ask each live learner once in a round, also latecomers, unless it still owes an answer."""
    fragment = state.fragments[p]
    if (round_ := fragment.round) is None:
        return state, ()
    if state.members.living <= round_.called:
        return state, ()
    lives = state.members.living - round_.called
    called, requests = round_.called.union(lives), dict(fragment.asked)
    asks: tuple[Effect, ...] = ()
    for life in sorted(lives):
        if life.island not in requests:
            requests[life.island] = life
            asks = (*asks, Ask(life, p, round_.last))
    fragment = replace(fragment, asked=requests, round=replace(round_, called=called))
    return with_fragment(state, p, fragment), asks


def notice_quorums(rule: Rule, state: State, now_s: float) -> State:
    """Record since when each open round has its quorum.

    This is done for all rounds before any of them is judged: it feeds a moving average that is part
    of every grace window.
    """
    for p, fragment in enumerate(state.fragments):
        round_ = fragment.round
        if (
            round_ is not None
            and round_.stage is Stage.OPEN
            and round_.quorum_since_s is None
            and len(_in_hand(rule, state, fragment, round_)) >= rule.min_quorum
        ):
            pace = state.pace if round_.last else state.pace.saw_quorum(now_s - round_.opened_s)
            with_quorum = replace(fragment, round=replace(round_, quorum_since_s=now_s))
            state = with_fragment(replace(state, pace=pace), Fragment(p), with_quorum)
    return state


def _in_hand(
    rule: Rule, state: State, fragment: FragmentState, round_: Round
) -> AbstractSet[Island]:
    """Return the islands that count for the quorum: those that delivered for this round.

    In a last round, islands that came too late for the round before count as well, since no later
    round can merge their contributions.
    """
    if not round_.last:
        return round_.arrived
    oldest = _oldest(rule, fragment)
    held = {c.id.life.island for c in fragment.inbox if c.base.number >= oldest}
    return {island for island in held if not state.members[island].trial}


def _oldest(rule: Rule, fragment: FragmentState) -> int:
    """Return the oldest base number that is not too stale to be merged now."""
    return fragment.version.number - rule.max_staleness


def _decide(rule: Rule, state: State, p: Fragment, now_s: float) -> StateStep:
    """Close the fragment's open round, abandon it, or wait."""
    fragment = state.fragments[p]
    if (round_ := fragment.round) is None:
        return state, ()
    verdict = _verdict(rule, state, fragment, round_, now_s)
    if verdict.why != round_.why:
        round_ = replace(round_, why=verdict.why)
    match verdict:
        case Wait():
            if round_ is fragment.round:
                return state, ()
            return with_fragment(state, p, replace(fragment, round=round_)), ()
        case Abandon():
            state = open_due(with_fragment(state, p, replace(fragment, round=None)), now_s)
            return further(rule, state, p, now_s)
        case Close():
            return _close(rule, state, p, fragment, round_, now_s)


def deadline_s(rule: Rule, state: State, round_: Round) -> float:
    """Return when the grace window of an open round ends, in seconds of the syncer's clock.

    It is infinite without a quorum, unless the run ends: then the round is abandoned at this time.
    The window of a last round is at least as long as that.
    """
    step_s, pace, since_s = state.members.steps_s, state.pace, round_.quorum_since_s
    graced_s = math.inf
    if since_s is not None:
        graced_s = since_s + window_s(
            fixed_s=rule.grace_s,
            overlap=rule.overlap,
            follows=rule.overlap_follows,
            step_s=step_s,
            pace=pace,
            lower=rule.bounded,
        )
    if state.ending_s is None or not (round_.last or since_s is None):
        return graced_s
    over_s = max(round_.opened_s, state.ending_s) + last_window_s(
        fragments=rule.schedule.fragments, step_s=step_s, pace=pace, lower=rule.bounded
    )
    return over_s if since_s is None else max(graced_s, over_s)


def _verdict(
    rule: Rule, state: State, fragment: FragmentState, round_: Round, now_s: float
) -> RoundVerdict:
    expected = set(fragment.asked) - round_.arrived
    if round_.last:
        expected |= _leaving(state) - round_.arrived
    return judge(
        min_quorum=rule.min_quorum,
        arrived=_in_hand(rule, state, fragment, round_),
        expected=expected,
        stopping=state.phase is Phase.STOPPING,
        deadline_s=deadline_s(rule, state, round_),
        now_s=now_s,
    )


def _leaving(state: State) -> set[Island]:
    """Return the draining islands: they hand in everything without being asked, and then leave."""
    return {m.life.island for m in state.members.values() if m.status is Status.DRAINING}


def _close(
    rule: Rule, state: State, p: Fragment, fragment: FragmentState, round_: Round, now_s: float
) -> StateStep:
    """Merge the inbox, except contributions that became too stale while they waited.

    Contributions on trial are measured beside the merge.
    """
    stale = [c for c in fragment.inbox if c.base.number < _oldest(rule, fragment)]
    waiting = sorted((c for c in fragment.inbox if c not in stale), key=sorting_key)
    trial = tuple(c for c in waiting if state.members[c.id.life.island].trial)
    items = tuple(c for c in waiting if c not in trial)
    accounts = state.ledger
    for contribution in stale:
        accounts = ledger.drop(accounts, contribution, Fate.STALE)
    round_ = replace(round_, stage=Stage.MERGING, items=items, trial=trial, closed_s=now_s)
    state = with_fragment(
        replace(state, ledger=accounts), p, replace(fragment, inbox=(), round=round_)
    )
    discards = [Discard(c, Fate.STALE, f"waited past {rule.max_staleness} versions") for c in stale]
    return state, (*discards, merge_order_of(rule, state.fragments[p], p, round_))


def finish(state: State) -> StateStep:
    """Finish the run once the last round is over: the public fragments are the result."""
    if state.phase is not Phase.STOPPING or any(f.round or f.due for f in state.fragments):
        return state, ()
    return replace(state, phase=Phase.FINISHED), (Finish(state.why),)
