"""The functions of the Python API that replay runs, train studies, and plan clusters."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipelago.launching import Overrides, override_arguments
from archipelago.results import ReplayResult

if TYPE_CHECKING:
    from archipelago.lab.planner.plan import TrainingPlan
    from archipelago.lab.study.result import Result as StudyResult


def replay(run_dir: Path | str) -> ReplayResult:
    """Rebuild a run from its log, compare it with its files, and check every invariant.

    Raises:
        UserMistake: There is no run in `run_dir`, or it is of a mode without a log of events.
    """
    from archipelago.lab.checks.replay import replay

    figures = replay(Path(run_dir))
    return ReplayResult(figures["exact"] is True, int(str(figures["events"])), figures)


def study(
    path: Path | str,
    overrides: Overrides | None = None,
    *,
    jobs: int = 0,
    on_cell: Callable[[str, float | None], None] | None = None,
) -> StudyResult:
    """Train the missing cells of a study in virtual time, and return the result of all.

    Args:
        path: The study's TOML file.
        overrides: Values that replace those of the file.
        jobs: Processes that train at the same time; 0: one for each core.
        on_cell: Called after each cell with its label and its held-out loss.

    Raises:
        UserMistake: The file is wrong, or no cell has the metric that it measures.
    """
    from archipelago.lab.study import training_jobs
    from archipelago.lab.study.cells import CellFiles
    from archipelago.lab.study.plan import read as read_study
    from archipelago.lab.study.result import summed
    from archipelago.lab.study.task_metrics import check_metric

    definition = read_study(Path(path), override_arguments(overrides))
    files = CellFiles(definition.folder / "cells")
    cell_results = training_jobs.found(files, definition.cells, retry=False)
    missing = {key: cell for key, cell in definition.cells.items() if key not in cell_results}
    check_metric(definition, cell_results)

    labels = {
        cell.key: f"{row.label}, seed {cell.seed}" for row in definition.rows for cell in row.cells
    }

    def done(key: str, cell: Any) -> None:
        cell_results[key] = cell
        if on_cell is not None:
            on_cell(labels[key], None if cell.failed else float(cell.figure("heldout_loss")))

    training_jobs.make(files, missing, jobs or os.cpu_count() or 1, done)
    return summed(definition, cell_results)


def plan(path: Path | str, *, seed: int = 0) -> TrainingPlan:
    """Return how to train on a cluster, and why; nothing is started.

    Args:
        path: The cluster's TOML file: chips, regions, links, and what to train.
        seed: The seed of the simulated failures.

    Raises:
        UserMistake: The file is wrong, or no setting works on this cluster.
    """
    from archipelago.lab.planner.plan import plan as choose
    from cluster.config.machines import load_cluster

    return choose(load_cluster(Path(path)), seed)
