"""Physical constants from the two rows of table 1 that have one learner, and from nothing else.

Of the elastic row the pauses are fitted, of the other one the restart. The simulation is the model;
the closed form only says into which direction to go. What the rows do not determine is seen from
the profile: the best fit that is left when one constant is held.
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
"""Where nothing is said of it."""
LONGEST_S = 30 * DAY_S
ROUNDS_OF_FITTING = 5
"""Newton's method is at home after four; the simulation's noise ends it."""
CHI_SQUARE = 3.84
"""The 95 % quantile of chi-square with one degree of freedom: how far a profile may rise."""
RETURNS_S = (20.0, 40.0, paper.RESUME_S, 80.0, 110.0, 150.0, 220.0)
GROWS_S = (0.0, 6.0, 9.0, 12.0, 15.0, 18.0, 24.0)
SHRINKS_S = (10.0, 14.0, 16.0, 18.0, 20.0, 22.0, 25.0)
SLICES = (16, 256, 4096)
SPREADS = (0.25, 0.5, 1.0)


def start() -> Recovery:
    """Where a fit begins, and what it does not touch."""
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
    """Constants, and the sum of squares that they leave on each row, in squared points."""

    recovery: Recovery
    elastic_squares: float
    rigid_squares: float


@dataclass(frozen=True, slots=True)
class Profile:
    """How well the elastic row is fitted with one constant held.

    `rows`: value, and the sum of squares in squared points that the best others leave; `inside`:
    the values that a 95 % interval by the likelihood ratio holds, of those that were tried.
    """

    constant: str
    rows: tuple[tuple[str, float], ...]
    inside: tuple[str, ...]


def rates() -> Floats:
    """Failures a second of the paper's clusters."""
    return np.array(paper.CHIPS) / YEAR_S


def target(configuration: Configuration) -> Floats:
    return np.array(paper.TABLE_1[configuration, 1]) / 100


def traces(seed: int, failures: int, recovery: Recovery, slice_chips: int) -> list[Trace]:
    """One trace for each of the paper's clusters, of so many failures or 30 days."""
    return [
        one_trace(seed, chips, failures, recovery, slice_chips, YEAR_S) for chips in paper.CHIPS
    ]


def one_trace(
    seed: int, chips: int, failures: int, recovery: Recovery, slice_chips: int, mtbi_s: float
) -> Trace:
    slices = whole_slices(chips, slice_chips, paper.MOST_LEARNERS)
    cluster = Cluster(chips, slices, mtbi_s)
    lasts_s = min(LONGEST_S, failures / cluster.failures_per_s)
    return draw(np.random.default_rng([seed, chips]), cluster, recovery, lasts_s)


def fit(seed: int, failures: int) -> Fitted:
    """The constants, from traces of so many failures."""
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
    """Fit the pauses that are `free` on the elastic row, or another goal; the squares left."""

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
    """Least squares of `simulated` to `goal`, in squared points; no constant falls below 0.

    The slopes are those of `guess`.
    """
    now, best, least = first, first, np.inf
    for _ in range(ROUNDS_OF_FITTING):
        off = 100 * (goal - simulated(now))
        if (squares := float(off @ off)) < least:
            best, least = now, squares
        nudged = [guess(replace(now, **{name: getattr(now, name) + 1.0})) for name in free]
        slopes = np.stack([100 * (each - guess(now)) for each in nudged], axis=1)
        step = np.linalg.lstsq(slopes, off, rcond=None)[0]
        moved = {
            name: max(0.0, getattr(now, name) + float(by))
            for name, by in zip(free, step, strict=True)
        }
        now = replace(now, **moved)
    return best, least


def one_constant() -> dict[Configuration, float]:
    """The d of 1 / (1 + λd) for each of the two rows, in seconds, by least squares."""
    found: dict[Configuration, float] = {}
    for configuration in (Configuration.NOT_ELASTIC, Configuration.ELASTIC):
        costs_s = 1.0
        for _ in range(10 * ROUNDS_OF_FITTING):
            now = closed.one_constant(rates(), costs_s)
            slope = -rates() * now**2
            off = target(configuration) - now
            costs_s += float(slope @ off) / float(slope @ slope)
        found[configuration] = costs_s
    return found


def profiles(seed: int, failures: int, best: Recovery) -> list[Profile]:
    """Hold one constant after the other, and fit the rest."""
    both = ("shrink_s", "grow_s")
    freedom = len(paper.CHIPS) - len(both)
    played = traces(seed, failures, best, paper.SLICE_CHIPS)

    def squares(first: Recovery, *free: str, slice_chips: int = 0, redrawn: bool = False) -> float:
        if redrawn or slice_chips:
            return fit_elastic(
                traces(seed, failures, first, slice_chips or paper.SLICE_CHIPS), first, *free
            )[1]
        return fit_elastic(played, first, *free)[1]

    def profile(constant: str, rows: list[tuple[str, float]]) -> Profile:
        least = min(value for _, value in rows)
        most = least + CHI_SQUARE * least / freedom
        return Profile(constant, tuple(rows), tuple(name for name, value in rows if value <= most))

    return [
        profile(
            "return_s",
            [
                (f"{r:g}", squares(replace(best, return_s=r), *both, redrawn=True))
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
        profile("slice_chips", [(f"{n}", squares(best, *both, slice_chips=n)) for n in SLICES]),
        profile(
            "spread",
            [(f"{s:g}", squares(replace(best, spread=s), *both, redrawn=True)) for s in SPREADS],
        ),
        profile("grow", [(g.value, squares(replace(best, grow=g), *both)) for g in Grow]),
    ]
