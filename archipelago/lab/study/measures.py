"""The measure of a study: the figure of a cell that is compared, and which values are better."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from archipelago.lab.training.average import PREFIX
from archipelago.lab.training.evaluations import METRIC_PREFIX
from archipelago.lab.training.question_sets import ACCURACY
from cluster.config.values import nearest

Better = Literal["lower", "higher"]
MEASURES = ("heldout_loss", "goodput", "wall_s", "up_bytes_per_token", "mean_participants")
"""The measures of every study."""
HIGHER = ("goodput", "mean_participants", ACCURACY)
"""The starts of the names of measures for which more is better."""


def metric_of(measure: str) -> str | None:
    """Return the name of the task's metric that is the measure; None for a figure of ours."""
    return measure.removeprefix(METRIC_PREFIX) if measure.startswith(METRIC_PREFIX) else None


def is_higher_better(measure: str, better: Better | None) -> bool:
    """Return whether a higher value is the better one; `better`: the key `study.better`."""
    return measure.startswith(HIGHER) if better is None else better == "higher"


def measure_problems(measure: str, better: Better | None, added: Collection[str]) -> list[str]:
    """Return why a study cannot have this measure; empty if it can.

    `added`: the figures that the table `[virtual]` adds to its cells.
    """
    if (metric := metric_of(measure)) is not None:
        return _metric_problems(measure, metric, better)
    problems = list[str]()
    if better is not None and (measure in added or measure in MEASURES):
        direction = "higher" if is_higher_better(measure, None) else "lower"
        problems.append(
            f'study.better: is for a metric of the task alone; of "{measure}" the {direction} '
            "value is better: leave the key out"
        )
    if measure.startswith((PREFIX, ACCURACY)):
        if measure not in added:
            problems.append(
                f'study.measure: no cell has "{measure}"; it comes from '
                f"virtual.average_shares or virtual.tasks, which give {sorted(added) or 'none'}"
            )
    elif measure not in MEASURES:
        known = [*MEASURES, *sorted(added)]
        problems.append(
            f'study.measure: "{measure}" is no measure; {nearest(measure, known)}; a metric that '
            f'the task returns with its held-out loss is "{METRIC_PREFIX}NAME"'
        )
    return problems


def _metric_problems(measure: str, metric: str, better: Better | None) -> list[str]:
    problems = list[str]()
    if not metric:
        problems.append(
            f'study.measure: "{measure}" names no metric; append the name of one that the task '
            "returns with its held-out loss"
        )
    if better is None:
        problems.append(
            f'study.better: is missing; "{measure}" is a metric of the task: set it to "lower" or '
            '"higher", the better value'
        )
    return problems
