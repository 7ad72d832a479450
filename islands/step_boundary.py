"""The rules of a step boundary: which fragments are handed in, adopted, or kept for later."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.frozen import replace
from coordinator.protocol import Adopted, ContributionId, Fragment
from islands.learner_life import LearnerOutcome, LearnerState
from islands.learner_messages import Adopt, HandOver, Keep, Track, Words


def keep_due(state: LearnerState) -> LearnerOutcome:
    """Copy the fragments that are due now, in lock-step with an overlap.

    From here on the others' steps and the messages may take any time.
    """
    words: Words = ()
    if not (state.terms.in_flight and state.stepping):
        return state, words
    for p in due_fragments(state):
        track = state.tracks[p]
        state, taken = _hand_over(state, p, track)
        kept = (*(other for other in state.kept if other.fragment != p), taken)
        late = (p, track.base, state.clock + state.terms.overlap)
        flying = (*(other for other in state.flying if other[0] != p), late)
        state = replace(state, kept=kept, flying=flying)
        words = (*words, Keep(taken))
    return state, words


def serve(state: LearnerState) -> LearnerOutcome:
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
            state = replace(state, kept=tuple(other for other in state.kept if other is not kept))
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
        state, later_words = serve(state)
        words = (*words, *later_words)
    return state, words


def _replaced_here(state: LearnerState, p: Fragment) -> bool:
    """Return whether the learner is at the final step and this fragment's new version is due."""
    at_the_end = state.terms.until is not None and state.clock >= state.terms.until
    return at_the_end and any(q == p and at <= state.clock for q, _, at in state.flying)


def _kept(state: LearnerState, p: Fragment) -> HandOver | None:
    return next((hand_over for hand_over in state.kept if hand_over.fragment == p), None)


def _too_early(state: LearnerState, p: Fragment) -> bool:
    """Return whether this fragment will be replaced at a later step than this one."""
    return state.stepping and any(q == p and at > state.clock for q, _, at in state.flying)


def _hand_over(state: LearnerState, p: Fragment, track: Track) -> tuple[LearnerState, HandOver]:
    progress, contribution = state.progress, None
    if track.from_step < progress.steps:
        contribution = ContributionId(state.life, p, track.from_step, progress.steps)
        waiting = (*track.waiting, contribution)
        after = replace(
            track, from_step=progress.steps, from_tokens=progress.tokens, waiting=waiting
        )
        state = _with_track(state, p, after)
    return state, HandOver(p, contribution, track, progress)


def _adopt(state: LearnerState, p: Fragment) -> tuple[LearnerState, Adopt]:
    track, progress, version = state.tracks[p], state.progress, state.newest[p]
    waiting = track.waiting
    if (kept := _kept(state, p)) is not None:  # no round has asked for it, and none will
        waiting = tuple(other for other in waiting if other != kept.contribution)
        track = track if state.terms.carries else kept.track
    if state.terms.carries:
        after = Track(version, track.from_step, track.from_step, track.from_tokens, waiting)
        from_step, tokens = progress.steps, 0
    else:
        after = Track(version, progress.steps, progress.steps, progress.tokens)
        from_step, tokens = track.from_step, progress.tokens - track.from_tokens
    message = Adopted(state.life, p, version, from_step, tokens, progress)
    awaiting = tuple(other for other in state.awaiting if other[0] != p)
    state = replace(
        state,
        adoptions=(*state.adoptions, message),
        awaiting=awaiting,
        kept=tuple(other for other in state.kept if other.fragment != p),
        flying=tuple(other for other in state.flying if other[0] != p),
    )
    return _with_track(state, p, after), Adopt(
        p, version, after.waiting if state.terms.keeps else ()
    )


def settled(state: LearnerState, contributions: Sequence[ContributionId]) -> LearnerState:
    """Return the state in which none of these contributions waits any more."""
    for contribution in contributions:
        track = state.tracks[contribution.fragment]
        if contribution in track.waiting:
            waiting = tuple(other for other in track.waiting if other != contribution)
            state = _with_track(state, contribution.fragment, replace(track, waiting=waiting))
    return state


def _with_track(state: LearnerState, p: Fragment, track: Track) -> LearnerState:
    return replace(state, tracks=(*state.tracks[:p], track, *state.tracks[p + 1 :]))


def due_fragments(state: LearnerState) -> Sequence[Fragment]:
    """Return the fragments that are due at the step that has just ended."""
    return state.terms.schedule.due(after=state.clock - 1, upto=state.clock)
