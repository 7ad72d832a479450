"""The learner's protocol in one life, as a pure state machine: no JAX, threads, clock or network.

`happen` takes a state and a happening, and returns the next state and the words that follow, in
order. A carrier (threads on Ray, callbacks in the simulator, tasks in a benchmark) does what each
word orders and reports the outcome as a happening; it reads no field to decide anything. The
carrier moves the arrays. This module decides which ones, from which step they count, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from coordinator.frozen import replace
from coordinator.protocol import (
    Answer,
    Fragment,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Progress,
    Report,
    Version,
    Void,
)
from islands.learner_life import LearnerOutcome, LearnerState
from islands.learner_messages import (
    Asked,
    Beat,
    Ceased,
    End,
    Fed,
    Happening,
    Heard,
    LetGo,
    Offered,
    Parked,
    Ready,
    Rested,
    Say,
    Settled,
    Step,
    Stepped,
    Take,
    Unheard,
    Want,
    Words,
)
from islands.step_boundary import due_fragments, keep_due, serve, settled

HEARTBEAT_S = 1.0
"""Seconds between reports of a learner that has nothing new to report."""
STEP_SMOOTHING = 0.2
"""Weight of the newest step in the moving average of the time per step."""


def happen(state: LearnerState, happening: Happening) -> LearnerOutcome:
    """Return the state after this happening, and the words to carry out, in order."""
    match happening:
        case Asked(p, held):
            waiting = state.tracks[p].waiting
            if held is not None:
                state = settled(state, [each for each in waiting if each not in held])
            asks = state.asks if p in state.asks else (*state.asks, p)
            return _at_once(replace(state, asks=asks))
        case Offered(p, version):
            if not is_news(state, p, version):
                return state, ()
            news = state.news if p in state.news else (*state.news, p)
            newest = {**state.newest, p: version}
            return _at_once(replace(state, news=news, newest=newest))
        case Settled(contributions):
            return settled(state, contributions), ()
        case Parked():
            return _at_once(replace(state, stepping=False))
        case LetGo():
            return _go_on(replace(state, stepping=False, goes_on=False))
        case Ceased(over):
            return _go_on(_ceased(state, over))
        case Ready(ahead):
            state = replace(state, busy=False, rested=True, ahead_windows=ahead)
            return _follow(_needing_data(state), serve, _talk, _go_on)
        case Fed(ahead):
            state = _needing_data(replace(state, ahead_windows=ahead, fetching=False))
            return (state, ()) if state.busy else _follow(state, _talk, _go_on)
        case Stepped(tokens, cursor, ahead):
            return _stepped(state, tokens, cursor, ahead)
        case Rested(took_s):
            known = state.step_s
            step_s = took_s if known == 0 else known + STEP_SMOOTHING * (took_s - known)
            has_report = state.has_report or _is_news(state)
            state = replace(state, step_s=step_s, has_report=has_report, rested=True)
            return _follow(_needing_data(state), _talk, _go_on)
        case Heard(answer):
            return _heard(state, answer)
        case Unheard():
            messages = state.reporting + state.adoptions  # the messages are idempotent
            return replace(state, adoptions=messages, reporting=(), flight=False, quiet=True), ()
        case Beat():
            return (state, ()) if state.flight else _say(state)
        case _:
            assert_never(happening)


def is_news(state: LearnerState, p: Fragment, version: Version) -> bool:
    """Return whether this version would be adopted if it were offered."""
    return version > state.newest[p]


def _follow(state: LearnerState, *parts: LearnerPart) -> LearnerOutcome:
    words: Words = ()
    for part in parts:
        state, part_words = part(state)
        words += part_words
    return state, words


def _at_once(state: LearnerState) -> LearnerOutcome:
    """Serve pending requests now, unless a step is under way: then its end serves them."""
    if state.busy:
        return state, ()
    return _follow(state, serve, _talk, _go_on)


def _stepped(state: LearnerState, tokens: int, cursor: Lease, ahead_windows: int) -> LearnerOutcome:
    former = state.progress
    progress = Progress(former.steps + 1, former.tokens + tokens, cursor)
    state = replace(state, progress=progress, ahead_windows=ahead_windows, busy=False)
    state, words = keep_due(state)
    tracks = state.tracks
    state, serve_words = serve(state)
    if state.terms.in_flight and state.stepping:
        overdue = tuple((p, base) for p, base, due_step in state.flying if due_step <= state.clock)
        state = replace(state, awaiting=overdue)
    elif state.terms.overlap == 0 and state.stepping:
        due_bases = [(p, tracks[p].base) for p in due_fragments(state)]
        # Do not wait for a version that came late and was adopted just now: it may have overwritten
        # the steps to merge, and then no learner would ever get a newer one.
        awaiting = tuple((p, base) for p, base in due_bases if state.tracks[p].base == base)
        state = replace(state, awaiting=awaiting)
    return state, (*words, *serve_words)


def _go_on(state: LearnerState) -> LearnerOutcome:
    """Begin the next step if nothing is in its way, or end this life, between two steps."""
    if state.busy:
        return state, ()
    if not state.goes_on:
        distrusted = state.over is not None and state.over.distrusted
        return replace(state, busy=True), (End(distrusted),)  # an ended life has no more boundaries
    enough = state.ahead_windows >= state.terms.batch_windows
    at_the_end = state.terms.until is not None and state.clock >= state.terms.until
    if state.awaiting or at_the_end or not state.stepping:
        return replace(state, held=True), ()
    if not (state.rested and enough):
        return state, ()
    return replace(state, busy=True, rested=False, held=False), (Step(state.held),)


def _is_news(state: LearnerState) -> bool:
    """Return whether this step must be reported to the syncer at once.

    The syncer acts on a learner's first step, and when clocks pass due points. All other
    steps are reported with these, or with the heartbeat.
    """
    return (
        state.progress.steps == 1 or state.clock == state.terms.until or bool(due_fragments(state))
    )


# --- talking --------------------------------------------------------------------------------------


def _talk(state: LearnerState) -> LearnerOutcome:
    """Send what happened, one message at a time; news that arrive meanwhile are joined.

    Adoptions can wait for the next report while steps continue.
    """
    parked = bool(state.adoptions) and not state.stepping
    if state.flight or state.quiet or not (state.has_report or parked or state.needs_data):
        return state, ()
    return _say(state)


def _say(state: LearnerState) -> LearnerOutcome:
    report = Report(state.life, state.progress, state.step_s, state.taken)
    messages = state.adoptions
    state = replace(
        state,
        adoptions=(),
        reporting=messages,
        asks_data=state.needs_data,
        has_report=False,
        flight=True,
        quiet=False,
    )
    return state, (Say(report, messages),)


def _needing_data(state: LearnerState) -> LearnerState:
    """Determine whether data is wanted before the next step; it is until a lease is granted."""
    short = state.ahead_windows < state.terms.wanted_windows
    return replace(state, needs_data=short and state.stepping and not state.fetching)


def _heard(state: LearnerState, answer: Answer | LeaseGranted | Void) -> LearnerOutcome:
    match answer:
        case Void():
            return _go_on(replace(_ceased(state, answer), flight=False))
        case Answer():
            shifted = answer.offset != state.offset
            state = replace(
                state,
                offset=answer.offset,
                past_t=state.progress.steps + answer.offset - answer.t,
                has_report=state.has_report or shifted,
                stepping=state.stepping and not answer.stopping,
                awaiting=() if shifted else state.awaiting,  # its due point is over: it was late
                flying=() if shifted else state.flying,
                reporting=(),
                taken=None,
            )
            if state.asks_data:
                state = replace(state, asks_data=False)
                outcome: LearnerOutcome = state, (Want(LeaseWanted(state.life)),)
            else:
                outcome = _talk(replace(state, flight=False))
        case LeaseGranted(_, lease):
            state, words = _talk(replace(state, needs_data=False, fetching=True, flight=False))
            outcome = state, (Take(lease), *words)
    state, words = outcome
    if state.busy:
        return state, words
    state, serve_words = _follow(state, serve, _talk, _go_on)
    return state, (*words, *serve_words)


def _ceased(state: LearnerState, over: Void) -> LearnerState:
    return replace(state, goes_on=False, over=state.over or over)


LearnerPart = Callable[[LearnerState], LearnerOutcome]
