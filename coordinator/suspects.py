"""The consequences of measured directions: islands are quarantined, or trusted again.

The bounds are those of `direction_gate`.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator import ledger
from coordinator.direction_gate import (
    CLEAR,
    LIVE,
    RUN,
    Watch,
    against,
    apart,
    confirmed,
    run_of_two,
)
from coordinator.frozen import replace
from coordinator.lives import lose
from coordinator.membership import Member, Status, live, speaking
from coordinator.protocol import (
    Cause,
    Contribution,
    Discard,
    Effect,
    Fate,
    Fragment,
    Island,
    Merged,
    Void,
)
from coordinator.state import Rule, Stage, State, StateStep, with_fragment, with_member


def judge(
    rule: Rule,
    state: State,
    items: tuple[Contribution, ...],
    trial: tuple[Contribution, ...],
    event: Merged,
) -> StateStep:
    """Count the merges in a row in which each island pointed against the others.

    After RUN such merges (`run_of_two` for one of two islands) the island is quarantined, and then
    on trial until RUN contributions in a row do not point against the others. A contribution on
    trial is measured and discarded. No island is quarantined in these cases:

    - the rule's `watch` is not `Watch.QUARANTINE`
    - fewer than LIVE learners are live, unless the outer momentum confirms the direction
    - the learners' data come from several regions
    - the other learners would be fewer than the quorum
    """
    participants, trial_cosines = cosines_of(items, trial, event)
    aligned = alignments_of(items, event)
    verdicts, needed = against(participants, trial_cosines, event.measured), RUN
    if rule.bounded and (not verdicts or rule.edition >= 2) and len(_trusted(state)) < LIVE:
        merged = frozenset(c.id.life.island for c in items)
        least = 0.0
        if rule.edition >= 2 and len(merged) == 2:
            needed = run_of_two(len(state.fragments))
            least = CLEAR if needed < RUN else 0.0
        of_two = apart(merged, participants, trial_cosines, aligned, event.measured, least)
        verdicts = {**of_two, **verdicts}
    pairs = zip((*items, *trial), event.cosines, strict=False)
    lives = {c.id.life.island: c.id.life for c, cosine in pairs if cosine is not None}
    effects: tuple[Effect, ...] = ()
    for island, low in verdicts.items():
        if (member := speaking(state.members, lives[island])) is None:
            continue
        if member.trial:
            state = with_member(state, replace(member, trial=RUN if low else member.trial - 1))
            continue
        member = replace(member, against=member.against + 1 if low else 0)
        state = with_member(state, member)
        sure = rule.bounded and confirmed(island, aligned, event.measured)
        if low and member.against >= needed and _may_be_quarantined(rule, state, member, sure=sure):
            cosine = participants[island]
            why = f"{needed} merges in a row it pointed against the others, cosine {cosine:.2f}"
            state, void = _quarantine(rule, state, member, why)
            effects = (*effects, void)
    for contribution in trial:
        state = replace(state, ledger=ledger.drop(state.ledger, contribution, Fate.GATE))
        rest = state.members[contribution.id.life.island].trial
        why = f"on trial: measured, not merged; {rest} more that do not point against the others"
        effects = (*effects, Discard(contribution, Fate.GATE, why, Cause.TRIAL))
    return state, effects


def cosines_of(
    items: tuple[Contribution, ...], trial: tuple[Contribution, ...], event: Merged
) -> tuple[Mapping[Island, float], Mapping[Island, float]]:
    """Return the cosine of each island's newest contribution: merged ones, then those on trial.

    Islands without a cosine are left out.
    """
    merged, on_trial = event.cosines[: len(items)], event.cosines[len(items) :]
    return (
        {c.id.life.island: x for c, x in zip(items, merged, strict=False) if x is not None},
        {c.id.life.island: x for c, x in zip(trial, on_trial, strict=False) if x is not None},
    )


def alignments_of(items: tuple[Contribution, ...], event: Merged) -> Mapping[Island, float]:
    """Return the cosine to the outer momentum of each island's newest contribution in a merge."""
    pairs = zip(items, event.aligned, strict=False)
    return {c.id.life.island: x for c, x in pairs if x is not None}


def _trusted(state: State) -> list[Member]:
    """Return the live learners that are not on trial."""
    return [m for m in live(state.members).values() if not m.trial]


def _may_be_quarantined(rule: Rule, state: State, member: Member, *, sure: bool) -> bool:
    """Return whether a suspect may be quarantined; `sure`: the outer momentum confirms it."""
    living = _trusted(state)
    trusted = sum(m.life != member.life for m in living)
    one_region = len({m.region for m in living}) == 1
    enough = (len(living) >= LIVE or sure) and trusted >= rule.min_quorum
    return rule.watch is Watch.QUARANTINE and one_region and enough


def _quarantine(rule: Rule, state: State, member: Member, why: str) -> tuple[State, Void]:
    """End the life of a suspect, put its island on trial, and take it out of open quorums."""
    quarantines = member.quarantines + 1
    island, suspect = member.life.island, replace(member, trial=RUN, quarantines=quarantines)
    state = lose(rule, with_member(state, suspect), member.life, why, Status.QUARANTINED)
    for p, fragment in enumerate(state.fragments):
        round_ = fragment.round
        if round_ is not None and round_.stage is Stage.OPEN and island in round_.arrived:
            arrivals = round_.arrived - {island}
            since_s = round_.quorum_since_s if len(arrivals) >= rule.min_quorum else None
            round_ = replace(round_, arrived=arrivals, quorum_since_s=since_s)
            state = with_fragment(state, Fragment(p), replace(fragment, round=round_))
    return state, Void(member.life, f"quarantined: {why}", distrusted=True)
