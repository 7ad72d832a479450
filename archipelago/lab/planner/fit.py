"""Physical constants, fitted only to the two rows of table 1 that have one learner.

The elastic row determines the pauses (shrink and grow), the other row the restart. The simulation
is the model; the closed form only provides the slopes of the fit. A profile shows how well the rows
determine a constant: it is the best fit with that constant held fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archipelago.lab.planner import closed_form as closed
from archipelago.lab.planner import published as paper
from archipelago.lab.planner.cluster_model import (
    DAY_S,
    YEAR_S,
    Cluster,
    Grow,
    Recovery,
    Returns,
    whole_slices,
)
from archipelago.lab.planner.configurations import Configuration
from archipelago.lab.planner.learner_timeline import elastic, rigid
from archipelago.lab.planner.trace import Floats, Trace, draw

STEP_S = 1.0
"""The default step time in seconds."""
LONGEST_S = 30 * DAY_S
ROUNDS_OF_FITTING = 5
"""Iterations of Newton's method: it converges after four, up to the noise of the simulation."""
CHI_SQUARE = 3.84
"""The 95 % quantile of chi-square with one degree of freedom, which limits a profile's rise."""
RETURNS_S = (20.0, 40.0, paper.RESUME_S, 80.0, 110.0, 150.0, 220.0)
GROWS_S = (0.0, 6.0, 9.0, 12.0, 15.0, 18.0, 24.0)
SHRINKS_S = (10.0, 14.0, 16.0, 18.0, 20.0, 22.0, 25.0)
SLICES = (16, 256, 4096)
SPREADS = (0.25, 0.5, 1.0)


def start() -> Recovery:
    """Return the constants that a fit starts from, including those that it holds fixed."""
    return Recovery(
        shrink_s=20.0,
        grow_s=10.0,
        return_s=paper.RESUME_S,
        restart_s=80.0,
        returns=Returns.LOG_NORMAL,
        spread=paper.REPAIR_SPREAD,
        grow=Grow.WHOLE,
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """The fitted constants, and the squares that they leave."""

    recovery: Recovery
    elastic_squares: float
    """The sum of squared differences on the elastic row, in squared points."""
    rigid_squares: float
    """The sum of squared differences on the not-elastic row, in squared points."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The quality of the fit of the elastic row with one constant held fixed."""

    constant: str
    """The name of the constant."""
    rows: tuple[tuple[str, float], ...]
    """Each value tried, and the sum of squares, in squared points, that the best others leave."""
    inside: tuple[str, ...]
    """The values tried that lie inside a 95 % likelihood-ratio interval."""


def rates() -> Floats:
    """Return the failures per second of each of the paper's clusters."""
    return np.array(paper.CHIPS) / YEAR_S


def target(configuration: Configuration) -> Floats:
    """Return the published goodput of a configuration with one learner, in shares of 1."""
    return np.array(paper.TABLE_1[configuration, 1]) / 100


def traces(seed: int, failures: int, recovery: Recovery, slice_chips: int) -> list[Trace]:
    """Draw one trace for each of the paper's clusters, of about `failures` failures or 30 days."""
    return [
        one_trace(seed, chips, failures, recovery, slice_chips, YEAR_S) for chips in paper.CHIPS
    ]


def one_trace(
    seed: int, chips: int, failures: int, recovery: Recovery, slice_chips: int, mtbi_s: float
) -> Trace:
    """Draw the trace of a cluster of `chips`, of about `failures` failures or 30 days."""
    slices = whole_slices(chips, slice_chips, paper.MOST_LEARNERS)
    cluster = Cluster(chips, slices, mtbi_s)
    lasts_s = min(LONGEST_S, failures / cluster.failures_per_s)
    return draw(np.random.default_rng([seed, chips]), cluster, recovery, lasts_s)


def fit(seed: int, failures: int) -> Fitted:
    """Fit the constants on traces of about `failures` failures each."""
    first = start()
    played = traces(seed, failures, first, paper.SLICE_CHIPS)
    pauses, squares = fit_elastic(played, first, "shrink_s", "grow_s")

    def simulated(recovery: Recovery) -> Floats:
        return np.array([rigid(t, recovery.restart_s, STEP_S).goodput(t.lasts_s) for t in played])

    def guess(recovery: Recovery) -> Floats:
        return closed.one_constant(rates(), recovery.restart_s)

    goal = target(Configuration.NOT_ELASTIC)
    best, rigid_squares = _newton(pauses, ("restart_s",), simulated, guess, goal)
    return Fitted(best, squares, rigid_squares)


def fit_elastic(
    played: list[Trace], first: Recovery, *free: str, goal: Floats | None = None
) -> tuple[Recovery, float]:
    """Fit the `free` pauses to the elastic row, or to `goal`; return them and the squares left."""

    def simulated(recovery: Recovery) -> Floats:
        return np.array([elastic(t, recovery, STEP_S).goodput(t.lasts_s) for t in played])

    def guess(recovery: Recovery) -> Floats:
        return closed.elastic(rates(), recovery, STEP_S)

    goal = target(Configuration.ELASTIC) if goal is None else goal
    return _newton(first, free, simulated, guess, goal)


def _newton(
    first: Recovery,
    free: Sequence[str],
    simulated: Callable[[Recovery], Floats],
    guess: Callable[[Recovery], Floats],
    goal: Floats,
) -> tuple[Recovery, float]:
    """Fit the `free` constants of `simulated` to `goal` by least squares, in squared points.

    The slopes are those of `guess`. No constant falls below 0.
    """
    now, best, least = first, first, np.inf
    for _ in range(ROUNDS_OF_FITTING):
        residual = 100 * (goal - simulated(now))
        if (squares := float(residual @ residual)) < least:
            best, least = now, squares
        nudged = [guess(replace(now, **{name: getattr(now, name) + 1.0})) for name in free]
        slopes = np.stack([100 * (each - guess(now)) for each in nudged], axis=1)
        step = np.linalg.lstsq(slopes, residual, rcond=None)[0]
        moved = {
            name: max(0.0, getattr(now, name) + float(by))
            for name, by in zip(free, step, strict=True)
        }
        now = replace(now, **moved)
    return best, least


def one_constant() -> dict[Configuration, float]:
    """Return the d of 1 / (1 + λd) for each of the two rows, in seconds, by least squares."""
    found: dict[Configuration, float] = {}
    for configuration in (Configuration.NOT_ELASTIC, Configuration.ELASTIC):
        costs_s = 1.0
        for _ in range(10 * ROUNDS_OF_FITTING):
            now = closed.one_constant(rates(), costs_s)
            slope = -rates() * now**2
            residual = target(configuration) - now
            costs_s += float(slope @ residual) / float(slope @ slope)
        found[configuration] = costs_s
    return found


def profiles(seed: int, failures: int, best: Recovery) -> list[Profile]:
    """Hold one constant after the other fixed, and fit the rest."""
    names = ("shrink_s", "grow_s")
    freedom = len(paper.CHIPS) - len(names)
    played = traces(seed, failures, best, paper.SLICE_CHIPS)

    def squares(first: Recovery, *free: str, slice_chips: int = 0, redrawn: bool = False) -> float:
        if redrawn or slice_chips:
            return fit_elastic(
                traces(seed, failures, first, slice_chips or paper.SLICE_CHIPS), first, *free
            )[1]
        return fit_elastic(played, first, *free)[1]

    def profile(constant: str, rows: list[tuple[str, float]]) -> Profile:
        least = min(value for _, value in rows)
        limit = least + CHI_SQUARE * least / freedom
        return Profile(constant, tuple(rows), tuple(name for name, value in rows if value <= limit))

    return [
        profile(
            "return_s",
            [
                (f"{r:g}", squares(replace(best, return_s=r), *names, redrawn=True))
                for r in RETURNS_S
            ],
        ),
        profile(
            "grow_s", [(f"{g:g}", squares(replace(best, grow_s=g), "shrink_s")) for g in GROWS_S]
        ),
        profile(
            "shrink_s",
            [(f"{s:g}", squares(replace(best, shrink_s=s), "grow_s")) for s in SHRINKS_S],
        ),
        profile("slice_chips", [(f"{n}", squares(best, *names, slice_chips=n)) for n in SLICES]),
        profile(
            "spread",
            [(f"{s:g}", squares(replace(best, spread=s), *names, redrawn=True)) for s in SPREADS],
        ),
        profile("grow", [(g.value, squares(replace(best, grow=g), *names)) for g in Grow]),
    ]
