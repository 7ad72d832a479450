"""Checks of a run whose islands train with a loop of the user's own (`task.loop`)."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.config.field_check import reads
from cluster.config.problem_text import Problem
from cluster.config.schema import Config, OptimizerConfig
from cluster.config.values import AUTO, RATES


def of_loop(config: Config, loop: str) -> Iterator[Problem]:
    """Yield what does not go together with a loop; `loop`: its name in messages."""
    if (mode := config.run.mode).sums_gradients:
        yield Problem(
            "run.mode",
            f'"{mode}" sums the gradients of all islands at every step, and {loop} keeps its '
            'gradients to itself; use "decoupled", "diloco" or "streaming"',
        )
    if config.sync.moments == "mean":
        yield Problem(
            "sync.moments",
            f'"mean" shares the moments of our optimizer, and the optimizer of {loop} is its own; '
            'use "own"',
        )
    if config.sync.every == AUTO and config.sync.step_s is None:
        yield Problem(
            "sync.step_s",
            f'is needed by sync.every = "auto": a step of {loop} cannot be measured before the '
            "start; give its seconds, or give sync.every a number",
        )
    for key in _set_keys(config.optimizer):
        yield Problem(
            f"optimizer.{key}", f"has no effect: {loop} has its own optimizer; leave it out"
        )
    for number, group in enumerate(config.islands):
        if group.accumulate != 1:
            yield Problem(
                f"islands.{number}.accumulate",
                f"has no effect: {loop} computes its batch itself; leave it out",
            )
        if group.hosts != 1:
            yield Problem(
                f"islands.{number}.hosts",
                f"{group.hosts} hosts cannot share {loop}, which runs in one process; use 1",
            )


def _set_keys(optimizer: OptimizerConfig) -> Iterator[str]:
    """Yield the keys of `[optimizer]` that are not at their defaults."""
    for key, field in OptimizerConfig.model_fields.items():
        default = RATES[optimizer.kind] if key == "learning_rate" else field.default
        if getattr(optimizer, key) != default:
            yield key


@reads("task.loop", "run.mode", "sync.moments", "sync.every", "sync.step_s", "optimizer", "islands")
def loop_fits(config: Config) -> Iterator[Problem]:
    """Check what does not go together with `task.loop`."""
    if config.task.loop is not None:
        yield from of_loop(config, config.task.loop)
