"""The figures of `bench wan` that are sampled: merges, queues, and the bytes of a link."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from archipelago.lab.bench.wan_samples import (
    PARTS,
    ByteSampler,
    RunSample,
    over_periods,
    peak_over_mean,
    rate_interval,
    run_sample,
)
from coordinator.errors import RunFailed


def test_participants_are_those_of_all_periods() -> None:
    """Merges with two islands early on count, though the last period has four in each."""
    samples = [RunSample(0, 0.0, 0.0), RunSample(10, 2.0, 0.1), RunSample(40, 4.0, 0.1)]
    assert over_periods(samples)["mean_participants"] == pytest.approx((10 * 2 + 30 * 4) / 40)


def test_measurement_without_merges_has_its_participants() -> None:
    assert over_periods([RunSample(5, 3.0, 0.0)] * 3)["mean_participants"] == 3.0


def test_rate_of_merged_tokens_has_the_interval_of_its_periods() -> None:
    """Periods of 2 s with 10, 20, ... tokens; with six of them the interval is their range."""
    samples = [RunSample(0, 1.0, 0.0, 0.0, 5.0)]
    for period in range(1, 7):
        last = samples[-1]
        samples.append(RunSample(0, 1.0, 0.0, last.tokens + 10.0 * period, last.at_s + 2.0))
    found = rate_interval(samples)
    assert (found["tokens_per_s_low"], found["tokens_per_s_high"]) == (5.0, 30.0)
    assert (found["samples"], found["coverage"]) == (6, pytest.approx(1 - 2 / 2**6))


@pytest.mark.parametrize(
    ("queues_s", "growth_s"), [([1.0, 2.0, 1.0, 2.0], 0.0), ([1.0, 2.0, 3.0, 4.0], 2.0), ([9.0], 0)]
)
def test_queue_that_grows_is_measured(queues_s: list[float], growth_s: float) -> None:
    samples = [RunSample(0, 1.0, 0.0), *(RunSample(9, 1.0, age_s) for age_s in queues_s)]
    assert over_periods(samples)["queue_growth_s"] == growth_s


def test_sample_has_the_oldest_queue_of_all_links() -> None:
    links = [{"queue_s": 0.5}, {"queue_s": 2.0}]
    assert run_sample({"merges": 3, "participants": 2.5, "links": links}) == RunSample(3, 2.5, 2.0)
    assert run_sample({"merges": 3, "participants": 2.5}).queue_s == 0.0
    status = {"merges": 3, "participants": 2.5, "figures": {"tokens_merged": 7.0}}
    assert run_sample(status, at_s=9.0) == RunSample(3, 2.5, 0.0, 7.0, 9.0)


def counted(rate_of_part: list[float], periods: int) -> tuple[list[float], list[int]]:
    """Return samples of a link, beginning a period before the time 100 s; a period is 6 s."""
    times_s = np.arange(94.0, 100.0 + 6 * periods + 1, 0.25)
    rates = [1e6 * rate_of_part[int(t % 6 * len(rate_of_part) / 6 + 1e-9)] for t in times_s - 94]
    counts = np.concatenate([[0], np.cumsum(rates)[:-1] * 0.25]).astype(int)
    return [*times_s], [*counts]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([1.0], 1.0),
        ([1.0, 0.0], 2.0),
        ([6.0, 0.0, 0.0, 0.0, 0.0, 0.0], PARTS),
        ([1.2, 1.0, 0.8, 1.0, 1.0, 1.0], 1.2),
    ],
)
def test_peak_over_mean_finds_uneven_use(rates: list[float], expected: float) -> None:
    times_s, counts = counted(rates, 5)
    assert peak_over_mean(times_s, counts, 100.0, 6.0, 5) == pytest.approx(expected, rel=0.02)


def test_sampler_counts_both_directions_until_its_end() -> None:
    """One direction sends in bursts, the other one evenly; the figure is of the first.

    On a busy machine the thread may miss a burst; it then samples once more.
    """
    sampler, began_s = sampled()
    for _ in range(20):
        if max(np.diff([began_s, *sampler.times_s, began_s + 0.85])) < 0.03:
            break
        sampler, began_s = sampled()
    assert sampler.peak_over_mean(began_s + 0.2, 0.2, 3) > 3.0


def sampled() -> tuple[ByteSampler, float]:
    """Return a sampler of 0.85 s of bursts, and the time at which it began."""
    began_s, looks = time.monotonic(), itertools.count()
    sampler = ByteSampler(partial(bursts, began_s, looks), 0.001)
    with sampler.running():
        while time.monotonic() < began_s + 0.85:
            pass
    ended = next(looks)
    assert ended == len(sampler.times_s)
    return sampler, began_s


def bursts(began_s: float, looks: Iterator[int]) -> tuple[int, int]:
    """Count 1 MB a second, evenly and in bursts five times a second."""
    next(looks)
    now_s = time.monotonic() - began_s
    return int(1e6 * now_s), int(1e6 * (now_s // 0.2))


def test_error_of_a_sample_ends_the_measurement() -> None:
    """Without it the figure would come from the samples before the error."""

    def count() -> tuple[int, int]:
        raise RunFailed("the link is gone")

    with pytest.raises(RunFailed, match="the link is gone"), ByteSampler(count, 0.001).running():
        pass
