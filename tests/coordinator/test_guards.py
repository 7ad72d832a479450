"""Guards of the rules that no scenario covers; tests/mutants.py removes them one by one."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from coordinator.advance import advance
from coordinator.contributions import VOTE_S
from coordinator.membership import SPEAKING, Status
from coordinator.norms import Norms, Sample
from coordinator.protocol import (
    Adopted,
    Arrived,
    Discard,
    Event,
    Fate,
    Fragment,
    Granted,
    Island,
    Join,
    Lease,
    Lost,
    Merge,
    Merged,
    Progress,
    Report,
    Resume,
    ShardBack,
    ShardLost,
    Stop,
    Tick,
    Version,
    Wake,
)
from coordinator.roster import kth_clock
from coordinator.state import Rule, Stage, State, initial, validate
from tests.coordinator.given import LAYOUT, contribution, life, rule

A, B = Island("a"), Island("b")
F0 = Fragment(0)
LEASE = Lease(0, 6)


def after(rule: Rule, *events: Event, state: State | None = None) -> State:
    """Return the state after these events, one second apart."""
    state = initial(rule) if state is None else state
    for second, event in enumerate(events):
        state, _ = advance(rule, state, event, float(second))
        validate(rule, state)
    return state


def test_heartbeat_without_a_step_does_not_make_a_learner_live() -> None:
    state = after(rule(), Join(A, "group", LAYOUT), Report(life(), Progress(0, 0, Lease(0)), 0.0))
    assert state.members[A].status is Status.JOINING
    state = after(rule(), Report(life(), Progress(1, 9, Lease(0, 1)), 0.1), state=state)
    assert state.members[A].status is Status.LIVE


def test_joining_learner_has_no_clock() -> None:
    one = after(rule(), Join(A, "group", LAYOUT), Report(life(), Progress(3, 9, Lease(0, 3)), 0.1))
    two = after(rule(), Join(B, "group", LAYOUT), state=one)
    assert kth_clock(two.members, 1) == 3
    assert kth_clock(two.members, 2) is None
    assert two.fragments[Fragment(0)].version == Version(0, 0)


def a_round(*then: Event) -> State:
    """Return the state after a handed in for the only fragment, due at step 4, and `then`."""
    steps = Report(life(), Progress(4, 400, Lease(0, 4)), 1.0)
    return after(rule(), Join(A, "group", LAYOUT), steps, Arrived(contribution()), *then)


def test_merged_but_unpublished_tokens_are_lost_with_the_syncer() -> None:
    storing = a_round(Merged(Fragment(0), Version(0, 1)))
    assert storing.ledger.rows[0].merged == 400
    assert (storing.merges, storing.participations) == (1, 1)
    state = after(rule(), Resume(1, (Version(0, 0),)), state=storing)
    assert (state.ledger.rows[0].merged, state.ledger.rows[0].lost) == (0, 400)
    assert (state.merges, state.participations) == (0, 0)


def test_restarted_syncer_reopens_its_round() -> None:
    state = after(rule(), Resume(1, (Version(0, 0),)), state=a_round())
    assert state.members[A].status is Status.LOST
    (fragment,) = state.fragments
    assert fragment.round is not None
    assert fragment.round.stage is Stage.OPEN
    assert fragment.round.version == Version(1, 1)
    assert not fragment.inbox


def test_merged_but_unpublished_tokens_are_lost_with_their_shard() -> None:
    """Nothing else is lost: the learner lives on, and that version number is not reused."""
    storing = a_round(Merged(F0, Version(0, 1)))
    state, effects = advance(rule(), storing, ShardLost((F0,)), 5.0)
    validate(rule(), state)
    assert [(e.contribution, e.fate) for e in effects if isinstance(e, Discard)] == [
        (contribution(), Fate.LOST)
    ]
    assert (state.ledger.rows[0].merged, state.ledger.rows[0].lost) == (0, 400)
    assert (state.merges, state.participations) == (0, 0)
    assert state.members[A].status is Status.LIVE
    again = after(rule(), ShardLost((F0,)), state=state)  # a repeated message
    assert again.fragments[0] == state.fragments[0]
    back = after(rule(), ShardBack((F0,)), state=state)
    (fragment,) = back.fragments
    assert fragment.round is not None
    assert fragment.round.version == Version(0, 2)
    assert fragment.asked == {A: life()}


def test_round_open_at_shard_death_keeps_its_version_number() -> None:
    two = rule(quorum=2)
    open_ = after(
        two,
        Join(A, "group", LAYOUT),
        Join(B, "group", LAYOUT),
        Report(life("a", 1), Progress(4, 400, Lease(0, 4)), 1.0),
        Report(life("b", 2), Progress(4, 400, Lease(2, 4)), 1.0),
        Arrived(contribution(life("a", 1))),
        ShardLost((F0,)),
        ShardBack((F0,)),
    )
    (fragment,) = open_.fragments
    assert fragment.round is not None
    assert fragment.round.version == Version(0, 1)
    assert not fragment.inbox
    assert open_.ledger.rows[0].lost == 400


def test_no_round_opens_while_the_shard_is_away() -> None:
    two = rule(every=2, fragments=2)
    away = after(two, Join(A, "group", LAYOUT), ShardLost((F0,)))
    away = after(two, Report(life(), Progress(4, 400, Lease(0, 4)), 1.0), state=away)
    assert away.fragments[0].due
    assert away.fragments[0].round is None
    assert away.fragments[1].round is not None, "that of another shard"
    stopping = after(two, Stop("enough"), state=away)
    assert stopping.fragments[0].round is None
    back = after(two, ShardBack((F0,)), state=away)
    assert back.fragments[0].round is not None


def test_contribution_arriving_for_a_dead_shard_is_lost() -> None:
    steps = Report(life(), Progress(4, 400, Lease(0, 4)), 1.0)
    away = after(rule(), Join(A, "group", LAYOUT), steps, ShardLost((F0,)))
    state, effects = advance(rule(), away, Arrived(contribution()), 5.0)
    validate(rule(), state)
    assert [e.fate for e in effects if isinstance(e, Discard)] == [Fate.LOST]
    assert not state.fragments[0].inbox
    assert state.ledger.rows[0].lost == 400


def test_resumed_syncer_has_all_its_shards() -> None:
    away = after(rule(), Join(A, "group", LAYOUT), ShardLost((F0,)))
    state = after(rule(), Resume(1, (Version(0, 0),)), state=away)
    assert not state.fragments[0].away


def test_quorum_updates_the_grace_window_of_every_round() -> None:
    """The time to quorum enters a moving average, which can shorten open grace windows.

    A round whose window has ended in this way is merged at once, without an alarm.
    """
    two = rule(fragments=2, every=2, quorum=1, overlap=1)
    a, b = life("a", 1), life("b", 2)
    state = after(
        two,
        Join(A, "group", LAYOUT),
        Join(B, "group", LAYOUT),
        Report(b, Progress(2, 200, Lease(2, 2)), 10.0),  # both fragments are due
        Report(a, Progress(2, 200, Lease(0, 2)), 10.0),
        Arrived(contribution(a, 0, (0, 2))),
    )
    at_s = 11.0  # f0's window would have ended at 11.2
    state, effects = advance(two, state, Arrived(contribution(a, 1, (0, 2))), at_s)
    assert [effect.fragment for effect in effects if isinstance(effect, Merge)] == [0]
    assert all(effect.at_s > at_s for effect in effects if isinstance(effect, Wake))


def test_refuses_tokens_that_were_handed_in_before() -> None:
    """The counters fit together, but half of these tokens were handed in before."""
    state = a_round(Report(life(), Progress(8, 800, Lease(0, 8)), 1.0))
    again = contribution(life(), 0, (4, 8), tokens=800)
    state, (discard, *_) = advance(rule(), state, Arrived(again), 9.0)
    assert isinstance(discard, Discard)
    assert discard.fate is Fate.GATE
    validate(rule(), state)


def fleet(names: str, norms: int = 8) -> State:
    """Return a state of live islands of these names, with `norms` usual norms of the fragment."""
    joins = [Join(Island(name), "group", LAYOUT) for name in names]
    lives = [life(name, n) for n, name in enumerate(names, 1)]
    reports = [
        Report(who, Progress(99, 9900, Lease(2 * n, 99)), 1.0) for n, who in enumerate(lives)
    ]
    usual = [Arrived(contribution(lives[0], 0, (n, n + 1))) for n in range(norms)]
    return after(rule(every=1), *joins, *reports, *usual)


def handed(
    name: str, number: int, step: int, norm: float, progress: Progress | None = None
) -> Arrived:
    who, span = life(name, number), (step, step + 1)
    return Arrived(contribution(who, 0, span, norm=norm, progress=progress))


def test_new_norms_are_accepted_when_most_learners_have_them() -> None:
    """One learner alone changes nothing."""
    one, state = rule(every=1), fleet("ab")
    usual = state.fragments[0].norms
    state = after(one, handed("a", 1, 20, 50), handed("a", 1, 21, 50), state=state)
    assert state.fragments[0].norms == usual
    assert state.fragments[0].outliers == {A}
    state = after(one, handed("b", 2, 22, 50), state=state)
    assert state.fragments[0].norms == Norms((), Sample(1.0, 1, A))
    state = after(one, handed("b", 2, 23, 50), state=state)
    assert state.fragments[0].norms == Norms((Sample(50, 1, B),), Sample(1.0, 1, A))


def test_single_learner_continues_after_a_tenfold_norm_change() -> None:
    """The only learner is the whole fleet; it once never merged again."""
    state = after(rule(every=1), handed("a", 1, 20, 12), state=fleet("a"))
    state, effects = advance(rule(every=1), state, handed("a", 1, 21, 12), 9.0)
    assert not [effect for effect in effects if isinstance(effect, Discard)]


def test_former_norms_bound_norms_that_changed_for_everyone() -> None:
    """Until eight new norms are known, the limit is a hundred times the former median."""
    one = rule(every=1)
    state = after(one, handed("a", 1, 20, 12), state=fleet("a"))
    assert refused_for(one, state, handed("a", 1, 21, 101)) == "norm 101 over 1 step, the limit"
    state = after(one, *(handed("a", 1, 21 + n, 12) for n in range(8)), state=state)
    assert state.fragments[0].norms.former is None
    assert refused_for(one, state, handed("a", 1, 30, 121)) == "norm 121 over 1 step, the limit"


def refused_for(one: Rule, state: State, event: Arrived) -> str:
    _, effects = advance(one, state, event, 9.0)
    (discard,) = [effect for effect in effects if isinstance(effect, Discard)]
    return discard.why.partition(" is ")[0]


def read(lease: Lease, steps: int) -> Progress:
    """Return the progress of a learner that reads one window of this lease a step."""
    return Progress(steps, 100 * steps, Lease(lease.number, lease.start + steps))


@pytest.mark.parametrize("factor", [30.0, 1000.0])
def test_two_loud_learners_of_four_are_refused_in_any_order(factor: float) -> None:
    """The first loud learner is quarantined.

    The second one was then more than half of the remaining electorate for outliers.
    """
    one = rule(every=1, fragments=1, grace_s=0)
    orders = [*permutations("abcd")]
    chance = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    for order in orders:
        state, steps, number = (
            fleet("abcd"),
            dict.fromkeys("abcd", 20),
            dict(zip("abcd", range(1, 5), strict=True)),
        )
        reads = {name: Lease(2 * n) for n, name in enumerate("abcd")}
        for turn in range(12):
            now_s = 10.0 + turn
            for name in order if turn % 2 else chance.sample(order, 4):
                member = state.members[Island(name)]
                if member.status not in SPEAKING:
                    state, effects = advance(one, state, Join(Island(name), "group", LAYOUT), now_s)
                    granted = [e for e in effects if isinstance(e, Granted)]
                    if not granted:
                        continue
                    number[name], steps[name] = granted[0].life.incarnation, 0
                    reads[name] = granted[0].leases[0]
                    told = Report(granted[0].life, read(reads[name], 1), 1.0)
                    state, _ = advance(one, state, told, now_s)
                loud = name in "ab"
                far = read(reads[name], steps[name] + 1)
                norm = factor if loud else 1.0
                event = handed(name, number[name], steps[name], norm, far)
                state, effects = advance(one, state, event, now_s)
                refused = any(isinstance(effect, Discard) for effect in effects)
                assert refused == loud, f"{name} of {order} in turn {turn}: {effects}"
                steps[name] += 1
                validate(one, state)


def test_overwritten_tokens_are_capped_at_trained_tokens() -> None:
    state = a_round(Adopted(life(), Fragment(0), Version(0, 0), 4, 999, Progress(6, 600, LEASE)))
    assert state.ledger.rows[0].discarded == {Fate.OVERWRITTEN: 200}


def test_silent_learner_is_lost_exactly_at_its_alarm() -> None:
    """Rounding in float sums must not make the alarm ring again and again."""
    start = after(rule(), Join(A, "group", LAYOUT))
    for step in range(1, 250):
        now_s = step * 0.395123
        heard = Report(life(), Progress(1, 9, Lease(0, 1)), 0.3)
        state, effects = advance(rule(), start, heard, now_s)
        (wake,) = [effect for effect in effects if isinstance(effect, Wake)]
        state, effects = advance(rule(), state, Tick(), wake.at_s)
        assert state.members[A].status is Status.LOST
        assert effects == ()


@pytest.mark.parametrize(("away_s", "is_outvoted"), [(VOTE_S - 60, False), (VOTE_S + 60, True)])
def test_lost_island_keeps_its_vote_on_usual_norms_for_a_while(
    away_s: float, is_outvoted: bool
) -> None:
    """Two loud islands are no majority of four, of which one was lost a moment ago."""
    one, state = rule(every=1), fleet("abcd")
    state, _ = advance(one, state, Lost(life("d", 4), "its process ended"), 9.0)
    for second in range(10, int(9 + away_s), 10):
        for number, name in enumerate("abc", 1):
            progress = read(Lease(2 * number - 2), 99 + second)
            told = Report(life(name, number), progress, 1.0)
            state, _ = advance(one, state, told, float(second))
    for event in (handed("a", 1, 20, 50), handed("b", 2, 21, 50)):
        state, _ = advance(one, state, event, 9.0 + away_s)
    assert state.members[Island("d")].status is Status.LOST
    assert state.fragments[0].outliers == (frozenset() if is_outvoted else {A, B})
