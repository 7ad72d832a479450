"""The door of a run: all that can be found wrong before anything is started, told at once.

`config.load` checks what a configuration says; here it meets the world: the run's directory, the
user's code, the data. Nothing is computed, no Ray is started, and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cluster import runs
from cluster.config import Config
from cluster.depot import depot_of
from cluster.evaluate import EVALUATION_BATCH
from cluster.island import task_of
from cluster.meaning import outer_of, same_layout
from cluster.names import FLEET
from coordinator.errors import UserMistake
from coordinator.fragments import Layout
from islands.adopt import layout_of
from islands.task import Task
from islands.trainable import of_loss, of_parameters, shapes_of

T = TypeVar("T")


@dataclass(slots=True)
class _Found:
    """The problems so far, each once."""

    problems: dict[str, None] = field(default_factory=dict)

    def say(self, *problems: str) -> None:
        self.problems |= dict.fromkeys(problems)

    def ask(self, call: Callable[[], T]) -> T | None:
        """What it returns; None if it is refused, which is a problem."""
        try:
            return call()
        except UserMistake as error:
            self.say(str(error))
            return None


def enter(
    config: Config,
    config_path: Path,
    run_dir: Path | None,
    now: datetime,
    *,
    resume: bool = False,
    owned: bool = False,
) -> tuple[Path, Layout]:
    """The run's directory and the layout of its model. `owned`: the run ends with this process.

    Errors: `UserMistake` with every problem found.
    """
    found = _Found()
    chosen = found.ask(
        lambda: (
            runs.resume(config, run_dir)
            if resume
            else runs.choose(config, config_path, run_dir, now)
        )
    )
    if owned and any(fault.island == FLEET for fault in config.faults.plan):
        found.say(
            "faults.plan: the fleet of `archipelago run` is not restarted, and the run would end "
            "with it; take its kill out of the plan, or use `archipelago submit`"
        )
    found.ask(lambda: outer_of(config))
    layout = None
    if (task := found.ask(lambda: task_of(config))) is not None:
        layout = _layout(config, task, found)
    if chosen is None or layout is None or found.problems:
        raise UserMistake("\n".join(found.problems))
    if resume and not same_layout(depot_of(config, chosen), layout):
        raise UserMistake(f"--resume: the model of {chosen} is another one, its task has changed")
    return chosen, layout


def _layout(config: Config, task: Task, found: _Found) -> Layout | None:
    """How the model is cut, if it can be trained on the data that there is."""
    layout, shapes = None, found.ask(lambda: shapes_of(task))
    if shapes is not None:
        unfit = of_parameters(task, shapes)
        found.say(*unfit)
        if not unfit:
            layout = found.ask(lambda: layout_of(task, config.sync.fragments, shapes))
    for size in sorted({EVALUATION_BATCH, *(group.batch_size for group in config.islands)}):
        found.ask(lambda size=size: task.stream(size))
        heldout = found.ask(lambda size=size: task.heldout(size))
        if heldout is not None and layout is not None:
            found.say(*of_loss(task, shapes, heldout[0]))
    return layout
