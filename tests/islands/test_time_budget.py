"""Tests that every second of an island's process belongs to one activity, once."""

from __future__ import annotations

import math
import random
import secrets

import pytest

from coordinator.protocol import Vitals
from islands.activity_clock import ActivityClock
from islands.time_budget import (
    OF_VITALS,
    Activity,
    TimeBudget,
    added,
    ideal_step_s,
    seconds_of,
    shares,
)

MEASURED = [*OF_VITALS]


@pytest.fixture
def seed() -> int:
    """Return a new seed for each run, and print it for a repetition."""
    found = secrets.randbits(32)
    print(f"seed {found}")
    return found


def test_no_second_is_counted_twice_or_lost(seed: int) -> None:
    """Clocks that go back, parts that are too long, and figures that are no numbers do no harm."""
    dice = random.Random(seed)
    for _ in range(200):
        now_s = began_s = dice.uniform(-1e3, 1e6)
        budget, skipped_s = TimeBudget.begun(began_s), 0.0
        latest_s = now_s
        for _ in range(dice.randint(1, 40)):
            now_s += dice.choice([0.0, dice.uniform(0, 10), dice.uniform(-5, 0)])
            before = budget
            match dice.randrange(4):
                case 0:
                    budget = budget.to(now_s, dice.choice(MEASURED))
                case 1:
                    budget = budget.skip(now_s)
                    skipped_s += max(0.0, now_s - latest_s)
                case 2:
                    budget = budget.to(math.nan, Activity.DEAD)
                    assert budget == before
                    continue
                case _:
                    odd = [dice.uniform(0, 8), 0.0, -1.0, math.nan, math.inf]
                    parts: dict[str, float] = {
                        each: dice.choice(odd) for each in dice.sample(MEASURED, 3)
                    }
                    budget = budget.split(now_s, parts, Activity.COPYING)
            latest_s = max(latest_s, now_s)
            assert budget.until_s == latest_s
            total_s = math.fsum(budget.seconds.values())
            assert total_s == pytest.approx(latest_s - began_s - skipped_s, abs=1e-6)
            assert total_s == pytest.approx(budget.life_s, abs=1e-6)
            for activity, seconds in before.seconds.items():
                assert budget.seconds[activity] >= seconds, "a counter never falls"


def test_parts_of_a_step_are_kept_and_the_rest_is_named() -> None:
    budget = TimeBudget.begun(10.0).split(20.0, {"computing": 6.0, "data": 1.0}, "copying")
    assert budget.seconds == {"computing": 6.0, "data": 1.0, "copying": 3.0}
    again = budget.split(22.0, {"computing": 3.0, "data": 1.0}, "copying")  # 4 s in 2 s
    assert again.seconds == {"computing": 7.5, "data": 1.5, "copying": 3.0}


class Hands:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def of(vitals: Vitals) -> dict[str, float]:
    return {key: each for key, each in seconds_of(vitals).items() if each}


def test_process_accounts_for_its_whole_life() -> None:
    hands = Hands()
    clock = ActivityClock(hands)
    hands.now_s += 3
    clock.switch(Activity.COMPILING)
    hands.now_s += 5
    clock.switch(Activity.RESTORING)
    hands.now_s += 2
    assert of(clock.vitals(1.0)) == {"starting": 3, "compiling": 5, "restoring": 2}
    clock.switch(None)
    hands.now_s += 4
    assert of(clock.vitals(1.0)) == {"starting": 3, "compiling": 5, "restoring": 2}, "a step runs"
    clock.split({Activity.COMPUTING: 3.0, Activity.DATA: 0.5}, Activity.WAITING)
    hands.now_s += 7
    found = of(clock.vitals(1.0))
    assert found == {
        "starting": 3, "compiling": 5, "restoring": 2, "computing": 3, "data": 0.5, "copying": 0.5,
        "waiting": 7,
    }  # fmt: skip
    assert sum(found.values()) == hands.now_s - 100


def test_two_processes_have_different_numbers_and_a_spare_begins_at_zero() -> None:
    hands = Hands()
    clock = ActivityClock(hands)
    first = clock.vitals(1.0).process
    assert first != ActivityClock(hands).vitals(1.0).process
    hands.now_s += 1000
    clock.restart()
    hands.now_s += 1
    assert of(clock.vitals(1.0)) == {"starting": 1.0}
    assert clock.vitals(1.0).process != first


def test_ideal_step_leaves_out_anomalous_steps() -> None:
    steps = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 30.0]
    ideal_s, deviation_s = ideal_step_s(steps)
    assert ideal_s == pytest.approx(1.0)
    assert deviation_s == pytest.approx((0.1 + 0.1 + 0.05 + 0.05 + 29.0) / 7)
    assert ideal_step_s([]) == (0.0, 0.0)
    assert ideal_step_s([2.0]) == (2.0, 0.0)


def test_sums_and_shares() -> None:
    assert added({"a": 1.0}, {"a": 2.0, "b": 3.0}) == {"a": 3.0, "b": 3.0}
    assert shares({"a": 1.0, "b": 3.0}) == {"a": 0.25, "b": 0.75}
    assert shares({"a": 0.0}) == {}
