"""The schedules of the inner learning rate have the rates that their names promise."""

from __future__ import annotations

import pytest

from tests.given import optimizer_spec


def test_wsd_warms_up_stays_and_falls_over_the_last_part() -> None:
    spec = optimizer_spec(
        schedule="wsd", learning_rate=1e-2, warmup_steps=10, horizon_steps=100,
        decay_fraction=0.2, floor_fraction=0.1,
    )  # fmt: skip
    rates = [float(spec.rate(clock)) for clock in range(130)]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[4] == pytest.approx(5e-3)
    assert rates[9:81] == pytest.approx([1e-2] * 72)
    assert rates[90] == pytest.approx(1e-2 * (0.1 + 0.9 / 2))
    assert rates[85] == pytest.approx(1e-2 * (0.1 + 0.9 * 3 / 4))
    assert rates[100:] == pytest.approx([1e-3] * 30)


@pytest.mark.parametrize(
    ("warmup", "fraction", "middle"), [(50, 1.0, 0.55), (0, 1.0, 0.55), (0, 0.001, 1.0)]
)
def test_wsd_falls_after_the_warm_up_at_the_earliest(
    warmup: int, fraction: float, middle: float
) -> None:
    spec = optimizer_spec(
        schedule="wsd", learning_rate=1.0, warmup_steps=warmup, horizon_steps=100,
        decay_fraction=fraction, floor_fraction=0.1,
    )  # fmt: skip
    assert float(spec.rate(warmup)) == pytest.approx(1.0)
    assert float(spec.rate((warmup + 100) // 2)) == pytest.approx(middle)
    assert float(spec.rate(100)) == pytest.approx(0.1)


def test_rate_of_a_target_with_its_own_schedule_is_one() -> None:
    spec = optimizer_spec(schedule="target", learning_rate=7.0)
    assert [float(spec.rate(clock)) for clock in (0, 50, 1000)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_floor_of_zero_gives_small_rates_until_the_last_step_and_zero_after_it(
    schedule: str,
) -> None:
    spec = optimizer_spec(
        schedule=schedule, learning_rate=68e-3, warmup_steps=20, horizon_steps=6000,
        decay_fraction=0.2, floor_fraction=0.0,
    )  # fmt: skip
    last = [float(spec.rate(clock)) for clock in range(5900, 6000)]
    assert last == sorted(last, reverse=True)
    assert 0 < last[-1] < 1e-3 * spec.learning_rate
    assert [float(spec.rate(clock)) for clock in range(6000, 6010)] == [0.0] * 10
