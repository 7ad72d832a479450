"""Samples during a measurement of `bench wan`: merges, queues, and the bytes of the first link.

A mean over the whole measurement hides a queue that grows, merges that lose islands for some
periods, and a link that is full for a moment and idle for the rest of a round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from archipelago.lab.bench.stats import median
from archipelago.lab.wan import kernel
from archipelago.lab.wan.network import Network

PARTS = 6
"""Parts of a period of H steps, in which the bytes on a link are compared.

With all exchanges of a period at once, the peak is six times the mean.
"""


@dataclass(frozen=True, slots=True)
class RunSample:
    """A look at the status of a run."""

    merges: int
    participants: float
    """Islands in a merge; the mean of the merges of about one period."""
    queue_s: float
    """The age of the oldest unanswered request or unreceived publication, over all links."""
    tokens: float = 0.0
    """The tokens that were merged since the run began."""
    at_s: float = 0.0
    """The time of the look, by the monotonic clock."""


def run_sample(status: Any, at_s: float = 0.0) -> RunSample:
    """Return the sample of a status (`cluster.status.RunStatus`) that was read at this time."""
    queues = [link["queue_s"] for link in status.get("links", [])]
    tokens = status.get("figures", {}).get("tokens_merged", 0.0)
    participants, queue_s = status["participants"], max(queues, default=0.0)
    return RunSample(status["merges"], participants, queue_s, tokens, at_s)


def rate_interval(samples: Sequence[RunSample]) -> dict[str, float]:
    """Return the interval of `tokens_per_s`: the median rate of single periods of one run."""
    rates = [
        (after.tokens - before.tokens) / (after.at_s - before.at_s)
        for before, after in pairwise(samples)
    ]
    middle = median(rates)
    return {
        "tokens_per_s_low": middle.low,
        "tokens_per_s_high": middle.high,
        "coverage": middle.coverage,
        "samples": middle.samples,
    }


def over_periods(samples: Sequence[RunSample]) -> dict[str, float]:
    """Return the figures of samples, one for each period and one before the first period.

    `mean_participants` is the mean over the merges of all periods. `queue_growth_s`: the mean age
    of queues in the second half of the periods, less that in the first half.
    """
    periods = samples[1:]
    merges = [after.merges - before.merges for before, after in zip(samples, periods, strict=False)]
    weights = np.array(merges, float) if any(merges) else np.ones(len(periods))
    participants = float(np.average([each.participants for each in periods], weights=weights))
    queues, half = [each.queue_s for each in periods], len(periods) // 2
    growth = float(np.mean(queues[half:]) - np.mean(queues[:half])) if half else 0.0
    return {"mean_participants": participants, "queue_growth_s": growth}


def peak_over_mean(
    times_s: Sequence[float], counts: Sequence[int], from_s: float, period_s: float, periods: int
) -> float:
    """Return the largest part of a period over the mean of its parts; the median of the periods.

    `times_s`, `counts`: the times of samples, and a count of bytes that grows. `from_s`: the begin
    of the first period. A link that is used evenly has 1, and one that has all bytes in one part
    `PARTS`.
    """
    edges = from_s + period_s / PARTS * np.arange(periods * PARTS + 1)
    parts = np.diff(np.interp(edges, times_s, counts)).reshape(periods, PARTS)
    means = parts.mean(axis=1)
    return float(np.median(parts.max(axis=1)[means > 0] / means[means > 0]))


def first_link(network: Network) -> Callable[[], tuple[int, int]]:
    """Return a function that counts the bytes that the first region has sent and received."""

    def count() -> tuple[int, int]:
        counted = kernel.counters(network)[network.regions[0].name]
        return counted["sent_bytes"], counted["received_bytes"]

    return count


@dataclass(slots=True)
class ByteSampler:
    """A thread that samples the bytes of a link, both ways, until the block ends."""

    count: Callable[[], tuple[int, int]]
    """The bytes that the link has sent and received."""
    every_s: float
    times_s: list[float] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Generator[None]:
        """Sample until the block ends.

        Errors: `RunFailed` and others of `count`, at the end of the block.
        """
        with ThreadPoolExecutor(1, "bytes of a link") as pool:
            sampling = pool.submit(self._sample)
            try:
                yield
            finally:
                self._ended.set()
            sampling.result()

    def _sample(self) -> None:
        while not self._ended.is_set():
            counted = self.count()
            self.times_s.append(time.monotonic())
            self.counts.append(counted)
            self._ended.wait(self.every_s)

    def peak_over_mean(self, from_s: float, period_s: float, periods: int) -> float:
        """Return the figure of `peak_over_mean` of the direction that is used less evenly."""
        directions = zip(*self.counts, strict=True)
        return max(
            peak_over_mean(self.times_s, each, from_s, period_s, periods) for each in directions
        )
