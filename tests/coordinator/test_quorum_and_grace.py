"""May this round close? And how long does it wait for the others?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.grace import SHARE_OF_SLACK, Pace, last_window_s, slowest_in_pace, smooth, window_s
from coordinator.protocol import Island
from coordinator.quorum import Abandon, Close, Verdict, Wait, judge


def islands(names: str) -> set[Island]:
    return {Island(name) for name in names}


def ask(
    arrived: str, expected: str, *, k: int = 2, stopping: bool = False, deadline_s: float = math.inf
) -> Verdict:
    """The verdict at five seconds."""
    return judge(
        min_quorum=k,
        arrived=islands(arrived),
        expected=islands(expected),
        stopping=stopping,
        deadline_s=deadline_s,
        now_s=5.0,
    )


def test_under_the_quorum_only_an_arrival_can_help() -> None:
    assert ask("a", "bc") == Wait(math.inf, "quorum 1/2")
    assert ask("", "") == Wait(math.inf, "quorum 0/2")


def test_under_the_quorum_even_a_past_deadline_closes_nothing() -> None:
    assert isinstance(ask("a", "b", deadline_s=0.0), Wait)


def test_when_all_have_delivered_the_round_closes_at_once() -> None:
    assert ask("ab", "", deadline_s=9.0) == Close("all 2 delivered")


def test_inside_the_grace_window_it_waits_and_says_for_whom() -> None:
    assert ask("ab", "dc", deadline_s=5.5) == Wait(5.5, "grace for c, d")


def test_when_the_grace_is_over_it_closes_and_says_without_whom() -> None:
    assert ask("ab", "dc", deadline_s=5.0) == Close("grace over without c, d")


def test_stopping_under_the_quorum_waits_only_while_somebody_owes_an_answer() -> None:
    assert isinstance(ask("a", "b", stopping=True), Wait)
    assert ask("a", "", stopping=True) == Abandon("quorum 1/2 and nobody left to wait for")


def test_stopping_under_the_quorum_waits_no_longer_than_over_it() -> None:
    assert ask("a", "b", stopping=True, deadline_s=5.1) == Wait(5.1, "quorum 1/2")
    given_up = ask("a", "b", stopping=True, deadline_s=5.0)
    assert given_up == Abandon("quorum 1/2, the end has waited for b")


names = st.sets(st.sampled_from("abcdef")).map("".join)


@given(names, names, st.integers(1, 6), st.booleans(), st.floats(0, 10))
def test_nothing_ever_closes_under_the_quorum(
    arrived: str, expected: str, k: int, stopping: bool, deadline_s: float
) -> None:
    verdict = ask(arrived, expected, k=k, stopping=stopping, deadline_s=deadline_s)
    assert not (isinstance(verdict, Close) and len(arrived) < k)
    if isinstance(verdict, Wait) and len(arrived) >= k:
        assert 5.0 < verdict.until_s == deadline_s


# --- grace ----------------------------------------------------------------------------------------


def test_the_window_is_a_share_of_the_slack() -> None:
    pace = Pace(quorum_s=0.9, sync_s=0.8)
    window = window_s(fixed_s=None, overlap=2, follows=False, step_s=[1.0, 1.0], pace=pace)
    assert window == pytest.approx(SHARE_OF_SLACK * (2 * 1.0 - 0.9 - 0.8))


def test_the_window_is_never_longer_than_a_step() -> None:
    assert window_s(fixed_s=None, overlap=9, follows=False, step_s=[1.0, 1.5], pace=Pace()) == 1.5


def test_without_slack_there_is_no_window() -> None:
    assert window_s(fixed_s=None, overlap=1, follows=False, step_s=[1.0], pace=Pace(0.8, 0.8)) == 0
    assert window_s(fixed_s=None, overlap=0, follows=False, step_s=[1.0], pace=Pace()) == 0
    assert window_s(fixed_s=None, overlap=2, follows=False, step_s=[], pace=Pace()) == 0


def test_a_fixed_number_overrules() -> None:
    assert window_s(fixed_s=7.0, overlap=0, follows=False, step_s=[1.0], pace=Pace(9.0, 9.0)) == 7.0
    assert window_s(fixed_s=0.0, overlap=9, follows=False, step_s=[1.0], pace=Pace()) == 0


@given(
    st.lists(st.floats(1e-3, 1e3), max_size=9).map(sorted),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)
def test_an_overlap_that_follows_has_room_for_a_step_of_grace_whatever_a_round_takes(
    step_s: list[float], quorum_s: float, sync_s: float
) -> None:
    pace = Pace(quorum_s, sync_s)
    assert window_s(
        fixed_s=None, overlap=1, follows=True, step_s=step_s, pace=pace
    ) == slowest_in_pace(step_s)
    assert window_s(fixed_s=7.0, overlap=1, follows=True, step_s=step_s, pace=pace) == 7.0


def test_learners_that_do_not_keep_pace_are_not_waited_for() -> None:
    assert slowest_in_pace([1.0, 1.1, 1.9, 40.0]) == 1.9
    assert slowest_in_pace([1.0, 1.0, 2.1]) == 1.0
    assert slowest_in_pace([]) == 0


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9).map(sorted))
def test_half_of_the_learners_always_keep_pace(step_s: list[float]) -> None:
    slowest = slowest_in_pace(step_s)
    assert slowest in step_s
    assert 2 * sum(s <= slowest for s in step_s) >= len(step_s)


@given(
    st.integers(0, 9),
    st.lists(st.floats(1e-3, 1e3), max_size=9).map(sorted),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)
def test_the_adaptive_window_stays_inside_its_slack(
    overlap: int, step_s: list[float], quorum_s: float, sync_s: float
) -> None:
    window = window_s(
        fixed_s=None, overlap=overlap, follows=False, step_s=step_s, pace=Pace(quorum_s, sync_s)
    )
    step = slowest_in_pace(step_s)
    assert 0 <= window <= step
    assert window <= max(0.0, overlap * step - quorum_s - sync_s)


def test_the_last_window_lasts_until_all_that_keep_pace_have_handed_in_everything() -> None:
    """They may be hindered at their next step boundary for as long as anybody may be."""
    pace = Pace(quorum_s=0.5, sync_s=9.0)
    assert last_window_s(fragments=4, step_s=[1.0, 1.2, 40.0], pace=pace) == 10.0 + 4 * 0.5
    assert last_window_s(fragments=4, step_s=[20.0, 30.0], pace=pace) == 2 * 30.0 + 4 * 0.5
    assert last_window_s(fragments=4, step_s=[], pace=Pace()) == 10.0 + 120.0


def test_moving_averages_begin_with_the_first_sample_and_follow_slowly() -> None:
    assert smooth(None, 4.0) == 4.0
    assert smooth(4.0, 9.0) == 5.0
    pace = Pace().saw_quorum(4.0).saw_quorum(9.0).saw_sync(2.0)
    assert pace == Pace(quorum_s=5.0, sync_s=2.0)
