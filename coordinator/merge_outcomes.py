"""The outcome of a merge: tokens accounted for and a version published, or the merge undone."""

from __future__ import annotations

import math

from coordinator import contributions, gate, ledger, norms, suspects
from coordinator.frozen import replace
from coordinator.membership import SPEAKING, speaking
from coordinator.orders import merge_order_of, sorting_key, span_steps
from coordinator.protocol import (
    Cause,
    Contribution,
    Discard,
    Effect,
    Fate,
    Fragment,
    Merged,
    Publish,
    Store,
    Stored,
    Unsound,
)
from coordinator.rounds import next_version
from coordinator.state import (
    FragmentState,
    Round,
    Rule,
    Stage,
    State,
    StateStep,
    in_order,
    with_fragment,
)


def _being_merged(state: State, event: Merged | Unsound) -> Round | None:
    """Return the round that the shard answers for; None if it is over."""
    round_ = state.fragments[event.fragment].round
    if round_ is None or round_.stage is not Stage.MERGING or round_.version != event.version:
        return None
    return round_


def merged(rule: Rule, state: State, event: Merged) -> StateStep:
    """Account for the merged tokens, order the version to be stored, and judge the directions."""
    if (round_ := _being_merged(state, event)) is None:
        return state, ()
    fragment, accounts = state.fragments[event.fragment], state.ledger
    for contribution in round_.items:
        accounts = ledger.merge(accounts, contribution)
    participants = tuple(sorted({c.id.life.island for c in round_.items}))
    moves = fragment.moves
    if event.norm is not None:
        moves = norms.admit(moves, event.norm, span_steps(round_.items))
    items, trial = round_.items, round_.trial
    round_ = replace(round_, stage=Stage.STORING, trial=())
    fragment = replace(fragment, round=round_, participants=participants, moves=moves)
    state = replace(
        state,
        ledger=accounts,
        merges=state.merges + 1,
        participations=state.participations + len(participants),
    )
    state = with_fragment(state, event.fragment, fragment)
    state, verdicts = suspects.judge(rule, state, items, trial, event)
    return state, (Store(event.fragment, event.version), *verdicts)


def unsound(rule: Rule, state: State, event: Unsound, now_s: float) -> StateStep:
    """Drop the contributions that made a merge unsound, and merge the others as another version.

    Dropped are contributions whose bytes were spoiled, or else the one with the largest norm per
    step. If too few are left for the quorum, the round opens again and waits for more.
    """
    if (round_ := _being_merged(state, event)) is None:
        return state, ()
    p, fragment = event.fragment, state.fragments[event.fragment]
    spoiled = tuple(c for c in round_.items if c.id in event.spoiled)
    loudest = max(round_.items, key=lambda c: (c.norm_per_step, sorting_key(c)))
    dropped = spoiled or (loudest,)
    cause, why = Cause.LOUDEST, f"the merge with it was not sound: a step of norm {event.norm:.3g}"
    if spoiled:
        cause, why = Cause.SPOILED, "its bytes are not what was measured when it arrived"
    items = tuple(c for c in round_.items if c not in dropped)
    fragment = replace(fragment, void=fragment.void + 1)
    round_ = replace(round_, version=next_version(state, fragment))
    orders: tuple[Effect, ...] = ()
    if len({c.id.life.island for c in items}) >= rule.min_quorum:
        round_ = replace(round_, items=items)
        orders = (merge_order_of(rule, fragment, p, round_),)
        state = with_fragment(state, p, replace(fragment, round=round_))
    else:
        state = _open_again(state, p, fragment, round_, items, event.norm)
    discards: tuple[Effect, ...] = ()
    for contribution in dropped:
        state = replace(state, ledger=ledger.drop(state.ledger, contribution, Fate.GATE))
        if (member := speaking(state.members, contribution.id.life)) is None:
            discards = (*discards, Discard(contribution, Fate.GATE, why, cause))
        else:
            refusal = gate.Refusal(Fate.GATE, cause, why)
            state, effects = contributions.refused(
                rule, state, member, contribution, refusal, now_s
            )
            discards = (*discards, *effects)
    return state, (*discards, *orders)


def _open_again(
    state: State,
    p: Fragment,
    fragment: FragmentState,
    round_: Round,
    items: tuple[Contribution, ...],
    norm: float,
) -> State:
    """Open the round again with the contributions that were not dropped.

    Learners without a contribution in it are asked again. If the step was finite and too long
    whatever is left out, the steps have changed for everyone, and the norms of former steps are
    forgotten.
    """
    moves = norms.forget(fragment.moves) if math.isfinite(norm) else fragment.moves
    inbox = (*items, *round_.trial, *fragment.inbox)
    inbox_lives = {c.id.life for c in inbox}
    owing = fragment.asked.values()
    round_ = replace(
        round_,
        stage=Stage.OPEN,
        arrived=frozenset(c.id.life.island for c in items),
        called=frozenset(life for life in round_.called if life in inbox_lives or life in owing),
        quorum_since_s=None,
        closed_s=None,
        items=(),
        trial=(),
    )
    return with_fragment(state, p, replace(fragment, round=round_, inbox=inbox, moves=moves))


def stored(state: State, event: Stored, now_s: float) -> StateStep:
    """Publish a version that is durable, or was given up on, to every active life."""
    fragment = state.fragments[event.fragment]
    round_ = fragment.round
    if round_ is None or round_.stage is not Stage.STORING or round_.version != event.version:
        return state, ()
    publish = Publish(
        fragment=event.fragment,
        version=event.version,
        previous=fragment.version,
        to=tuple(m.life for m in in_order(state.members) if m.status in SPEAKING),
        merged=tuple(c.id for c in round_.items),
    )
    closed_s = now_s if round_.closed_s is None else round_.closed_s
    state = replace(state, pace=state.pace.saw_sync(now_s - closed_s))
    fragment = replace(fragment, version=event.version, round=None, void=0)
    return with_fragment(state, event.fragment, fragment), (publish,)
