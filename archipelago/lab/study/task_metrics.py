"""The metrics that the tasks of a study return beside their held-out loss."""

from __future__ import annotations

import os
from collections.abc import Mapping

from archipelago.lab.study.cells import CellResult
from archipelago.lab.study.measures import metric_of
from archipelago.lab.study.plan import Study
from cluster.config.schema import Config
from cluster.config.values import nearest
from cluster.storage.files import json_text
from cluster.workers.environment import take_one_thread
from coordinator.errors import UserMistake


def check_metric(study: Study, made: Mapping[str, CellResult]) -> None:
    """Check that some cell has the metric that the study measures; other measures always pass.

    `made`: the cells that are trained, by key. Of a missing cell the metrics are those of its task,
    whose loss is traced: nothing is trained or computed.

    Errors: `UserMistake` if no cell has it, or if the task of a missing cell cannot be trained.
    """
    metric = metric_of(study.measure)
    if metric is None:
        return
    known = {name for key in study.cells if key in made for name in made[key].metrics}
    asked = set[str]()
    for key, cell in study.cells.items():
        if metric in known:
            return
        task = json_text([cell.config.model_dump(mode="json")[table] for table in ("task", "data")])
        if key not in made and task not in asked:
            asked.add(task)
            known |= traced_metrics(cell.config)
    if metric not in known:
        hint = nearest(metric, sorted(known)) if known else "the loss of its task returns none"
        raise UserMistake(
            f'study.measure = "{study.measure}": no cell has a metric "{metric}"; {hint}; a metric '
            "is a named number that the task's loss, or its eval_loss, returns beside the loss"
        )


def traced_metrics(config: Config) -> frozenset[str]:
    """Return the names of the metrics of a configuration's held-out evaluation.

    Errors: `UserMistake` if the task cannot be loaded or trained.
    """
    take_one_thread()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # as in the workers

    import jax

    from cluster.workers.assembly import task_of
    from cluster.workers.evaluator import EVALUATION_BATCH
    from islands.losses import evaluation_loss, frozen_of
    from islands.trainable import of_loss, of_parameters, shapes_of

    task = task_of(config)
    shapes, batch = shapes_of(task), task.heldout(EVALUATION_BATCH)[0]
    if problems := of_parameters(task, shapes) or of_loss(task, shapes, batch):
        raise UserMistake("\n".join(problems))
    if task.evaluate is not None:  # of a loop of the user's own, which has no virtual time
        return frozenset()
    frozen = jax.eval_shape(lambda: frozen_of(task))
    _, metrics = jax.eval_shape(evaluation_loss(task), shapes, batch, frozen)
    return frozenset(metrics)
