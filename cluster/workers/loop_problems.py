"""The check of a task with a loop of the user's own, once the task is loaded."""

from __future__ import annotations

from cluster.config.loop_checks import of_loop
from cluster.config.schema import Config
from islands.task import Task


def loop_name(config: Config) -> str:
    """Return the name of the loop of the user's own in messages."""
    return config.task.loop or f"the loop of {config.task.target}"


def loop_problems(config: Config, task: Task) -> list[str]:
    """Return why this task's loop cannot train in this run; empty if it can, or there is none.

    A loop that the configuration names (`task.loop`) is checked with the configuration.
    """
    problems = list[str]()
    if task.loop is not None and config.task.loop is None:
        problems += map(str, of_loop(config, loop_name(config)))
    if task.evaluate is not None and task.loop is None:
        problems.append(
            f"task {task.name}: evaluate is for a task that a loop trains, and there is none; give "
            "the task a loop, or name one as task.loop"
        )
    if task.evaluate is not None and (hosts := config.monitor.evaluator.hosts) > 1:
        problems.append(
            f"monitor.evaluator.hosts: {hosts} hosts cannot share the evaluate of task "
            f"{task.name}, which runs in one process; use 1"
        )
    return problems
