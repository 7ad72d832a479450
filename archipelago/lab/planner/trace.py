"""The failure trace of a cluster: when each slice fails and returns, drawn once.

A trace holds everything that is random. It does not depend on learners, pauses or rules, so that
all configurations are played on the same traces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archipelago.lab.planner.cluster_model import Cluster, Recovery, Returns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WEIBULL_POWER = 2.0
"""The outer shape of an exponentiated Weibull: like that of repairs, its density starts at 0."""
QUANTILES = 4096
"""The number of points at which the mean of an exponentiated Weibull is summed."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Failures in the order of time, from 0 to `lasts_s`; all arrays have the shape (failures,)."""

    slices: int
    """The number of slices."""
    lasts_s: float
    """The length of the trace in seconds."""
    fails_s: Floats
    """The times at which a slice fails, in seconds from the start of the trace."""
    back_s: Floats
    """The times at which it is back, in the same seconds."""
    sound_since_s: Floats
    """The times of the repairs before these failures; minus infinity before the first failure."""
    slice_of: Ints
    """The index of the slice that fails."""

    def of_learner(self, m: int, learners: int) -> Trace:
        """Return the failures of the slices of learner `m` out of `learners`."""
        each = self.slices // learners
        mask = self.slice_of // each == m
        return Trace(
            each,
            self.lasts_s,
            self.fails_s[mask],
            self.back_s[mask],
            self.sound_since_s[mask],
            self.slice_of[mask] - m * each,
        )

    def scaled(self, factor: float) -> Trace:
        """Return the trace in a time unit of 1/`factor` seconds."""
        return Trace(
            self.slices,
            self.lasts_s * factor,
            self.fails_s * factor,
            self.back_s * factor,
            self.sound_since_s * factor,
            self.slice_of,
        )

    def window(self, from_s: float, lasts_s: float) -> Trace:
        """Return the failures in a window; slices that were out before it count as sound."""
        mask = (self.fails_s >= from_s) & (self.fails_s < from_s + lasts_s)
        since_s = self.sound_since_s[mask] - from_s
        return Trace(
            self.slices,
            lasts_s,
            self.fails_s[mask] - from_s,
            self.back_s[mask] - from_s,
            np.where(since_s <= 0.0, -math.inf, since_s),
            self.slice_of[mask],
        )


def draw(rng: np.random.Generator, cluster: Cluster, recovery: Recovery, lasts_s: float) -> Trace:
    """Draw a trace, exact in distribution: each chip fails independently and takes its slice out.

    A slice that is out cannot fail. Interruptions do not depend on whether a learner computes:
    chips that wait or rebuild fail like others.
    """
    at_s, chip = _interruptions(rng, cluster, lasts_s)
    order = np.argsort(at_s, kind="stable")
    at_s, slice_of = at_s[order], chip[order] * cluster.slices // cluster.chips
    out_s = return_times(rng, recovery, len(at_s))
    back_at: dict[int, float] = {}
    kept: list[int] = []
    sound_since_s: list[float] = []
    for i, (fail_s, slice_number, away_s) in enumerate(
        zip(at_s.tolist(), slice_of.tolist(), out_s.tolist(), strict=True)
    ):
        sound_since = back_at.get(slice_number, -math.inf)
        if fail_s >= sound_since:
            back_at[slice_number] = fail_s + away_s
            kept.append(i)
            sound_since_s.append(sound_since)
    fails_s = at_s[kept]
    return Trace(
        cluster.slices,
        lasts_s,
        fails_s,
        fails_s + out_s[kept],
        np.array(sound_since_s),
        slice_of[kept],
    )


def _interruptions(
    rng: np.random.Generator, cluster: Cluster, lasts_s: float
) -> tuple[Floats, Ints]:
    """Draw the times at which chips are interrupted, and the chips, in no particular order."""
    chips, shape = cluster.chips, cluster.weibull_shape
    if shape == 1.0:
        count = int(rng.poisson(cluster.failures_per_s * lasts_s))
        return rng.uniform(0.0, lasts_s, count), rng.integers(0, chips, count)
    scale_s = cluster.mtbi_s / math.gamma(1 + 1 / shape)
    # In its steady state, the residual life of a renewal process is a uniform share of an interval
    # that is drawn with a probability in proportion to its length.
    at_s = rng.uniform(size=chips) * scale_s * rng.gamma(1 + 1 / shape, size=chips) ** (1 / shape)
    chip = np.arange(chips)
    found: list[tuple[Floats, Ints]] = []
    while len(chip):
        mask = at_s < lasts_s
        at_s, chip = at_s[mask], chip[mask]
        found.append((at_s, chip))
        at_s = at_s + scale_s * rng.weibull(shape, len(chip))
    return np.concatenate([a for a, _ in found]), np.concatenate([c for _, c in found])


def return_times(rng: np.random.Generator, recovery: Recovery, count: int) -> Floats:
    """Draw `count` return times in seconds, with the mean `recovery.return_s`."""
    spread, mean_s = recovery.spread, recovery.return_s
    if recovery.returns is Returns.LOG_NORMAL:
        return mean_s * rng.lognormal(-(spread**2) / 2, spread, count)
    return mean_s * _weibull_like(rng.uniform(size=count), spread) / _weibull_mean(spread)


def _weibull_like(share: Floats, spread: float) -> Floats:
    """Return quantiles of an exponentiated Weibull, F(x) = (1 - exp(-x^spread))^power."""
    return (-np.log1p(-(share ** (1 / WEIBULL_POWER)))) ** (1 / spread)


def _weibull_mean(spread: float) -> float:
    middle = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return float(_weibull_like(middle, spread).mean())
