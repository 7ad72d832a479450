"""The entry point of the rules: advance(rule, state, event, now_s) -> (state, effects).

An event first changes the recorded facts (`hear`). Then one place (`settle`) decides everything
that follows: silence, the clock, due rounds, quorum and grace, the end. The function is pure: the
same events at the same times give the same states and effects, whatever shell carries them out.
"""

from __future__ import annotations

import math
from typing import assert_never

from coordinator import contributions, lives, merge_outcomes, recovery, rounds
from coordinator.frozen import replace
from coordinator.protocol import (
    Adopted,
    Arrived,
    Drain,
    Effect,
    Event,
    Join,
    LeaseWanted,
    Left,
    Lost,
    Merged,
    Missing,
    Reached,
    Report,
    Resume,
    ShardBack,
    ShardLost,
    Stop,
    Stored,
    Tick,
    Unsound,
    Wake,
)
from coordinator.roster import believed_clock, kth_clock
from coordinator.state import Rule, State, StateStep, is_open


def advance(rule: Rule, state: State, event: Event, now_s: float) -> StateStep:
    """Apply one event at `now_s` (seconds, never falling); return the new state and the effects.

    The shell must carry the effects out in the order given (docs/explanation/protocol.md).
    """
    before = state
    state, answers = hear(rule, state, event, now_s)
    state, consequences = settle(rule, before, state, now_s)
    return state, (*answers, *consequences)


def hear(rule: Rule, state: State, event: Event, now_s: float) -> StateStep:
    """Update the state with one event, and answer its sender."""
    match event:
        case Join():
            return lives.join(rule, state, event, now_s)
        case Report():
            return lives.report(rule, state, event, now_s)
        case Lost():
            return lives.lost(rule, state, event)
        case LeaseWanted():
            return lives.lease_wanted(rule, state, event)
        case Drain():
            return lives.drain(state, event)
        case Left():
            return lives.left(rule, state, event, now_s)
        case Arrived():
            return contributions.arrived(rule, state, event, now_s)
        case Missing():
            return contributions.missing(rule, state, event)
        case Adopted():
            return contributions.adopted(rule, state, event, now_s)
        case Merged():
            return merge_outcomes.merged(rule, state, event)
        case Unsound():
            return merge_outcomes.unsound(rule, state, event, now_s)
        case Stored():
            return merge_outcomes.stored(state, event, now_s)
        case Reached():
            return lives.reached(rule, state, event), ()
        case Stop():
            return rounds.stop(state, event.why, now_s), ()
        case Resume():
            return recovery.resume(rule, state, event), ()
        case ShardLost():
            return recovery.shard_lost(state, event)
        case ShardBack():
            return recovery.shard_back(state, event), ()
        case Tick():
            return replace(state, wake_s=None), ()  # the alarm has rung, even if a little early
        case _:
            assert_never(event)


def settle(rule: Rule, before: State, state: State, now_s: float) -> StateStep:
    """Decide everything that follows from the state at `now_s`; `before` is settled already."""
    state = lives.give_up_silent(rule, state, now_s)
    state, effects = lives.keep_clock(state, kth_clock(state.members, rule.min_quorum))
    state = rounds.open_due(state, now_s)
    clock = believed_clock(state.members, rule.min_quorum)
    state = rounds.tell_time(rule, state, clock, now_s)
    state = rounds.notice_quorums(rule, state, now_s)
    for p in rounds.opened(state):  # all that are due: deciding these opens no others
        if not rounds.goes_on(rule, before, state, p, now_s):
            state, round_effects = rounds.further(rule, state, p, now_s)
            effects = (*effects, *round_effects)
    state, finish = rounds.finish(state)
    state, wake = _set_alarm(rule, state, now_s)
    return state, (*effects, *finish, *wake)


def _set_alarm(rule: Rule, state: State, now_s: float) -> StateStep:
    """Set an alarm for when time alone will decide something, unless an earlier one is set."""
    silence_s = lives.next_silence_s(rule, state)
    deadlines = [
        rounds.deadline_s(rule, state, f.round) for f in state.fragments if f.round and is_open(f)
    ]
    at_s = min(silence_s, *deadlines, math.inf)
    alarm_s = state.wake_s if state.wake_s is not None and state.wake_s > now_s else math.inf
    if at_s >= alarm_s:
        return state, ()
    effects: tuple[Effect, ...] = (Wake(at_s),) if math.isfinite(at_s) else ()
    return replace(state, wake_s=at_s if effects else None), effects
