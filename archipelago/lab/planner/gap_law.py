"""The law of the gap: how far the held-out loss of islands is above data-parallel training's.

    gap = g (H / 8)^h (T / 2000)^-t (M / 4)^m

for H steps between two merges of a fragment, T steps of training and M islands, each side at the
best learning rate of a search, but with eight islands both at the same rate. It is fitted to pairs
of byte-tiny (0.13M parameters), of at most 2,000 steps:
`python examples/studies/gap_law.py`. For larger models and longer runs it is an extrapolation, and
six pairs of 6,000 steps are 0.4 points above it, within the interval of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

EVERY, STEPS, LEARNERS = 8.0, 2000.0, 4.0
"""H, T and M at which the gap is g."""
T_QUANTILE = 2.365
"""Student's t of 95 % with seven degrees of freedom: most gaps are means of eight pairs."""


@dataclass(frozen=True, slots=True)
class GapPoint:
    """A measured gap: the mean over pairs of the same seed."""

    every: int
    """H."""
    steps: int
    """T."""
    learners: int
    """M."""
    percent: float
    """The gap in per cent of data-parallel training's loss."""
    error: float
    """The standard error of the gap, in per cent."""


@dataclass(frozen=True, slots=True)
class GapLaw:
    """The law's constants, with the covariance of their estimates."""

    constants: tuple[float, float, float, float]
    """ln g (g in per cent), h, t and m."""
    covariance: tuple[tuple[float, ...], ...]
    """The covariance of the constants, [4, 4]."""

    def percent(self, every: float, steps: float, learners: float) -> float:
        """Return the gap for H, T and M, in per cent."""
        return math.exp(float(np.dot(terms(every, steps, learners), self.constants)))

    def interval(self, every: float, steps: float, learners: float) -> tuple[float, float]:
        """Return the 95 % interval of the mean gap, in per cent."""
        x = np.array(terms(every, steps, learners))
        error = T_QUANTILE * math.sqrt(float(x @ np.array(self.covariance) @ x))
        value = self.percent(every, steps, learners)
        return value * math.exp(-error), value * math.exp(error)

    def __str__(self) -> str:
        (g, h, t, m), errors = self.constants, np.sqrt(np.diag(np.array(self.covariance)))
        return (
            f"gap = {math.exp(g):.2f} % (H / {EVERY:g})^{h:.2f} (T / {STEPS:g})^-{t:.2f} "
            f"(M / {LEARNERS:g})^{m:.2f}; standard errors {errors[0]:.0%} of the first, and "
            + ", ".join(f"{error:.2f}" for error in errors[1:])
        )


MEASURED = (
    GapPoint(8, 667, 4, 2.720, 0.291),
    GapPoint(24, 667, 4, 6.509, 0.289),
    GapPoint(8, 2000, 4, 1.372, 0.238),
    GapPoint(24, 2000, 4, 3.220, 0.179),
    GapPoint(24, 667, 8, 9.772, 1.152),
)
"""The gaps to which `LAW` is fitted: eight pairs each, and four with eight islands."""


def terms(every: float, steps: float, learners: float) -> tuple[float, float, float, float]:
    """Return the numbers by which the constants are multiplied to give the logarithm of the gap."""
    return (
        1.0, math.log(every / EVERY), -math.log(steps / STEPS), math.log(learners / LEARNERS),
    )  # fmt: skip


def point_of(
    every: int, steps: int, learners: int, parallel: Sequence[float], islands: Sequence[float]
) -> GapPoint:
    """Return the gap of islands, from their losses and data-parallel training's by seed."""
    gaps = [100 * (ours / theirs - 1) for theirs, ours in zip(parallel, islands, strict=True)]
    return GapPoint(every, steps, learners, fmean(gaps), stdev(gaps) / math.sqrt(len(gaps)))


def fitted(points: Sequence[GapPoint]) -> GapLaw:
    """Fit the logarithms of the gaps, weighted by their errors.

    Errors: `ValueError` if a gap is not above zero; numpy's `LinAlgError` if the points do not
    determine the constants.
    """
    rows = np.array([terms(each.every, each.steps, each.learners) for each in points])
    logs = np.array([math.log(each.percent) for each in points])
    weights = np.array([(each.percent / each.error) ** 2 for each in points])
    covariance = np.linalg.inv(rows.T @ (weights[:, None] * rows))
    g, h, t, m = (covariance @ rows.T @ (weights * logs)).tolist()
    return GapLaw((g, h, t, m), tuple(map(tuple, covariance.tolist())))


LAW = fitted(MEASURED)
"""The law that `archipelago plan` shows."""
