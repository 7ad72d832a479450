"""Tests of when a round may close, and of how long it waits for stragglers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.grace import SHARE_OF_SLACK, Pace, last_window_s, slowest_in_pace, smooth, window_s
from coordinator.protocol import Island
from coordinator.quorum import Abandon, Close, RoundVerdict, Wait, judge


def islands(names: str) -> set[Island]:
    return {Island(name) for name in names}


def ask(
    arrived: str, expected: str, *, k: int = 2, stopping: bool = False, deadline_s: float = math.inf
) -> RoundVerdict:
    """Return the verdict at 5 s."""
    return judge(
        min_quorum=k,
        arrived=islands(arrived),
        expected=islands(expected),
        stopping=stopping,
        deadline_s=deadline_s,
        now_s=5.0,
    )


def test_below_the_quorum_a_round_waits_for_an_arrival() -> None:
    assert ask("a", "bc") == Wait(math.inf, "quorum 1/2")
    assert ask("", "") == Wait(math.inf, "quorum 0/2")


def test_below_the_quorum_a_past_deadline_does_not_close() -> None:
    assert isinstance(ask("a", "b", deadline_s=0.0), Wait)


def test_closes_at_once_when_all_have_delivered() -> None:
    assert ask("ab", "", deadline_s=9.0) == Close("all 2 delivered")


def test_waits_within_the_grace_window_and_names_the_stragglers() -> None:
    assert ask("ab", "dc", deadline_s=5.5) == Wait(5.5, "grace for c, d")


def test_closes_after_the_grace_window_and_names_the_stragglers() -> None:
    assert ask("ab", "dc", deadline_s=5.0) == Close("grace over without c, d")


def test_stopping_below_the_quorum_waits_only_for_expected_answers() -> None:
    assert isinstance(ask("a", "b", stopping=True), Wait)
    assert ask("a", "", stopping=True) == Abandon("quorum 1/2 and nobody left to wait for")


def test_stopping_below_the_quorum_gives_up_at_the_deadline() -> None:
    assert ask("a", "b", stopping=True, deadline_s=5.1) == Wait(5.1, "quorum 1/2")
    given_up = ask("a", "b", stopping=True, deadline_s=5.0)
    assert given_up == Abandon("quorum 1/2, the end has waited for b")


names = st.sets(st.sampled_from("abcdef")).map("".join)


@given(names, names, st.integers(1, 6), st.booleans(), st.floats(0, 10))
def test_never_closes_below_the_quorum(
    arrived: str, expected: str, k: int, stopping: bool, deadline_s: float
) -> None:
    verdict = ask(arrived, expected, k=k, stopping=stopping, deadline_s=deadline_s)
    assert not (isinstance(verdict, Close) and len(arrived) < k)
    if isinstance(verdict, Wait) and len(arrived) >= k:
        assert 5.0 < verdict.until_s == deadline_s


# --- grace ----------------------------------------------------------------------------------------


def test_grace_window_is_a_share_of_the_slack() -> None:
    pace = Pace(quorum_s=0.9, sync_s=0.8)
    window = window_s(fixed_s=None, overlap=2, follows=False, step_s=[1.0, 1.0], pace=pace)
    assert window == pytest.approx(SHARE_OF_SLACK * (2 * 1.0 - 0.9 - 0.8))


def test_grace_window_is_at_most_one_step() -> None:
    assert window_s(fixed_s=None, overlap=9, follows=False, step_s=[1.0, 1.5], pace=Pace()) == 1.5


def test_no_grace_window_without_slack() -> None:
    assert window_s(fixed_s=None, overlap=1, follows=False, step_s=[1.0], pace=Pace(0.8, 0.8)) == 0
    assert window_s(fixed_s=None, overlap=0, follows=False, step_s=[1.0], pace=Pace()) == 0
    assert window_s(fixed_s=None, overlap=2, follows=False, step_s=[], pace=Pace()) == 0


def test_fixed_grace_overrides_the_adaptive_window() -> None:
    assert window_s(fixed_s=7.0, overlap=0, follows=False, step_s=[1.0], pace=Pace(9.0, 9.0)) == 7.0
    assert window_s(fixed_s=0.0, overlap=9, follows=False, step_s=[1.0], pace=Pace()) == 0


@given(
    st.lists(st.floats(1e-3, 1e3), max_size=9).map(sorted),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)
def test_adaptive_overlap_always_leaves_one_step_of_grace(
    step_s: list[float], quorum_s: float, sync_s: float
) -> None:
    pace = Pace(quorum_s, sync_s)
    assert window_s(
        fixed_s=None, overlap=1, follows=True, step_s=step_s, pace=pace
    ) == slowest_in_pace(step_s)
    assert window_s(fixed_s=7.0, overlap=1, follows=True, step_s=step_s, pace=pace) == 7.0


def test_stragglers_do_not_lengthen_the_grace_window() -> None:
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
def test_adaptive_window_stays_within_its_slack(
    overlap: int, step_s: list[float], quorum_s: float, sync_s: float
) -> None:
    window = window_s(
        fixed_s=None, overlap=overlap, follows=False, step_s=step_s, pace=Pace(quorum_s, sync_s)
    )
    step = slowest_in_pace(step_s)
    assert 0 <= window <= step
    assert window <= max(0.0, overlap * step - quorum_s - sync_s)


def test_last_window_allows_all_learners_in_pace_to_hand_in() -> None:
    """Stragglers may be delayed at their next step boundary for as long as any learner may be."""
    pace = Pace(quorum_s=0.5, sync_s=9.0)
    assert last_window_s(fragments=4, step_s=[1.0, 1.2, 40.0], pace=pace) == 10.0 + 4 * 0.5
    assert last_window_s(fragments=4, step_s=[20.0, 30.0], pace=pace) == 2 * 30.0 + 4 * 0.5
    assert last_window_s(fragments=4, step_s=[], pace=Pace()) == 10.0 + 120.0


def test_moving_averages_begin_with_the_first_sample_and_follow_slowly() -> None:
    assert smooth(None, 4.0) == 4.0
    assert smooth(4.0, 9.0) == 5.0
    pace = Pace().saw_quorum(4.0).saw_quorum(9.0).saw_sync(2.0)
    assert pace == Pace(quorum_s=5.0, sync_s=2.0)
