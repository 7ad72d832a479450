"""The syncer checks an island's claims against its leases and its time (rules edition 1)."""

from __future__ import annotations

from collections.abc import ValuesView

import pytest

from coordinator.advance import advance
from coordinator.claims import CREDIT_S, MOST_UNREAD, impossible
from coordinator.frozen import replace
from coordinator.grace import slowest_in_pace
from coordinator.membership import Member, Status
from coordinator.norms import NONE, OUTLIER_FACTOR, STRICT_FACTOR, admit, limit
from coordinator.orders import MOST_SHARE, weigh
from coordinator.protocol import (
    Adopted,
    Arrived,
    Effect,
    Event,
    Granted,
    Island,
    Join,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Progress,
    Report,
    Version,
    Void,
)
from coordinator.roster import Roster
from coordinator.state import Phase, Rule, State, initial
from tests.coordinator.given import LAYOUT, contribution, life, rule

A = Island("a")
BATCH, WINDOW_TOKENS = 2, 50
BOUNDED = replace(rule(), batches=(("group", BATCH),), window_tokens=WINDOW_TOKENS)
BELIEVING = replace(BOUNDED, edition=0)


def said(
    steps: int, tokens: int | None = None, start: int | None = None, lease: int = 0
) -> Progress:
    """Return the progress after `steps` of two windows and 100 tokens each, unless it is false."""
    read = BATCH * steps if start is None else start
    return Progress(steps, 100 * steps if tokens is None else tokens, Lease(lease, read))


def heard(rules: Rule, *events: tuple[float, Event]) -> tuple[State, tuple[Effect, ...]]:
    """Return the state after these events and the effects of the last event.

    Island a joins at 0 s, before the events.
    """
    state, effects = advance(rules, initial(rules), Join(A, "group", LAYOUT), 0.0)
    for now_s, event in events:
        state, effects = advance(rules, state, event, now_s)
    return state, effects


FIRST = (10.0, Report(life(), said(10), 1.0))

LIES = {
    "steps with a flipped bit": said(20 ^ 2**20, 2000, 40),
    "more steps than it has read": said(21, 2000, 40),
    "less read than it has trained on": said(20, 2000, 38),
    "a lease that it does not hold": said(20, lease=7),
    "more of a lease than there is": said(20, start=1001),
    "tokens with a flipped bit": said(20, 2000 ^ 2**30),
    "more tokens than its windows hold": said(20, 2001),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_impossible_claim_changes_nothing_and_quarantines_its_life(lie: Progress) -> None:
    before, _ = heard(BOUNDED, FIRST)
    for word in (
        Report(life(), lie, 1.0),
        Adopted(life(), contribution().id.fragment, Version(0, 0), lie.steps, 0, lie),
    ):
        state, effects = heard(BOUNDED, FIRST, (20.0, word))
        assert (state.t, state.phase) == (before.t, Phase.RUNNING)
        assert state.ledger.trained == before.ledger.trained
        assert state.members[A].status is Status.QUARANTINED
        (void,) = [effect for effect in effects if isinstance(effect, Void)]
        assert void.distrusted
        assert "not possible" in void.why
        believed, _ = heard(BELIEVING, FIRST, (20.0, word))
        assert believed.members[A].status is Status.LIVE, "a tape of before is answered as it was"


def test_accepts_truthful_report() -> None:
    state, effects = heard(BOUNDED, FIRST, (20.0, Report(life(), said(20), 1.0)))
    assert (state.t, state.ledger.trained) == (20, 2000)
    assert not [effect for effect in effects if isinstance(effect, Void)]


def test_one_flipped_bit_does_not_end_the_run() -> None:
    """One flipped bit once ended the run, reported as a success."""
    short = replace(BOUNDED, steps=1000)
    lie = (20.0, Report(life(), said(20 ^ 2**20, 2000, 40), 1.0))
    assert heard(short, FIRST, lie)[0].phase is Phase.RUNNING
    assert heard(replace(short, edition=0), FIRST, lie)[0].phase is not Phase.RUNNING


def test_quarantines_learner_that_reports_steps_too_fast() -> None:
    """The learner's leases would hold these steps.

    At twice its fastest speed the steps do not fit into the time that it had.
    """
    most = int(2 * (CREDIT_S + 10.0))
    for steps, status in ((10 + most, Status.LIVE), (11 + most, Status.QUARANTINED)):
        state, _ = heard(BOUNDED, FIRST, (20.0, Report(life(), said(steps), 1.0)))
        assert state.members[A].status is status


def test_accepts_reports_delivered_together_after_a_syncer_pause() -> None:
    reports = [(160.0, Report(life(), said(10 + 30 * n), 1.0)) for n in range(1, 6)]
    state, _ = heard(BOUNDED, FIRST, *reports)
    assert (state.members[A].status, state.t) == (Status.LIVE, 160)


def test_leap_to_the_last_step_needs_a_second_report() -> None:
    near = replace(BOUNDED, steps=40)
    leap = Report(life(), said(41), 1.0)
    state, _ = heard(near, FIRST, (41.0, leap))
    assert (state.t, state.phase) == (10, Phase.RUNNING)
    for again in (said(11), said(40)):  # reports out of order, or honest ones after a flipped bit
        state, _ = heard(near, FIRST, (41.0, leap), (42.0, Report(life(), again, 1.0)))
        assert (state.t, state.phase) == (10, Phase.RUNNING)
    state, _ = heard(near, FIRST, (41.0, leap), (42.0, Report(life(), said(42), 1.0)))
    assert (state.t, state.phase) == (40, Phase.STOPPING)


def test_refuses_contribution_with_more_tokens_than_its_steps() -> None:
    full = (10.5, Arrived(contribution(span=(4, 10), progress=said(10), tokens=601)))
    state, _ = heard(BOUNDED, FIRST, full)
    assert not state.fragments[0].inbox
    assert state.members[A].refusals == 1
    fair = (10.5, Arrived(contribution(span=(4, 10), progress=said(10), tokens=600)))
    assert heard(BOUNDED, FIRST, fair)[0].ledger.rows[0].held == 600


def test_past_tokens_bound_a_claim_if_window_tokens_are_unknown() -> None:
    unknown = replace(BOUNDED, window_tokens=0)
    for tokens, status in ((30_000, Status.LIVE), (1_000_000, Status.QUARANTINED)):
        state, _ = heard(unknown, FIRST, (20.0, Report(life(), said(20, tokens), 1.0)))
        assert state.members[A].status is status


UNKNOWN = replace(BOUNDED, window_tokens=0)
B, C, D = (Island(name) for name in "bcd")


def densities(edition: int, *others: tuple[Island, int], claims: int = 5) -> list[Status]:
    """Return the status of island a after each of its claims, each with 15 times the tokens.

    Before that it reports 100 tokens per step. `others`: other islands, each with its tokens per
    step, which report once after it.
    """
    rules, now_s, statuses = replace(UNKNOWN, edition=edition), 0.0, list[Status]()
    state = initial(rules)
    for island in (A, *(name for name, _ in others)):
        state, _ = advance(rules, state, Join(island, "group", LAYOUT), now_s)
    for island, tokens in ((A, 100), *others):
        progress = said(10, 10 * tokens, lease=state.members[island].held[0].number)
        report = Report(state.members[island].life, progress, 1.0)
        state, _ = advance(rules, state, report, now_s := now_s + 1)
    for number in range(1, claims + 1):
        steps, lease = 10 + number, state.members[A].held[0].number
        claim = said(steps, steps * 100 * 15**number, lease=lease)
        state, _ = advance(
            rules, state, Report(state.members[A].life, claim, 1.0), now_s := now_s + 1
        )
        statuses.append(state.members[A].status)
        if statuses[-1] is not Status.LIVE:
            break
    return statuses


@pytest.mark.parametrize(
    "others", [(), ((B, 100),), ((B, 100), (C, 100)), ((B, 1), (C, 100)), ((B, 10**6), (C, 100))]
)
def test_each_claim_of_tokens_does_not_raise_the_limit_of_the_next_one(
    others: tuple[tuple[Island, int], ...],
) -> None:
    """Five reports in a row once reached 15 to the fifth times the true number of tokens."""
    assert densities(3, *others) == [Status.LIVE] * 5, "a tape of before is answered as it was"
    assert densities(4, *others) == [Status.LIVE, Status.QUARANTINED]


class Unsearched(Roster):
    """Members that must not be searched."""

    def values(self) -> ValuesView[Member]:
        raise AssertionError("a report looks at all members")


def test_report_looks_at_no_other_member() -> None:
    """Each report once computed and sorted a number of each island for a task of one's own."""
    rules, progress = replace(UNKNOWN, edition=4), said(10, 1000)
    members = dict[Island, Member]()
    for number in range(9):
        each = life(f"{number}")
        first = Member(each, "group", Status.LIVE, "steps", 0, progress, 1.0, 1.0, granted=100)
        members[each.island] = replace(first, held=(Lease(0),), first_density=50.0)
    roster = Unsearched(members)
    assert roster.densities(rules.batch_of) == (50.0,) * 9
    claim, member = said(11, 1200), members[Island("3")]
    assert impossible(rules, roster, member, claim, 2.0, 1.0) is None
    why = impossible(rules, roster, member, said(11, 10**6), 2.0, 1.0)
    assert why == "1000000 tokens in 11 steps, the most is 17600"


def test_one_island_with_few_tokens_does_not_condemn_another() -> None:
    for others in ([(B, 1)], [(B, 1), (C, 100)], [(B, 1), (C, 100), (D, 100)]):
        assert densities(4, *others, claims=1) == [Status.LIVE]


def test_contribution_is_bounded_by_the_tokens_of_other_islands() -> None:
    for edition, tokens in ((3, 16_000), (4, 1_600)):
        rules = replace(UNKNOWN, edition=edition)
        dense = (20.0, Report(life(), said(20, 20_000), 1.0))  # ten times as dense as before
        for more in (0, 1):
            claim = contribution(span=(19, 20), progress=said(20, 20_000), tokens=tokens + more)
            state, _ = heard(rules, FIRST, dense, (20.5, Arrived(claim)))
            assert state.members[A].refusals == more, (edition, tokens, more)


def test_hoarding_leases_ends_the_life_and_returns_them() -> None:
    wants = [(float(n), LeaseWanted(life())) for n in range(40)]
    state, _ = heard(BOUNDED, *wants[: MOST_UNREAD - 1])
    assert state.members[A].status is Status.JOINING
    state, effects = heard(BOUNDED, *wants[: MOST_UNREAD + 1])
    assert state.members[A].status is Status.LOST
    assert not [effect for effect in effects if isinstance(effect, LeaseGranted)]
    pool = state.leases[None]
    assert len(pool.returned) == pool.fresh, "what it hoarded goes back"


def test_honest_learner_is_always_granted_leases() -> None:
    """The learner asks for a lease whenever it begins one."""
    small = replace(BOUNDED, lease_windows=20)
    state, effects = advance(small, initial(small), Join(A, "group", LAYOUT), 0.0)
    (granted,) = [effect for effect in effects if isinstance(effect, Granted)]
    leases = [*granted.leases]
    for n in range(1, 400):
        steps, number = 10 * n, leases[n - 1].number
        state, _ = advance(
            small, state, Report(life(), said(steps, start=20, lease=number), 1.0), steps
        )
        state, effects = advance(small, state, LeaseWanted(life()), steps)
        leases += [effect.lease for effect in effects if isinstance(effect, LeaseGranted)]
    assert state.members[A].status is Status.LIVE
    assert len(leases) == 401


def test_learner_with_one_window_leases_reaches_its_first_due_point() -> None:
    """Only a hand-in proves what it has read, and the first one comes after 1,200 leases."""
    long = replace(rule(every=600, lease_windows=1), batches=(("group", BATCH),))
    state, _ = advance(long, initial(long), Join(A, "group", LAYOUT), 0.0)
    for steps in range(1, 600):
        where = Progress(steps, 100 * steps, Lease(BATCH * steps - 1, 1))
        state, _ = advance(long, state, Report(life(), where, 1.0), steps)
        for _ in range(BATCH):
            state, _ = advance(long, state, LeaseWanted(life()), steps)
    assert state.members[A].status is Status.LIVE, state.members[A].why


# --- shares, norms, pace --------------------------------------------------------------------------


def test_weight_is_capped_at_four_times_the_share_of_steps() -> None:
    """One of eight islands that claimed a thousand times the tokens once dominated every merge."""
    loud = contribution(life("h"), tokens=400_000)
    others = tuple(contribution(life(name)) for name in "abcdefg")
    shares = [item.weight for item in weigh((*others, loud))]
    assert shares[-1] == pytest.approx(MOST_SHARE / 8)
    assert sum(shares) == pytest.approx(1.0)
    assert len(set(shares[:-1])) == 1
    assert weigh((*others, loud), capped=False)[-1].weight > 0.999


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("islands", [2, 3, 4, 8])
def test_stops_norm_drift_before_ten_times_the_norm_of_the_others(
    islands: int, edition: int
) -> None:
    """Between two islands the drift was unbounded: half of the usual norms were its own."""
    names = [Island(f"i{n}") for n in range(islands)]
    drifting, known, norm = names[-1], NONE, 1.0
    for _ in range(600):
        for name in names:
            mine = norm if name == drifting else 1.0
            if mine > limit(known, 4, frozenset(names) - {name}, name if edition > 1 else None):
                assert name == drifting
                assert norm / 1.05 <= OUTLIER_FACTOR
                return
            known = admit(known, mine, 4, name)
        norm *= 1.05
    raise AssertionError(f"it went on to {norm:.3g} times the usual norm")


def test_limit_follows_norms_that_fall_with_the_learning_rate() -> None:
    """At the end of a run, a norm of 70 times the others' was merged, and cost 20 % of the loss."""
    names, known, norm = [Island(name) for name in "abc"], NONE, 1.0
    for _ in range(40):
        for name in names:
            known = admit(known, norm, 4, name)
        norm *= 0.9
    others, own = frozenset(names) - {"c"}, Island("c")
    assert limit(known, 4, others, own) > 60 * norm, "edition 2"
    late = 0.9**-2.5  # the median of the newest four is two and a half rounds old
    newest = limit(known, 4, others, own, newest=True)
    assert newest == pytest.approx(OUTLIER_FACTOR * late * norm, rel=0.15)
    strict = limit(known, 4, others, own, newest=True, factor=STRICT_FACTOR)
    assert strict == pytest.approx(newest * STRICT_FACTOR / OUTLIER_FACTOR)


@pytest.mark.parametrize("away", ["loud", "own"])
def test_one_loud_island_does_not_open_the_gate_for_another(away: str) -> None:
    """The middle of two other islands lies between them, so half of them could move it (fuzz)."""
    names = [Island(name) for name in ("loud", "other", "own")]
    known = NONE
    for _ in range(4):
        for name in names:
            known = admit(known, 1000.0 if name == "loud" else 1.0, 4, name)
    others = frozenset(names) - {"own"}
    assert limit(known, 4, others) > 1000.0, "edition 1"
    assert limit(known, 4, others, Island("own")) == pytest.approx(OUTLIER_FACTOR)
    fewer = [each for each in known.recent if each.island != away]
    alone = limit(replace(known, recent=tuple(fewer)), 4, others, Island("own"))
    assert (alone > 1000.0) == (away == "own"), "no third island decides"


def test_keeps_norms_of_a_slow_island_beside_a_fast_one() -> None:
    slow, fast = Island("slow"), Island("fast")
    known = NONE
    for _ in range(4):
        known = admit(known, 1.0, 4, slow)
    for _ in range(500):
        known = admit(known, 3.0, 4, fast)
    assert limit(known, 4, frozenset({slow})) == pytest.approx(10.0)


def test_slower_of_two_islands_may_be_a_straggler() -> None:
    assert slowest_in_pace([1.0, 50.0]) == 1.0
    assert slowest_in_pace([1.0, 1.0, 10.0, 10.0]) == 1.0
    assert slowest_in_pace([1.0, 2.0]) == 2.0
    assert slowest_in_pace([1.0, 50.0], lower=False) == 50.0, "as it was in edition 0"
