"""The time of an inner step, measured with the real task on an island's devices."""

from __future__ import annotations

import statistics
import time

import jax

from cluster.config.schema import Config, IslandGroup
from cluster.workers.assembly import mesh_of, optimizer_of, task_of
from islands.inner import Inner
from islands.mesh import Devices
from islands.training_batch import training_batch

WARM_STEPS = 2
"""Steps before the first one that counts."""
LEAST_STEPS, MOST_STEPS = 3, 20
"""The fewest and the most steps that count."""
ENOUGH_S = 2.0
"""Seconds after which no further step is measured, if the fewest have been."""


def step_s(config: Config, group: IslandGroup) -> float:
    """Compile the step, run a few, and return the median time of one in seconds.

    The batch is held out, and the model is zeros: neither changes the time.
    """
    task = task_of(config)
    devices = Devices(task, mesh_of(group))
    inner = Inner(task, optimizer_of(config, group), devices, group.accumulate)
    batch = training_batch(task, group.batch_size)
    inner.compile(batch)
    state, took_s = inner.start(task.zeros()), list[float]()
    for number in range(WARM_STEPS + MOST_STEPS):
        began_s = time.monotonic()
        state, measures = inner.step(state, batch, 0)
        jax.block_until_ready((state, measures))
        if number >= WARM_STEPS:
            took_s.append(time.monotonic() - began_s)
        if len(took_s) >= LEAST_STEPS and sum(took_s) > ENOUGH_S:
            break
    return statistics.median(took_s)
