"""The rules for lives and the data that they hold: join, report, lose, drain, leave."""

from __future__ import annotations

import math

from coordinator import claims, leases, ledger
from coordinator.frozen import replace
from coordinator.grace import slowest_in_pace
from coordinator.membership import (
    SPEAKING,
    STEPS,
    Member,
    Status,
    live,
    silence_limit_s,
    silent_since_s,
    speaking,
    suspended,
)
from coordinator.protocol import (
    Drain,
    Effect,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Progress,
    Reached,
    Refused,
    Release,
    Report,
    Shift,
    Void,
)
from coordinator.state import Phase, Rule, State, StateStep, with_fragment, with_member, with_pool

DONORS = 3
"""Donors that are named to a joining learner: one may leave before it has answered."""


def donors(state: State, island: Island) -> tuple[Life, ...]:
    """Return the learners that may give their optimizer moments to one that joins on this island.

    They are live ones whose last contribution was not refused, in this life or the one before.
    Learners that have stepped longest come first: their moments average over the most batches. A
    donor never gives its parameters, whose unmerged work would be merged twice, nor its place in
    the data.
    """
    others = [m for m in live(state.members).values() if m.life.island != island]
    candidates = [m for m in others if m.refusals == m.quarantines == 0]
    candidates.sort(key=lambda member: (-member.progress.steps, member.life.island))
    return tuple(member.life for member in candidates[:DONORS])


def void(state: State, life: Life) -> Void:
    """Return the answer to a message of a life that is over."""
    member = state.members.get(life.island)
    if member is None:
        return Void(life, "the syncer does not know this life, join again")
    if member.life != life:
        return Void(life, f"the island lives on as {member.life}, join again")
    distrusted = member.status is Status.QUARANTINED
    return Void(life, f"{member.status} ({member.why}), join again", distrusted)


def join(rule: Rule, state: State, event: Join, now_s: float) -> StateStep:
    """Grant a new life at the current clock and versions; an earlier active life is lost.

    A join is refused while the run ends, for another layout, and during a back-off.
    """
    if state.phase is not Phase.RUNNING:
        return state, (Refused(event.island, f"the run is {state.phase}: {state.why}"),)
    if event.fingerprint != rule.fingerprint:
        why = f"its layout is {event.fingerprint}, the run's is {rule.fingerprint}"
        return state, (Refused(event.island, why),)
    former = state.members.get(event.island)
    if former is not None and now_s < former.barred_s:
        return state, (Refused(event.island, former.why, former.barred_s - now_s),)
    if former is not None:
        state = lose(rule, state, former.life, "a new life of the island has joined")
    life = Life(event.island, state.next_incarnation)
    pool, first_lease = leases.grant(leases.pool_of(state.leases, event.region))
    # The second lease is granted so that it never waits for the syncer at the end of a lease.
    pool, next_lease = leases.grant(pool)
    held = first_lease, next_lease
    member = Member(
        life=life,
        group=event.group,
        status=Status.JOINING,
        why="joined" if former is None else "joined again",
        offset=state.t,
        progress=Progress(0, 0, first_lease),
        heard_s=now_s,
        advanced_s=now_s,
        quarantines=0 if former is None else former.quarantines,
        trial=0 if former is None else former.trial,
        strict=0 if former is None else former.strict,
        region=event.region,
        held=held,
    )
    if rule.bounded:
        windows = leases.windows_in(held, rule.lease_windows)
        member = replace(member, granted=windows, credit_s=claims.CREDIT_S, credited_s=now_s)
    state = replace(
        with_pool(state, event.region, pool),
        next_incarnation=Incarnation(life.incarnation + 1),
        ledger=ledger.open_account(state.ledger, life),
    )
    granted = Granted(
        life=life,
        offset=member.offset,
        versions=tuple(fragment.version for fragment in state.fragments),
        leases=held,
        donors=donors(state, event.island),
    )
    return with_member(state, member), (granted,)


def report(rule: Rule, state: State, event: Report, now_s: float) -> StateStep:
    """Record a learner's progress; quarantine the learner if the progress is impossible."""
    if (member := speaking(state.members, event.life)) is None:
        return state, (void(state, event.life),)
    progress = event.progress
    why = claims.impossible(rule, state.members, member, progress, now_s, event.step_s)
    if why is not None:
        return distrust(rule, state, member, f"its report is not possible: {why}", now_s)
    is_leap = not member.doubted and claims.leaps_to_the_end(rule, member, progress)
    if is_leap or member.doubted:
        is_repeated = member.doubted and progress.steps >= member.progress.steps
        member = replace(member, doubted=is_leap or not is_repeated)
    if member.status is Status.JOINING and event.progress.steps > 0:
        member = replace(member, status=Status.LIVE, why=STEPS)
    overtaken = event.progress.steps < member.progress.steps
    step_s = member.step_s if overtaken else event.step_s
    state = progressed(rule, state, member, event.progress, now_s, step_s)
    timed = claims.timed(rule, state.members[event.life.island], step_s)
    return with_member(state, timed) if rule.bounded else state, ()


def distrust(rule: Rule, state: State, member: Member, why: str, now_s: float) -> StateStep:
    """End a life whose claims cannot be true; its island joins again without its moments."""
    suspect, why = suspended(member, why, now_s)
    state = lose(rule, with_member(state, suspect), member.life, why, Status.QUARANTINED)
    return state, (Void(member.life, f"quarantined: {why}", distrusted=True),)


def progressed(
    rule: Rule,
    state: State,
    member: Member,
    progress: Progress,
    now_s: float,
    step_s: float | None = None,
) -> State:
    """Update the progress of a life; an overtaken message only counts as a sign of life."""
    ahead = progress.steps > member.progress.steps
    if ahead:
        member = claims.charged(rule, member, progress, now_s, step_s)
    member = replace(
        member,
        heard_s=now_s,
        progress=progress if ahead else member.progress,
        advanced_s=now_s if ahead else member.advanced_s,
        step_s=member.step_s if step_s is None else step_s,
    )
    tokens = ledger.trained(state.ledger, member.life, progress.tokens)
    return replace(state, ledger=tokens, members=state.members.put(member))


def lose(rule: Rule, state: State, life: Life, why: str, status: Status = Status.LOST) -> State:
    """End a life: its unfinished work is lost, its data goes back, and no round waits for it."""
    if (member := speaking(state.members, life)) is None:
        return state
    pool = leases.pool_of(state.leases, member.region)
    pool = leases.give_back(pool, member.held, member.covered, rule.lease_windows)
    state = with_pool(state, member.region, pool)
    state = replace(state, ledger=ledger.close_account(state.ledger, life))
    for p, fragment in enumerate(state.fragments):
        if fragment.asked.get(life.island) == life:
            requests = {i: other for i, other in fragment.asked.items() if i != life.island}
            state = with_fragment(state, Fragment(p), replace(fragment, asked=requests))
    return with_member(state, replace(member, status=status, why=why, held=()))


def reached(rule: Rule, state: State, event: Reached) -> State:
    """Update the average time that a version takes to the last learner that keeps pace."""
    limit_s = slowest_in_pace(state.members.steps_s, lower=rule.bounded)
    live = {m.life for m in state.members.values() if m.status is Status.LIVE}
    in_pace = {life for life in live if state.members[life.island].step_s <= limit_s}
    after_s = [after_s for life, after_s in event.after_s if life in in_pace]
    if not after_s:
        return state
    return replace(state, pace=state.pace.saw_down(max(after_s)))


def lost(rule: Rule, state: State, event: Lost) -> StateStep:
    """End a life that the shell has found dead."""
    return lose(rule, state, event.life, event.why), ()


def lease_wanted(rule: Rule, state: State, event: LeaseWanted) -> StateStep:
    """Grant one more piece of the corpus, unless the learner has far more than it can need."""
    if (member := speaking(state.members, event.life)) is None:
        return state, (void(state, event.life),)
    if (why := claims.hoards(rule, member)) is not None:
        return lose(rule, state, event.life, why), (Void(event.life, f"{why}, join again"),)
    pool, lease = leases.grant(leases.pool_of(state.leases, member.region))
    state = with_pool(state, member.region, pool)
    member = replace(member, held=(*member.held, lease))
    if rule.bounded:
        granted = member.granted + leases.windows_in((lease,), rule.lease_windows)
        member = replace(member, granted=granted)
    return with_member(state, member), (LeaseGranted(event.life, lease),)


def drain(state: State, event: Drain) -> StateStep:
    """Ask a joining or live learner to hand in everything and leave; else do nothing."""
    member = state.members.get(event.island)
    if member is None or member.status not in {Status.JOINING, Status.LIVE}:
        return state, ()
    member = replace(member, status=Status.DRAINING, why=event.why)
    return with_member(state, member), (Release(member.life, event.why),)


def left(rule: Rule, state: State, event: Left, now_s: float) -> StateStep:
    """Record that a drained learner has left, and take back the data no contribution vouches for.

    The progress that it names is ignored if it is impossible: it may be from the life before.
    """
    if (member := speaking(state.members, event.life)) is None:
        return state, (void(state, event.life),)
    if claims.impossible(rule, state.members, member, event.progress, now_s) is None:
        state = progressed(rule, state, member, event.progress, now_s)
    return lose(rule, state, event.life, member.why, Status.LEFT), ()


def silent_at_s(rule: Rule, state: State) -> list[tuple[float, Member]]:
    """Return when each live learner will be given up if it sends nothing more.

    Learners that wait for adoption (overlap 0) or for the end of the run need not advance.
    """
    must_advance = _must_advance(rule, state)
    return [
        (silent_since_s(member, must_advance=must_advance) + silence_limit_s(member), member)
        for member in state.members.values()
        if member.status in SPEAKING
    ]


def _must_advance(rule: Rule, state: State) -> bool:
    return rule.overlap > 0 and state.phase is Phase.RUNNING


def next_silence_s(rule: Rule, state: State) -> float:
    """Return the earliest time of `silent_at_s`; infinite if no learner is active."""
    if _must_advance(rule, state):
        return state.members.silences_s[0] if state.members.silences_s else math.inf
    return min((at_s for at_s, _ in silent_at_s(rule, state)), default=math.inf)


def give_up_silent(rule: Rule, state: State, now_s: float) -> State:
    """End the lives of learners that have been silent for too long."""
    if now_s < next_silence_s(rule, state):
        return state
    silent = [member for at_s, member in silent_at_s(rule, state) if now_s >= at_s]
    for member in sorted(silent, key=lambda member: member.life.island):
        why = f"silent for {silence_limit_s(member):.0f} s, a step takes {member.step_s:.2g} s"
        state = lose(rule, state, member.life, why)
    return state


def keep_clock(state: State, clock: int | None) -> StateStep:
    """Raise all live offsets by the shortfall if a departure made the K-th clock fall below t."""
    if clock is None or clock >= state.t:
        return state, ()
    shifts: tuple[Effect, ...] = ()
    for member in live(state.members).values():
        raised = replace(member, offset=member.offset + state.t - clock)
        state = with_member(state, raised)
        shifts = (*shifts, Shift(raised.life, raised.offset))
    return state, shifts
