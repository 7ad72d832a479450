"""Fragments are due when they are in a naive twin, which counts every step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.protocol import Fragment
from coordinator.schedule import Before, Schedule

schedules = st.integers(1, 40).flatmap(
    lambda every: st.builds(Schedule, st.just(every), st.integers(1, every))
)


def due_by_counting(schedule: Schedule, step: int) -> list[int]:
    """Return the fragments for which step = n*H + floor(p*H/P); none is due at step 0."""
    H, P = schedule.every, schedule.fragments
    return [p for p in range(P) if step > 0 and step % H == p * H // P]


@given(schedules, st.integers(0, 100), st.integers(0, 60))
def test_due_fragments_match_a_count_of_every_step(
    schedule: Schedule, after: int, steps: int
) -> None:
    passed = range(after + 1, after + steps + 1)
    assert list(schedule.due(after=after, upto=after + steps)) == sorted(
        {p for step in passed for p in due_by_counting(schedule, step)}
    )


@given(schedules, st.integers(0, 200))
def test_each_fragment_is_due_once_in_any_H_steps(schedule: Schedule, after: int) -> None:
    steps = [schedule.due(after=t, upto=t + 1) for t in range(after, after + schedule.every)]
    assert sorted(p for due in steps for p in due) == list(range(schedule.fragments))


@given(schedules, st.integers(0, 200))
def test_no_two_fragments_share_a_step(schedule: Schedule, t: int) -> None:
    assert len(schedule.due(after=t, upto=t + 1)) <= 1


def test_due_points_are_spread_evenly_if_P_does_not_divide_H() -> None:
    schedule = Schedule(every=10, fragments=4)
    due_at = {t: schedule.due(after=t - 1, upto=t) for t in range(1, 21)}
    assert {t: due for t, due in due_at.items() if due} == {
        2: (1,), 5: (2,), 7: (3,), 10: (0,), 12: (1,), 15: (2,), 17: (3,), 20: (0,)
    }  # fmt: skip


@pytest.mark.parametrize("t", [0, 7])
def test_nothing_is_due_without_a_step(t: int) -> None:
    assert Schedule(3, 3).due(after=t, upto=t) == ()


@given(schedules, st.integers(0, 100), st.integers(0, 100))
def test_passed_counts_every_due_point(schedule: Schedule, t: int, p: int) -> None:
    fragment = Fragment(p % schedule.fragments)
    counted = sum(fragment in due_by_counting(schedule, step) for step in range(t + 1))
    assert schedule.passed(fragment, t=t) == counted


# --- schedules in which H changes ---

stretched = st.builds(
    lambda stretches, last, fragments: Schedule(
        last,
        1 + fragments % min(last, *(every for _, every in stretches)),
        tuple(
            Before(sum(length for length, _ in stretches[: i + 1]), every)
            for i, (_, every) in enumerate(stretches)
        ),
    ),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=4),
    st.integers(1, 30),
    st.integers(0, 100),
)


def due_then(schedule: Schedule, step: int) -> list[int]:
    """Return the fragments due at `step`, by the H of its stretch."""
    H = next((b.every for b in schedule.before if step <= b.upto), schedule.every)
    return due_by_counting(Schedule(H, schedule.fragments), step)


@given(stretched, st.integers(0, 100), st.integers(0, 60))
def test_each_stretch_uses_its_own_H(schedule: Schedule, after: int, steps: int) -> None:
    passed = range(after + 1, after + steps + 1)
    assert list(schedule.due(after=after, upto=after + steps)) == sorted(
        {p for step in passed for p in due_then(schedule, step)}
    )


@given(stretched, st.integers(0, 200), st.integers(0, 100))
def test_passed_counts_due_points_over_all_stretches(schedule: Schedule, t: int, p: int) -> None:
    fragment = Fragment(p % schedule.fragments)
    counted = sum(fragment in due_then(schedule, step) for step in range(t + 1))
    assert schedule.passed(fragment, t=t) == counted


@given(stretched)
def test_least_interval_is_the_smallest_gap_between_due_points(schedule: Schedule) -> None:
    ends = 2 * schedule.every + schedule.before[-1].upto + 24
    gaps = [
        b - a
        for p in range(schedule.fragments)
        for a, b in pairwise(t for t in range(1, ends) if p in due_then(schedule, t))
    ]
    assert schedule.least <= min(gaps, default=schedule.every)
    assert schedule.least in {*gaps, schedule.every, *(b.every for b in schedule.before)}


def test_short_H_is_followed_by_a_long_one() -> None:
    schedule = Schedule(8, 2, (Before(6, 2),))
    due_at = {t: schedule.due(after=t - 1, upto=t) for t in range(1, 21)}
    assert {t: due for t, due in due_at.items() if due} == {
        1: (1,), 2: (0,), 3: (1,), 4: (0,), 5: (1,), 6: (0,), 8: (0,), 12: (1,), 16: (0,), 20: (1,)
    }  # fmt: skip
    assert schedule.least == 2
