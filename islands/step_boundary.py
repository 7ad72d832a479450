"""The rules of a step boundary: which fragments are handed in, adopted, or kept for later."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.frozen import replace
from coordinator.protocol import Adopted, ContributionId, Fragment
from islands.learner_life import LearnerState, Outcome
from islands.learner_messages import Adopt, HandOver, Keep, Track, Words


def keep_due(state: LearnerState) -> Outcome:
    """Copy the fragments that are due now, in lock-step with an overlap.

    From here on the others' steps and the messages may take any time.
    """
    words: Words = ()
    if not (state.terms.in_flight and state.stepping):
        return state, words
    for p in due_fragments(state):
        track = state.tracks[p]
        state, taken = _hand_over(state, p, track)
        kept = (*(each for each in state.kept if each.fragment != p), taken)
        late = (p, track.base, state.clock + state.terms.overlap)
        flying = (*(each for each in state.flying if each[0] != p), late)
        state = replace(state, kept=kept, flying=flying)
        words = (*words, Keep(taken))
    return state, words


def serve(state: LearnerState) -> Outcome:
    """Serve pending requests, then pending versions.

    Hand-ins come first, so that no adoption overwrites steps that were asked for.
    """
    if not (state.asks or state.news):
        return state, ()
    words: Words = ()
    asks: tuple[Fragment, ...] = ()
    for p in state.asks:
        track = state.tracks[p]
        if (kept := _kept(state, p)) is not None:
            state = replace(state, kept=tuple(each for each in state.kept if each is not kept))
            words = (*words, kept)
            continue
        if _replaced_here(state, p):
            asks = (*asks, p)  # after the adoption, so that message order does not matter
            continue
        if state.stepping and track.from_step >= state.progress.steps:
            asks = (*asks, p)  # it will have something to hand in after the next step
            continue
        state, word = _hand_over(state, p, track)
        words = (*words, word)
    early = tuple(p for p in state.news if _too_early(state, p))
    news = tuple(p for p in state.news if p not in early)
    state = replace(state, asks=asks, news=early)
    for p in news:
        state, word = _adopt(state, p)
        words = (*words, word)
    if any(p in news for p in asks):
        state, more = serve(state)
        words = (*words, *more)
    return state, words


def _replaced_here(state: LearnerState, p: Fragment) -> bool:
    """Return whether the learner is at the final step and this fragment's new version is due."""
    at_the_end = state.terms.until is not None and state.clock >= state.terms.until
    return at_the_end and any(q == p and at <= state.clock for q, _, at in state.flying)


def _kept(state: LearnerState, p: Fragment) -> HandOver | None:
    return next((each for each in state.kept if each.fragment == p), None)


def _too_early(state: LearnerState, p: Fragment) -> bool:
    """Return whether this fragment is to be replaced at a later step than this one."""
    return state.stepping and any(q == p and at > state.clock for q, _, at in state.flying)


def _hand_over(state: LearnerState, p: Fragment, track: Track) -> tuple[LearnerState, HandOver]:
    progress, said = state.progress, None
    if track.from_step < progress.steps:
        said = ContributionId(state.life, p, track.from_step, progress.steps)
        waiting = (*track.waiting, said)
        after = replace(
            track, from_step=progress.steps, from_tokens=progress.tokens, waiting=waiting
        )
        state = _with_track(state, p, after)
    return state, HandOver(p, said, track, progress)


def _adopt(state: LearnerState, p: Fragment) -> tuple[LearnerState, Adopt]:
    track, progress, version = state.tracks[p], state.progress, state.newest[p]
    waiting = track.waiting
    if (kept := _kept(state, p)) is not None:  # nobody has asked for it, and nobody will
        waiting = tuple(each for each in waiting if each != kept.said)
        track = track if state.terms.carries else kept.track
    if state.terms.carries:
        after = Track(version, track.from_step, track.from_step, track.from_tokens, waiting)
        from_step, tokens = progress.steps, 0
    else:
        after = Track(version, progress.steps, progress.steps, progress.tokens)
        from_step, tokens = track.from_step, progress.tokens - track.from_tokens
    said = Adopted(state.life, p, version, from_step, tokens, progress)
    awaiting = tuple(each for each in state.awaiting if each[0] != p)
    state = replace(
        state,
        said=(*state.said, said),
        awaiting=awaiting,
        kept=tuple(each for each in state.kept if each.fragment != p),
        flying=tuple(each for each in state.flying if each[0] != p),
    )
    return _with_track(state, p, after), Adopt(
        p, version, after.waiting if state.terms.keeps else ()
    )


def settled(state: LearnerState, contributions: Sequence[ContributionId]) -> LearnerState:
    """Return the state in which none of these contributions waits any more."""
    for each in contributions:
        track = state.tracks[each.fragment]
        if each in track.waiting:
            waiting = tuple(other for other in track.waiting if other != each)
            state = _with_track(state, each.fragment, replace(track, waiting=waiting))
    return state


def _with_track(state: LearnerState, p: Fragment, track: Track) -> LearnerState:
    return replace(state, tracks=(*state.tracks[:p], track, *state.tracks[p + 1 :]))


def due_fragments(state: LearnerState) -> Sequence[Fragment]:
    """Return the fragments that are due at the step that has just ended."""
    return state.terms.schedule.due(after=state.clock - 1, upto=state.clock)
