"""Tests of reconciling desired and actual islands: which actions, in which order, until when."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.schema import FailurePolicy
from cluster.fleet.reconcile import (
    Action,
    ActionKind,
    Hold,
    Holding,
    delay_s,
    failing,
    reconcile,
    relief,
    resized,
)
from cluster.names import Seat, free_seat, group_name
from cluster.status import IslandState
from coordinator.protocol import Island

A, B = Island("eu-0"), Island("eu-1")
POLICY = FailurePolicy()


def reconciled(
    desired: Iterable[Island],
    actual: Mapping[Island, Holding],
    now_s: float,
    policy: FailurePolicy = POLICY,
) -> list[Action]:
    return reconcile(desired, actual, now_s, policy)


def relieved(
    desired: Container[Island],
    actual: Mapping[Island, Holding],
    warm: Mapping[str, Sequence[Seat]],
) -> list[tuple[Island, Seat]]:
    return relief(desired, actual, warm, POLICY)


def deeds(actions: list[Action]) -> list[tuple[str, str]]:
    return [(action.kind.value, action.island) for action in actions]


def holding(
    hold: Hold, learner: IslandState = "live", *, failures: int = 0, breakages: int = 0
) -> dict[Island, Holding]:
    return {A: Holding(A, hold, 0.0, learner, failures, breakages)}


def test_places_missing_islands() -> None:
    assert deeds(reconciled([B, A], {}, 0.0)) == [("place", A), ("place", B)]


def test_island_waits_for_a_placement_and_then_starts() -> None:
    assert reconciled([A], holding(Hold.WAITING), 1e6) == []
    assert deeds(reconciled([A], holding(Hold.PLACED), 0.0)) == [("start", A)]
    assert reconciled([A], holding(Hold.RUNNING), 0.0) == []


@pytest.mark.parametrize(
    ("hold", "learner", "deed"),
    [
        (Hold.WAITING, "starting", "give back"),
        (Hold.PLACED, "starting", "give back"),
        (Hold.RUNNING, "starting", "give back"),
        (Hold.RUNNING, "lost", "give back"),
        (Hold.RUNNING, "quarantined", "give back"),
        (Hold.RUNNING, "joining", "drain"),
        (Hold.RUNNING, "live", "drain"),
        (Hold.DRAINING, "left", "give back"),
        (Hold.DRAINING, "lost", "give back"),
        (Hold.ASIDE, "lost", "give back"),
    ],
)
def test_unwanted_island_is_drained_if_it_has_work_else_released(
    hold: Hold, learner: IslandState, deed: str
) -> None:
    assert deeds(reconciled([], holding(hold, learner), 1.0)) == [(deed, A)]


def test_draining_island_is_released_after_its_timeout() -> None:
    draining = holding(Hold.DRAINING, "draining")
    assert reconciled([], draining, POLICY.drain_s) == []
    (action,) = reconciled([], draining, POLICY.drain_s + 1)
    assert (action.kind, action.why) == (ActionKind.GIVE_BACK, "not drained in 60 s")


def test_island_wanted_again_finishes_its_drain_and_is_placed_again() -> None:
    """The island has been ordered to leave, so the drain is finished first."""
    draining = holding(Hold.DRAINING, "draining")
    assert reconciled([A], draining, 1.0) == []
    assert deeds(reconciled([A], holding(Hold.DRAINING, "left"), 1.0)) == [("give back", A)]
    assert deeds(reconciled([A], {}, 2.0)) == [("place", A)]


def test_crash_looping_island_is_set_aside_for_good() -> None:
    broken = holding(Hold.RUNNING, "starting", breakages=POLICY.exceptions)
    (action,) = reconciled([A], broken, 0.0)
    assert action.kind is ActionKind.SET_ASIDE
    assert action.why == "broke 3 times without a contribution between"
    dying = holding(Hold.RUNNING, "lost", failures=POLICY.deaths)
    assert deeds(reconciled([A], dying, 0.0)) == [("set aside", A)]
    assert reconciled([A], holding(Hold.RUNNING, "lost", failures=4, breakages=2), 0.0) == []
    assert reconciled([A], holding(Hold.ASIDE, "lost"), 1e6) == []


def test_releases_before_it_places() -> None:
    assert deeds(reconciled([B], holding(Hold.PLACED), 0.0)) == [("give back", A), ("place", B)]


def test_first_restart_is_immediate_and_later_delays_grow() -> None:
    assert [delay_s(POLICY, n) for n in range(9)] == [0, 0, 2, 4, 8, 16, 32, 60, 60]
    assert delay_s(POLICY, 1000) == POLICY.longest_delay_s


def test_silent_live_island_is_replaced_if_the_policy_requires_it() -> None:
    hung = {A: Holding(A, Hold.RUNNING, 0.0, "lost", silent_since_s=10.0)}
    assert reconciled([A], hung, 10.0 + POLICY.hang_s) == []
    (action,) = reconciled([A], hung, 11.0 + POLICY.hang_s)
    assert (action.kind, action.why) == (
        ActionKind.GIVE_BACK,
        "silent for 301 s and not dead: replaced",
    )
    assert reconciled([A], hung, 1e6, FailurePolicy(hang="wait")) == []
    dead = {A: Holding(A, Hold.RUNNING, 0.0, "lost")}
    assert reconciled([A], dead, 1e6) == [], "Ray starts it again"


def test_strict_policy_gives_up_sooner() -> None:
    strict = FailurePolicy(deaths=1, exceptions=2, first_delay_s=1.0, longest_delay_s=3.0)
    assert [delay_s(strict, n) for n in range(5)] == [0, 0, 1, 2, 3]
    assert failing(strict, Holding(A, Hold.RUNNING, 0.0, failures=1)) is not None
    assert failing(strict, Holding(A, Hold.RUNNING, 0.0, breakages=1)) is None


def test_new_islands_take_free_numbers_and_the_last_leave_first() -> None:
    islands = {Island(name) for name in ("eu-0", "eu-2", "us-0", "eu-west-0")}
    assert resized(islands, "eu", 4) - islands == {"eu-1", "eu-3"}
    assert islands - resized(islands, "eu", 1) == {"eu-2"}
    assert resized(islands, "eu", 2) == islands
    assert resized(islands, "eu-west", 0) == islands - {"eu-west-0"}


@given(st.sets(st.integers(0, 30)), st.integers(0, 20))
def test_group_is_resized_with_minimal_change(numbers: set[int], count: int) -> None:
    before = frozenset(Island(f"eu-{n}") for n in numbers)
    after = resized(before, "eu", count)
    assert len(after) == count
    assert before <= after or after <= before
    assert {group_name(island) for island in after} <= {"eu"}


@given(
    st.dictionaries(
        st.sampled_from([Island(f"eu-{n}") for n in range(5)]),
        st.tuples(
            st.sampled_from(Hold),
            st.sampled_from(["starting", "joining", "live", "draining", "lost", "left"]),
            st.integers(0, 6),
        ),
    ),
    st.sets(st.sampled_from([Island(f"eu-{n}") for n in range(5)])),
)
def test_reconciliation_converges_to_the_desired_islands(
    there: dict[Island, tuple[Hold, IslandState, int]], desired: set[Island]
) -> None:
    """The simulated world answers ideally: devices are there at once, drained learners leave."""
    actual = {
        island: Holding(island, hold, 0.0, learner, failures)
        for island, (hold, learner, failures) in there.items()
    }
    for now_s in range(10):
        actions = reconciled(desired, actual, float(now_s))
        for action in actions:
            match action.kind:
                case ActionKind.PLACE:
                    assert action.island not in actual
                    actual[action.island] = Holding(action.island, Hold.PLACED, 0.0)
                case ActionKind.START:
                    island = replace(actual[action.island], hold=Hold.RUNNING, learner="live")
                    actual[action.island] = island
                case ActionKind.DRAIN:
                    island = replace(actual[action.island], hold=Hold.DRAINING, learner="left")
                    actual[action.island] = island
                case ActionKind.GIVE_BACK:
                    del actual[action.island]
                case ActionKind.SET_ASIDE:
                    actual[action.island] = replace(actual[action.island], hold=Hold.ASIDE)
        for island, held in list(actual.items()):
            if held.hold is Hold.WAITING:
                actual[island] = replace(held, hold=Hold.PLACED)
            if held.hold is Hold.DRAINING:
                actual[island] = replace(held, learner="left")
    assert reconciled(desired, actual, 10.0) == []
    assert set(actual) == desired


# --- spares ---------------------------------------------------------------------------------------

WARM = {"eu": [Seat("eu+0"), Seat("eu+1")]}


def lost(island: Island, **more: int) -> Holding:
    return replace(Holding(island, Hold.RUNNING, 0.0, "lost", incarnation=7), **more)


def test_lost_islands_get_warm_spares_of_their_group_while_any_are_left() -> None:
    us = Island("us-0")
    there = {A: lost(A), B: lost(B), us: lost(us)}
    assert relieved([A, B, us], there, WARM) == [(A, "eu+0"), (B, "eu+1")]
    assert relieved([A, B, us], there, {"eu": [Seat("eu+1")]}) == [(A, "eu+1")]
    assert relieved([A, B, us], there, {}) == []


@pytest.mark.parametrize(
    "holding",
    [
        replace(lost(A), hold=Hold.DRAINING),
        replace(lost(A), learner="joining"),
        replace(lost(A), learner="quarantined"),
        lost(A, relieved=7),
        lost(A, failures=POLICY.deaths),
    ],
    ids=["leaves", "is back", "is there", "is relieved already", "would only die again"],
)
def test_no_spare_replaces_an_island_that_needs_none(holding: Holding) -> None:
    assert relieved([A], {A: holding}, WARM) == []


def test_no_spare_replaces_an_unwanted_island() -> None:
    assert relieved([B], {A: lost(A)}, WARM) == []


def test_seat_takes_its_islands_name_unless_the_name_is_in_use() -> None:
    assert free_seat("eu", set(), A) == "eu-0"
    assert free_seat("eu", {Seat("eu-0")}, A) == "eu+0"
    assert free_seat("eu", {Seat("eu-0"), Seat("eu+0")}) == "eu+1"
