"""What an island says of itself is held to its leases and its time (edition 1 of the rules)."""

from __future__ import annotations

import pytest

from coordinator.advance import advance
from coordinator.claims import CREDIT_S, MOST_UNREAD
from coordinator.frozen import replace
from coordinator.grace import slowest_in_pace
from coordinator.membership import Status
from coordinator.norms import NONE, OUTLIER_FACTOR, admit, limit
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
from coordinator.state import Phase, Rule, State, initial
from tests.coordinator.given import LAYOUT, contribution, life, rule

A = Island("a")
BATCH, WINDOW_TOKENS = 2, 50
BOUNDED = replace(rule(), batches=(("group", BATCH),), window_tokens=WINDOW_TOKENS)
BELIEVING = replace(BOUNDED, edition=0)


def said(
    steps: int, tokens: int | None = None, start: int | None = None, lease: int = 0
) -> Progress:
    """How far a learner is after so many steps of two windows, 100 tokens each, unless it lies."""
    read = BATCH * steps if start is None else start
    return Progress(steps, 100 * steps if tokens is None else tokens, Lease(lease, read))


def heard(rules: Rule, *events: tuple[float, Event]) -> tuple[State, tuple[Effect, ...]]:
    """The state after island a has joined at 0 s and these were heard; what the last one led to."""
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
def test_a_word_that_cannot_be_true_moves_nothing_and_ends_its_life(lie: Progress) -> None:
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


def test_the_truth_is_believed() -> None:
    state, effects = heard(BOUNDED, FIRST, (20.0, Report(life(), said(20), 1.0)))
    assert (state.t, state.ledger.trained) == (20, 2000)
    assert not [effect for effect in effects if isinstance(effect, Void)]


def test_one_flipped_bit_does_not_end_the_run() -> None:
    """It once did, as a success."""
    short = replace(BOUNDED, steps=1000)
    lie = (20.0, Report(life(), said(20 ^ 2**20, 2000, 40), 1.0))
    assert heard(short, FIRST, lie)[0].phase is Phase.RUNNING
    assert heard(replace(short, edition=0), FIRST, lie)[0].phase is not Phase.RUNNING


def test_steps_take_time() -> None:
    """Its leases would hold them; at twice its fastest speed they do not fit into what it had."""
    most = int(2 * (CREDIT_S + 10.0))
    for steps, status in ((10 + most, Status.LIVE), (11 + most, Status.QUARANTINED)):
        state, _ = heard(BOUNDED, FIRST, (20.0, Report(life(), said(steps), 1.0)))
        assert state.members[A].status is status


def test_reports_that_come_together_after_a_pause_of_the_syncer_are_believed() -> None:
    reports = [(160.0, Report(life(), said(10 + 30 * n), 1.0)) for n in range(1, 6)]
    state, _ = heard(BOUNDED, FIRST, *reports)
    assert (state.members[A].status, state.t) == (Status.LIVE, 160)


def test_who_leaps_to_the_end_must_say_so_twice() -> None:
    near = replace(BOUNDED, steps=40)
    leap = Report(life(), said(41), 1.0)
    state, _ = heard(near, FIRST, (41.0, leap))
    assert (state.t, state.phase) == (10, Phase.RUNNING)
    for again in (said(11), said(40)):  # overtaken words, or honest ones after a flipped bit
        state, _ = heard(near, FIRST, (41.0, leap), (42.0, Report(life(), again, 1.0)))
        assert (state.t, state.phase) == (10, Phase.RUNNING)
    state, _ = heard(near, FIRST, (41.0, leap), (42.0, Report(life(), said(42), 1.0)))
    assert (state.t, state.phase) == (40, Phase.STOPPING)


def test_a_contribution_cannot_claim_more_tokens_than_its_steps_have() -> None:
    full = (10.5, Arrived(contribution(span=(4, 10), progress=said(10), tokens=601)))
    state, _ = heard(BOUNDED, FIRST, full)
    assert not state.fragments[0].inbox
    assert state.members[A].refusals == 1
    fair = (10.5, Arrived(contribution(span=(4, 10), progress=said(10), tokens=600)))
    assert heard(BOUNDED, FIRST, fair)[0].ledger.rows[0].held == 600


def test_where_nobody_knows_the_tokens_of_a_window_its_own_past_bounds_them() -> None:
    unknown = replace(BOUNDED, window_tokens=0)
    for tokens, status in ((30_000, Status.LIVE), (1_000_000, Status.QUARANTINED)):
        state, _ = heard(unknown, FIRST, (20.0, Report(life(), said(20, tokens), 1.0)))
        assert state.members[A].status is status


def test_data_is_granted_as_far_as_it_can_be_needed() -> None:
    wants = [(float(n), LeaseWanted(life())) for n in range(40)]
    state, _ = heard(BOUNDED, *wants[: MOST_UNREAD - 1])
    assert state.members[A].status is Status.JOINING
    state, effects = heard(BOUNDED, *wants[: MOST_UNREAD + 1])
    assert state.members[A].status is Status.LOST
    assert not [effect for effect in effects if isinstance(effect, LeaseGranted)]
    pool = state.leases[None]
    assert len(pool.returned) == pool.fresh, "what it hoarded goes back"


def test_an_honest_learner_never_wants_for_data() -> None:
    """It asks for a lease whenever it begins one."""
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


def test_a_learner_whose_step_reads_whole_leases_may_come_to_its_first_due_point() -> None:
    """Nothing vouches for what it has read until it hands in: here after 1,200 leases."""
    long = replace(rule(every=600, lease_windows=1), batches=(("group", BATCH),))
    state, _ = advance(long, initial(long), Join(A, "group", LAYOUT), 0.0)
    for steps in range(1, 600):
        where = Progress(steps, 100 * steps, Lease(BATCH * steps - 1, 1))
        state, _ = advance(long, state, Report(life(), where, 1.0), steps)
        for _ in range(BATCH):
            state, _ = advance(long, state, LeaseWanted(life()), steps)
    assert state.members[A].status is Status.LIVE, state.members[A].why


# --- shares, norms, pace --------------------------------------------------------------------------


def test_no_contribution_has_more_than_four_times_its_share_of_the_steps() -> None:
    """One of eight that claims a thousand times the tokens once had all of every merge."""
    loud = contribution(life("h"), tokens=400_000)
    others = tuple(contribution(life(name)) for name in "abcdefg")
    shares = [item.weight for item in weigh((*others, loud))]
    assert shares[-1] == pytest.approx(MOST_SHARE / 8)
    assert sum(shares) == pytest.approx(1.0)
    assert len(set(shares[:-1])) == 1
    assert weigh((*others, loud), capped=False)[-1].weight > 0.999


@pytest.mark.parametrize("islands", [2, 3, 4, 8])
def test_a_drift_is_stopped_before_ten_times_the_norm_of_the_others(islands: int) -> None:
    """Among two it had no end: half of the norms that were usual were its own."""
    names = [Island(f"i{n}") for n in range(islands)]
    drifting, known, norm = names[-1], NONE, 1.0
    for _ in range(600):
        for name in names:
            mine = norm if name == drifting else 1.0
            if mine > limit(known, 4, frozenset(names) - {name}):
                assert name == drifting
                assert norm / 1.05 <= OUTLIER_FACTOR
                return
            known = admit(known, mine, 4, name)
        norm *= 1.05
    raise AssertionError(f"it went on to {norm:.3g} times the usual norm")


def test_a_slow_island_keeps_its_last_norms_beside_a_fast_one() -> None:
    slow, fast = Island("slow"), Island("fast")
    known = NONE
    for _ in range(4):
        known = admit(known, 1.0, 4, slow)
    for _ in range(500):
        known = admit(known, 3.0, 4, fast)
    assert limit(known, 4, frozenset({slow})) == pytest.approx(10.0)


def test_of_two_islands_the_slower_one_does_not_always_keep_pace() -> None:
    assert slowest_in_pace([1.0, 50.0]) == 1.0
    assert slowest_in_pace([1.0, 1.0, 10.0, 10.0]) == 1.0
    assert slowest_in_pace([1.0, 2.0]) == 2.0
    assert slowest_in_pace([1.0, 50.0], lower=False) == 50.0, "as it was in edition 0"
