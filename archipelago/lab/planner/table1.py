"""`archipelago simulate --table1`: the paper's goodput and uptime, from one set of constants.

The constants are fitted on the two rows that have one learner. The other four rows, and everything
else that is printed, follow from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from archipelago.lab.planner import closed_form as closed
from archipelago.lab.planner import fit
from archipelago.lab.planner import published as paper
from archipelago.lab.planner.cluster_model import YEAR_S, Recovery
from archipelago.lab.planner.configurations import Configuration, Lockstep, mean_and_interval, play

LOCKSTEP = Lockstep(24, 24, 2)
"""H, P and τ of the paper; no configuration of table 1 reads them."""
SENSITIVE = ((Configuration.ELASTIC, 1), (Configuration.DECOUPLED, 2), (Configuration.DECOUPLED, 8))
"""The configurations to show under other assumptions."""
YEARS, SLICES, RETURNS_S = (1.0, paper.LLAMA_3_YEARS), (16, 256, 9216), (20.0, 600.0)
"""The other assumptions: years between interruptions, chips per slice, seconds until a return."""


@dataclass(frozen=True, slots=True)
class Table1Effort:
    """The size of the simulation: seeds, and the mean failures of each trace of at most 30 days."""

    seeds: int
    """Traces per cell."""
    failures: int
    """Failures of the trace of a cell."""
    fit_failures: int
    """Failures of each trace that the constants are fitted on."""
    profile_failures: int
    """Failures of each trace that the profiles are fitted on."""
    sensitivity_seeds: int
    """Traces per cell under other assumptions."""
    sensitivity_failures: int
    """Failures of each trace of the sensitivity analysis."""


FAST = Table1Effort(8, 16_000, 20_000, 5_000, 2, 3_000)
FULL = Table1Effort(8, 200_000, 200_000, 20_000, 4, 20_000)


@dataclass(frozen=True, slots=True)
class Table1Cell:
    """One cell of table 1, in per cent."""

    configuration: Configuration
    learners: int
    chips: int
    goodput: float
    interval: float
    """Half of the 95 % confidence interval of `goodput` over seeds."""
    uptime: float
    paper: int
    difference: float
    """The simulated goodput less the paper's, in points."""
    closed_form: float
    """The goodput 1 / (1 + λd)."""
    within: bool
    """Whether the simulation is closer to the paper than the closed form."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Goodput under another assumption, in per cent, for each of the paper's clusters."""

    mtbi_years: float
    slice_chips: int
    return_s: float
    configuration: Configuration
    learners: int
    goodput: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Table1:
    """Table 1 of the paper, simulated."""

    cells: tuple[Table1Cell, ...]
    fitted: fit.Fitted
    one_constant: dict[Configuration, float]
    """The d of the closed form for each of the two rows with one learner, in seconds."""
    profiles: tuple[fit.Profile, ...]
    """The quality of the fit with one constant held fixed after the other."""
    sensitivity: tuple[Sensitivity, ...]

    def mean_difference(self, *configurations: Configuration) -> float:
        """Return the mean absolute difference of these configurations to the paper, in points."""
        found = [abs(c.difference) for c in self.cells if c.configuration in configurations]
        return float(np.mean(found))

    def closed_difference(self, *configurations: Configuration) -> float:
        """Return the mean absolute difference of the closed form to the paper, in points."""
        found = [
            abs(c.closed_form - c.paper) for c in self.cells if c.configuration in configurations
        ]
        return float(np.mean(found))

    def as_json(self) -> dict[str, object]:
        """Return what `--json` prints."""
        configurations, decoupled = tuple(Configuration), Configuration.DECOUPLED
        better = {
            row.value: sum(cell.within for cell in self.cells if cell.configuration is row)
            for row, _ in paper.TABLE_1
        }
        return {
            "cells": [asdict(cell) for cell in self.cells],
            "constants": {
                **asdict(self.fitted.recovery),
                "step_s": fit.STEP_S,
                "slice_chips": paper.SLICE_CHIPS,
                "mtbi_years": 1.0,
                "fitted": ["shrink_s", "grow_s", "restart_s"],
                "by_reference": ["return_s", "returns", "spread", "slice_chips"],
                "elastic_squares": self.fitted.elastic_squares,
                "not_elastic_squares": self.fitted.rigid_squares,
            },
            "mean_difference_decoupled": self.mean_difference(decoupled),
            "mean_difference_all": self.mean_difference(*configurations),
            "largest_difference": max(abs(cell.difference) for cell in self.cells),
            "largest_interval": max(cell.interval for cell in self.cells),
            "closed_form_difference_decoupled": self.closed_difference(decoupled),
            "closed_form_difference_all": self.closed_difference(*configurations),
            "closed_form_costs_s": {k.value: v for k, v in self.one_constant.items()},
            "better_than_closed_form": better,
            "profiles": [asdict(profile) for profile in self.profiles],
            "sensitivity": [asdict(each) for each in self.sensitivity],
        }


def table1(seed: int, effort: Table1Effort) -> Table1:
    """Fit the constants and play all cells; the same seed gives the same bits."""
    fitted = fit.fit(seed, effort.fit_failures)
    constant = fit.one_constant()
    cells = [
        cell
        for place in range(len(paper.CHIPS))
        for cell in _column(place, seed, effort, fitted.recovery, constant)
    ]
    rows = list(paper.TABLE_1)
    cells.sort(key=lambda cell: (rows.index((cell.configuration, cell.learners)), cell.chips))
    return Table1(
        tuple(cells),
        fitted,
        constant,
        tuple(fit.profiles(seed, effort.profile_failures, fitted.recovery)),
        tuple(_sensitivity(seed, effort, fitted.recovery)),
    )


def _column(
    place: int,
    seed: int,
    effort: Table1Effort,
    recovery: Recovery,
    constant: dict[Configuration, float],
) -> list[Table1Cell]:
    """Return the cells of one cluster size, all played on the same traces."""
    chips = paper.CHIPS[place]
    played = {row: list[tuple[float, float]]() for row in paper.TABLE_1}
    for number in range(effort.seeds):
        # the constants were fitted on the traces of `seed` itself
        trace = fit.one_trace(
            _another(seed, number), chips, effort.failures, recovery, paper.SLICE_CHIPS, YEAR_S
        )
        for configuration, learners in paper.TABLE_1:
            outcome = play(configuration, learners, trace, recovery, fit.STEP_S, LOCKSTEP)
            played[configuration, learners].append((outcome.goodput, outcome.uptime))
    cells: list[Table1Cell] = []
    for (configuration, learners), outcomes in played.items():
        mean, half = mean_and_interval(np.array([goodput for goodput, _ in outcomes]))
        costs_s = constant[
            configuration if configuration is Configuration.NOT_ELASTIC else Configuration.ELASTIC
        ]
        rate = np.array([chips / learners / YEAR_S])
        formula = float(closed.one_constant(rate, costs_s)[0])
        published = paper.TABLE_1[configuration, learners][place]
        difference = 100 * mean - published
        cells.append(
            Table1Cell(
                configuration,
                learners,
                chips,
                goodput=100 * mean,
                interval=100 * half,
                uptime=100 * float(np.mean([uptime for _, uptime in outcomes])),
                paper=published,
                difference=difference,
                closed_form=100 * formula,
                within=abs(difference) < abs(100 * formula - published),
            )
        )
    return cells


def _another(seed: int, number: int) -> int:
    """Return a seed for a trace that nothing was fitted on."""
    return (seed + 1) * 1000 + number


def _sensitivity(seed: int, effort: Table1Effort, recovery: Recovery) -> list[Sensitivity]:
    defaults = (1.0, paper.SLICE_CHIPS, recovery.return_s)
    settings = [
        *((years, *defaults[1:]) for years in YEARS),
        *((defaults[0], chips, defaults[2]) for chips in SLICES if chips != defaults[1]),
        *((*defaults[:2], return_s) for return_s in RETURNS_S),
    ]
    return [
        each
        for years, slice_chips, return_s in settings
        for each in _under(seed, effort, recovery, years, slice_chips, return_s)
    ]


def _under(
    seed: int,
    effort: Table1Effort,
    recovery: Recovery,
    years: float,
    slice_chips: int,
    return_s: float,
) -> list[Sensitivity]:
    changed = replace(recovery, return_s=return_s)
    goodput = {row: list[float]() for row in SENSITIVE}
    for chips in paper.CHIPS:
        traces = [
            fit.one_trace(
                _another(seed, number),
                chips,
                effort.sensitivity_failures,
                changed,
                slice_chips,
                years * YEAR_S,
            )
            for number in range(effort.sensitivity_seeds)
        ]
        for row in SENSITIVE:
            outcomes: Sequence[float] = [
                play(*row, trace, changed, fit.STEP_S, LOCKSTEP).goodput for trace in traces
            ]
            goodput[row].append(100 * float(np.mean(outcomes)))
    return [
        Sensitivity(years, slice_chips, return_s, *row, tuple(goodput[row])) for row in SENSITIVE
    ]
