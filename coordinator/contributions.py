"""The rules for a learner's work: admitted, refused with the reason, or overwritten."""

from __future__ import annotations

from coordinator import claims, gate, leases, ledger, norms
from coordinator.frozen import replace
from coordinator.lives import distrust, lose, progressed, void
from coordinator.membership import (
    REFUSALS_UNTIL_QUARANTINE,
    SPEAKING,
    STRICT_FOR,
    Member,
    Status,
    live,
    speaking,
)
from coordinator.protocol import (
    Adopted,
    Arrived,
    Cause,
    Contribution,
    Discard,
    Fate,
    Fragment,
    Island,
    Life,
    Missing,
    Void,
)
from coordinator.state import (
    FragmentState,
    Phase,
    Rule,
    Stage,
    State,
    StateStep,
    is_open,
    with_fragment,
    with_member,
)

VOTE_S = 600.0
"""Seconds without a message after which a lost or quarantined island has no vote on usual norms.

Within ten minutes most machines that come back at all have come back.
"""
OF_NORMS = (Cause.NORM, Cause.MOMENTS)
"""Causes of refusals for norms that are out of line with the recent ones."""


def arrived(rule: Rule, state: State, event: Arrived, now_s: float) -> StateStep:
    """Admit a contribution into its fragment's inbox, or refuse it with the reason."""
    c = event.contribution
    life, p = c.id.life, c.id.fragment
    if _in_hand(state, c):
        return state, ()  # a repeated message; its bytes are needed
    if (member := speaking(state.members, life)) is None:
        return state, (Discard(c, Fate.VOID, void(state, life).why),)
    was_asked = state.fragments[p].asked.get(life.island) == life
    state = _answered(state, life, p)
    impossible = gate.Refusal(Fate.GATE, Cause.COUNTERS, "impossible counters")
    if not gate.well_formed(c):  # before it can pass for a repeated message
        return refused(rule, state, member, c, impossible, now_s)
    why = claims.impossible(rule, state.members, member, c.progress, now_s)
    if why is not None or claims.too_dense(rule, state.members, member, c):
        detail = f": {why}" if why else f": {c.tokens} tokens in {c.steps} steps"
        refusal = gate.Refusal(Fate.GATE, Cause.COUNTERS, f"{impossible.why}{detail}")
        return refused(rule, state, member, c, refusal, now_s)
    accounts = ledger.trained(state.ledger, life, c.progress.tokens)
    if ledger.overlaps(accounts, life, p, (c.id.from_step, c.id.to_step)):
        discard = Discard(c, Fate.SUPERSEDED, f"{c.id} is accounted for already")
        is_old = c.base < state.fragments[p].version and c.progress.steps < member.progress.steps
        has_no_more = was_asked and not is_old  # an old copy is no answer
        if rule.edition < 2 or rule.overlap > 0 or not (has_no_more and _waits(state, member, p)):
            return state, (discard,)
        state, effects = _given_up(rule, state, life, f"{discard.why}, and it has no more")
        return state, (discard, *effects)
    if not gate.plausible(c, uncovered=ledger.uncovered(accounts, life, p)):
        return refused(rule, state, member, c, impossible, now_s)
    fragment = state.fragments[p]
    if fragment.away:
        lost = ledger.forget(ledger.hold(accounts, c), c)
        why = "the shard that held it has died"
        return replace(state, ledger=lost), (Discard(c, Fate.LOST, why),)
    refusal = gate.inspect(
        c,
        fingerprint=rule.fingerprint,
        current=fragment.version,
        max_staleness=rule.max_staleness,
        norms=fragment.norms,
        moments=fragment.moments,
        others=_others(rule, state, life.island),
        own=life.island if rule.edition >= 2 else None,
        newest=rule.edition >= 3,
        factor=norms.STRICT_FACTOR if member.strict else norms.OUTLIER_FACTOR,
    )
    if refusal is not None:
        state = replace(state, ledger=ledger.refuse(accounts, c, refusal.fate))
        if refusal.cause in OF_NORMS and not member.trial:
            state = with_fragment(state, p, _outlying(state, fragment, life.island, now_s))
        return refused(rule, state, member, c, refusal, now_s)
    state = replace(state, ledger=ledger.hold(accounts, c))
    fragment = replace(fragment, inbox=(*fragment.inbox, c))
    if member.trial:  # it will be measured beside the others, and vouches for nothing
        member = replace(member, refusals=0)
        return with_fragment(with_member(state, member), p, fragment), ()
    covered = leases.further(member.held, member.covered, c.progress.lease)
    held = leases.keep_unread(member.held, covered)
    if rule.bounded:
        passed_windows = leases.windows_in(member.held[: -len(held) or None], rule.lease_windows)
        vouched = max(member.vouched, c.id.to_step)
        member = replace(member, passed=member.passed + passed_windows, vouched=vouched)
    strict = max(0, member.strict - 1)
    quarantines = member.quarantines if strict else 0
    member = replace(
        member,
        refusals=0,
        quarantines=quarantines,
        strict=strict,
        covered=covered,
        held=held,
    )
    origin = life.island if rule.bounded else None
    fragment = replace(
        fragment,
        outliers=frozenset[Island](),
        voters=frozenset[Island](),
        norms=norms.admit(fragment.norms, c.norm, c.spans_steps, origin),
    )
    if c.moments_norm is not None:
        moments = norms.admit(fragment.moments, c.moments_norm, 1, origin)
        fragment = replace(fragment, moments=moments)
    if (round_ := fragment.round) and round_.stage is Stage.OPEN:
        fragment = replace(fragment, round=replace(round_, arrived=round_.arrived | {life.island}))
    return with_fragment(with_member(state, member), p, fragment), ()


def _others(rule: Rule, state: State, island: Island) -> frozenset[Island]:
    """Return the other active islands: this island's norms are compared with theirs."""
    if not rule.bounded:
        return frozenset()
    islands = (m.life.island for m in state.members.values() if m.status in SPEAKING)
    return frozenset(islands) - {island}


def _in_hand(state: State, c: Contribution) -> bool:
    """Return whether the contribution is in the inbox or being merged.

    The steps of one in hand are on the account of its life while that is open, so a full search is
    rarely needed.
    """
    life, p, from_step, to_step = c.id
    if life in state.ledger.accounts and not ledger.overlaps(
        state.ledger, life, p, (from_step, to_step)
    ):
        return False
    round_ = state.fragments[p].round
    under_way = (*round_.items, *round_.trial) if round_ else ()
    return c in (*state.fragments[p].inbox, *under_way)


def _outlying(state: State, fragment: FragmentState, island: Island, now_s: float) -> FragmentState:
    """Record an island whose norm was refused since the last admission.

    When the live ones among these islands are more than half of all that had a vote at the first
    refusal, the norms have changed for everyone: forget those they were compared with. Islands that
    are quarantined or restart have a vote, so that two bad islands cannot outvote two good ones of
    which one is away. Islands that have left, or sent nothing for long, have none.
    """
    members = state.members
    former_voters = fragment.voters if fragment.outliers else members.keys()
    voters = frozenset(voter for voter in former_voters if _has_a_vote(members[voter], now_s))
    outliers = fragment.outliers | {island}
    if 2 * len(outliers & voters & live(members).keys()) > len(voters):
        empty = frozenset[Island]()
        delta_norms, moment_norms = norms.forget(fragment.norms), norms.forget(fragment.moments)
        return replace(
            fragment, norms=delta_norms, moments=moment_norms, outliers=empty, voters=empty
        )
    return replace(fragment, outliers=outliers, voters=voters)


def _has_a_vote(member: Member, now_s: float) -> bool:
    speaks = member.status in SPEAKING
    return speaks or (member.status is not Status.LEFT and now_s - member.heard_s <= VOTE_S)


def missing(rule: Rule, state: State, event: Missing) -> StateStep:
    """Record that a requested hand-in will not arrive.

    If it was lost and learners wait for adoption (overlap 0), the learner has nothing more to hand
    in and would block every other one. Its life is over, and its next one is asked.
    """
    fragment, life = state.fragments[event.fragment], event.life
    was_asked = fragment.asked.get(life.island) == life
    state = _answered(state, life, event.fragment)
    member = speaking(state.members, life)
    waits = member is not None and _waits(state, member, event.fragment)
    if rule.overlap > 0 or not (event.lost and was_asked and waits):
        return state, ()
    return _given_up(rule, state, life, f"nothing came of what it handed in: {event.why}")


def _waits(state: State, member: Member, p: Fragment) -> bool:
    """Return whether an open round waits for this learner, which continues after it."""
    steps_on = member.status is Status.LIVE and state.phase is Phase.RUNNING
    return steps_on and is_open(state.fragments[p])


def _given_up(rule: Rule, state: State, life: Life, why: str) -> StateStep:
    """End a life that can hand in nothing and would block all others; it may join again."""
    return lose(rule, state, life, why), (Void(life, f"{why}, join again"),)


def adopted(rule: Rule, state: State, event: Adopted, now_s: float) -> StateStep:
    """Record that a learner has adopted a version; steps it had not handed in are overwritten."""
    if (member := speaking(state.members, event.life)) is None:
        return state, (void(state, event.life),)
    why = claims.impossible(rule, state.members, member, event.progress, now_s)
    if why is None and rule.bounded and event.from_step > event.progress.steps:
        why = f"steps from {event.from_step} on are overwritten after {event.progress.steps}"
    if why is not None:
        return distrust(rule, state, member, f"what it adopted is not possible: {why}", now_s)
    if claims.leaps_to_the_end(rule, member, event.progress):
        member = replace(member, doubted=True)
    state = progressed(rule, state, member, event.progress, now_s)
    span = (event.from_step, event.progress.steps)
    if ledger.overlaps(state.ledger, event.life, event.fragment, span):
        return state, ()  # a repeated message
    open_tokens = ledger.uncovered(state.ledger, event.life, event.fragment)
    tokens = min(event.tokens, open_tokens) if span[0] < span[1] else 0
    accounts = ledger.overwrite(state.ledger, event.life, event.fragment, span, tokens)
    return replace(state, ledger=accounts), ()


def _answered(state: State, life: Life, p: Fragment) -> State:
    """Return the state in which this life no longer owes a hand-in of the fragment."""
    fragment = state.fragments[p]
    if fragment.asked.get(life.island) != life:
        return state
    requests = dict(fragment.asked)
    del requests[life.island]
    return with_fragment(state, p, replace(fragment, asked=requests))


def _uncalled(state: State, c: Contribution) -> State:
    """Return the state as if this life had not been asked in the open round of the fragment."""
    fragment = state.fragments[c.id.fragment]
    if (round_ := fragment.round) is None or round_.stage is not Stage.OPEN:
        return state
    round_ = replace(round_, called=round_.called - {c.id.life})
    return with_fragment(state, c.id.fragment, replace(fragment, round=round_))


def refused(
    rule: Rule,
    state: State,
    member: Member,
    c: Contribution,
    refusal: gate.Refusal,
    now_s: float,
) -> StateStep:
    """Count a refusal by the gate; quarantine the learner after too many in a row.

    If learners wait for adoption (overlap 0), the first refusal quarantines, because no learner
    could continue. An island that is quarantined again and again may join only after an exponential
    back-off. After a quarantine for norms a strict limit applies to its next ones (edition 3). With
    overlap 0, a learner whose contribution was merely too stale is asked again, since all wait for
    it.
    """
    discard = Discard(c, refusal.fate, refusal.why, refusal.cause)
    if refusal.fate is not Fate.GATE:
        return state if rule.overlap > 0 else _uncalled(state, c), (discard,)
    member = replace(member, refusals=member.refusals + 1)
    state = with_member(state, member)
    if rule.overlap > 0 and member.refusals < REFUSALS_UNTIL_QUARANTINE:
        return state, (discard,)
    why = f"{member.refusals} contributions refused in a row, the last one for {refusal.why}"
    if rule.edition >= 3 and refusal.cause in OF_NORMS:
        member = replace(member, strict=STRICT_FOR)
    state, effects = distrust(rule, state, member, why, now_s)
    return state, (discard, *effects)
