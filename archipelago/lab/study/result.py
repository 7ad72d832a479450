"""The result of a study: a line for each point of each arm, compared with the best of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from archipelago.lab.study.cells import CellResult
from archipelago.lab.study.grid import StudyRow
from archipelago.lab.study.paired_statistics import METHOD, Mean, gaps_percent, mean
from archipelago.lab.study.plan import Study
from archipelago.lab.training.average import PREFIX
from archipelago.lab.training.evaluations import METRIC_PREFIX, REGION_PREFIX
from archipelago.lab.training.question_sets import ACCURACY
from cluster.config.values import Mode

OTHERS = (PREFIX, REGION_PREFIX, ACCURACY)
"""The starts of the names of figures that some studies have."""
ALSO = (
    "heldout_loss", "initial_heldout_loss", "tokens_trained", "tokens_merged", "goodput", "wall_s",
    "mean_participants", "effective_overlap", "up_bytes_per_token", "down_bytes_per_token",
)  # fmt: skip
"""Figures of a line besides its measure: means over its seeds."""


class EvaluationMean(NamedTuple):
    """An evaluation at one step, averaged over seeds."""

    t: int
    """The syncer step."""
    time_s: float
    """Virtual seconds."""
    tokens: float
    """Tokens trained."""
    heldout_loss: float
    """Held-out loss, in nats per token."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row with its result."""

    row: StudyRow
    measured: Mean
    """The mean of the study's measure, with its interval."""
    figures: Mapping[str, float]
    curve: Sequence[EvaluationMean]
    missing: Sequence[int]
    """Seeds whose cells are not made yet."""
    failed: Mapping[int, str]
    """Seeds whose cells failed, and why."""
    gap: Mean | None
    """The difference to its opponent, in per cent (positive: higher); None without an opponent."""
    best: bool
    """Whether it is the best point of its arm."""
    enclosed: bool
    """Whether none of its values lies at the end of an axis of its arm."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a whole study."""

    study: Study
    lines: Sequence[Line]

    def json(self) -> dict[str, object]:
        """Return the result as `archipelago study --json` prints it."""
        cells = self.study.cells
        return {
            "study": self.study.name,
            "cells": len(cells),
            "missing": sum(len(line.missing) for line in self.lines),
            "failed": sum(len(line.failed) for line in self.lines),
            "seeds": list(self.study.seeds),
            "measure": self.study.measure,
            "better": "higher" if self.study.higher else "lower",
            "against": self.study.against,
            "interval": METHOD,
            **self.by_mode(),
            "rows": [_plain(line, self.study.measure) for line in self.lines],
        }

    def by_mode(self) -> dict[str, object]:
        """Return `decoupled_loss`, `diloco_loss` and so on for the best point of each mode.

        `decoupled_arm` and so on name that point. If data-parallel is the opponent, the gap to it
        follows in per cent. Intervals are named as `bench parity` names them. Nothing is returned
        if the study's own axes leave several places to compare at.
        """
        study = self.study
        if study.measure != "heldout_loss" or any(line.row.shared for line in self.lines):
            return {}
        report: dict[str, object] = {}
        modes = {line.row.arm: line.row.cells[0].mode for line in self.lines}
        means = {line.row.label: line.measured for line in self.lines}
        for mode in Mode:
            row = _best(
                [x.row for x in self.lines if modes[x.row.arm] is mode], means, higher=study.higher
            )
            if row is None:
                continue
            line = next(each for each in self.lines if each.row is row)
            name = mode.value.replace("-", "_")
            report |= {f"{name}_arm": row.label, **line.measured.as_json(f"{name}_loss")}
            against = modes.get(study.against or "")
            if line.gap is not None and against is Mode.DATA_PARALLEL:
                is_decoupled = mode is Mode.DECOUPLED
                report |= line.gap.as_json("gap_percent" if is_decoupled else f"{name}_gap_percent")
        return report


def summed(study: Study, made: Mapping[str, CellResult]) -> Result:
    """Sum up the cells that are made so far."""
    samples = {row.label: _samples(row, study.measure, made) for row in study.rows}
    means = {label: mean([x for x in each if math.isfinite(x)]) for label, each in samples.items()}
    lines = list[Line]()
    for row in study.rows:
        opponent = None
        if study.against is not None and row.arm != study.against:
            rivals = [each for each in study.rows if each.arm == study.against]
            rivals = [each for each in rivals if _alike(each, row)]
            opponent = _best(rivals, means, higher=study.higher)
        gap = None
        if opponent is not None:
            gap = mean(gaps_percent(samples[row.label], samples[opponent.label]))
        peers = [each for each in study.rows if each.arm == row.arm and each.shared == row.shared]
        results = {cell.seed: made.get(cell.key) for cell in row.cells}
        successes = [each for each in results.values() if each is not None and not each.failed]
        lines.append(
            Line(
                row,
                means[row.label],
                {
                    name: _mean_of([each.figure(name) for each in successes])
                    for name in _figure_names(successes)
                },
                _curve(successes),
                [seed for seed, each in results.items() if each is None],
                {seed: each.failed for seed, each in results.items() if each and each.failed},
                gap,
                _best(peers, means, higher=study.higher) is row,
                _enclosed(row, peers),
            )
        )
    return Result(study, lines)


def _samples(row: StudyRow, measure: str, made: Mapping[str, CellResult]) -> list[float]:
    """Return the measure of each seed; NaN where there is no figure."""
    found = [made.get(cell.key) for cell in row.cells]
    return [math.nan if each is None or each.failed else each.figure(measure) for each in found]


def _alike(one: StudyRow, other: StudyRow) -> bool:
    """Return whether two rows are at the same place of all axes that both have from the study."""
    return all(other.shared[p] == v for p, v in one.shared.items() if p in other.shared)


def _best(rows: Sequence[StudyRow], means: Mapping[str, Mean], *, higher: bool) -> StudyRow | None:
    """Return the row with the best mean among those with the most figures."""
    most_samples = max((means[row.label].samples for row in rows), default=0)
    candidates = [row for row in rows if means[row.label].samples == most_samples > 0]
    sign = -1 if higher else 1
    return min(candidates, key=lambda row: sign * means[row.label].value, default=None)


def _enclosed(row: StudyRow, peers: Sequence[StudyRow]) -> bool:
    """Return whether the row lies between others on each numeric axis of its arm."""
    for path, value in row.point.items():
        line = {each.point[path] for each in peers if path in each.point}
        numbers = sorted(x for x in line if isinstance(x, int | float) and not isinstance(x, bool))
        if len(numbers) > 1 and value in (numbers[0], numbers[-1]):
            return False
    return True


def _mean_of(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _figure_names(made: Sequence[CellResult]) -> list[str]:
    """Return the names of the figures of a line: the usual ones, those of `OTHERS`, and metrics."""
    found = [name for each in made for name in each.figures if name.startswith(OTHERS)]
    found += [f"{METRIC_PREFIX}{name}" for each in made for name in each.metrics]
    return [*ALSO, *dict.fromkeys(found)]


def _curve(made: Sequence[CellResult]) -> list[EvaluationMean]:
    """Return the mean curve over the steps that all seeds have evaluated."""
    looks = [{evaluation[0]: evaluation for evaluation in each.curve} for each in made]
    steps = set[int].intersection(*(set(each) for each in looks)) if looks else set[int]()
    return [
        EvaluationMean(t, *(fmean([each[t][i] for each in looks]) for i in (1, 2, 3)))
        for t in sorted(steps)
    ]


def _plain(line: Line, measure: str) -> dict[str, object]:
    row, gap = line.row, line.gap
    compared: dict[str, object] = {}
    if gap is not None:
        compared = {**gap.as_json("gap_percent"), "pairs": gap.samples}
    return {
        "arm": row.arm,
        "point": dict(row.point),
        "mode": row.cells[0].mode.value,
        "samples": line.measured.samples,
        **line.figures,
        **line.measured.as_json(measure),
        **compared,
        "best": line.best,
        "enclosed": line.enclosed,
        "missing": list(line.missing),
        "failed": {str(seed): reason for seed, reason in line.failed.items()},
        "cells": {str(cell.seed): cell.key for cell in row.cells},
        "curve": [evaluation._asdict() for evaluation in line.curve],
    }
