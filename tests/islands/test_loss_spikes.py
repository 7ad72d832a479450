"""Tests of the rule for spikes of a training loss, against a plain implementation of it."""

from __future__ import annotations

import math
import random
import secrets
import statistics

import pytest

from islands.activity_clock import ActivityClock
from islands.loss_spikes import DEVIATIONS, WINDOW, LossSpikes


def counted(losses: list[float]) -> int:
    spikes = LossSpikes()
    for loss in losses:
        spikes.saw(loss)
    return spikes.count


def plainly(losses: list[float]) -> int:
    """Count in the way of the definition, over the whole series each time."""
    count, was_above = 0, False
    for at, loss in enumerate(losses):
        before = [each for each in losses[:at] if math.isfinite(each)][-WINDOW:]
        above = not math.isfinite(loss)
        if not above and len(before) == WINDOW:
            mean = statistics.fmean(before)
            above = loss > mean + DEVIATIONS * max(statistics.pstdev(before), 1e-6 * abs(mean))
        count += above and not was_above
        was_above = above
    return count


def test_count_agrees_with_the_definition() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(8):
        losses = [5.0 + dice.gauss(0, 0.1) - 0.002 * step for step in range(600)]
        for _ in range(6):
            losses[dice.randrange(600)] += dice.choice([0.3, 5.0, math.inf, math.nan])
        assert counted(losses) == plainly(losses)


def test_usual_noise_has_no_spike_and_a_jump_has_one() -> None:
    wave = [3.0 + 0.1 * math.sin(step) for step in range(1000)]
    assert counted(wave) == 0
    assert counted([*wave[:500], 4.0, *wave[500:]]) == 1
    assert counted([*wave[:500], 4.0, 4.1, 4.2, *wave[500:]]) == 1, "one excursion"
    assert counted([*wave[:500], 4.0, *wave[500:700], 5.0, *wave[700:]]) == 2
    assert counted([*wave[:500], 2.0, *wave[500:]]) == 0, "a drop is no spike"


def test_nothing_is_a_spike_in_the_first_window_unless_it_is_not_finite() -> None:
    assert counted([3.0, 900.0] * (WINDOW // 2)) == 0
    assert counted([3.0, math.nan, math.nan, 3.0, math.inf]) == 2


def test_constant_loss_has_no_spike_from_rounding() -> None:
    assert counted([3.0] * 400 + [math.nextafter(3.0, 4.0)] * 5) == 0
    assert counted([3.0] * 400 + [3.1]) == 1


@pytest.mark.parametrize("value", [math.nan, 7.0])
def test_vitals_carry_the_count(value: float) -> None:
    clock = ActivityClock(lambda: 1.0)
    for step in range(WINDOW):
        clock.learned(3.0 + 0.01 * (step % 2))
    assert clock.vitals(3.0).loss_spikes == 0
    clock.learned(value)
    assert clock.vitals(3.0).loss_spikes == 1
    clock.restart()
    assert clock.vitals(3.0).loss_spikes == 0
