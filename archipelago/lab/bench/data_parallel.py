"""The baseline: the same model trained data-parallel in one process, one batch from all islands.

`python -m archipelago.lab.bench.data_parallel CONFIG.toml STEPS` prints the held-out loss as JSON.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from cluster.config.load import load
from cluster.config.schema import Config
from cluster.storage.files import json_text
from cluster.workers.assembly import optimizer_of, task_of
from cluster.workers.evaluator import FINAL_WINDOWS, Evaluator
from coordinator.fragments import take
from coordinator.protocol import Fragment, Lease
from islands.inner import Inner


def train(config: Config, steps: int) -> dict[str, float]:
    """The configured optimizer on a global batch, the sum of the islands', with the schedule ending
    at `steps`."""
    task = task_of(config)
    batch_size = sum(group.count * group.batch_size for group in config.islands)
    stream = task.stream(batch_size)
    stream.add(Lease(0))
    queued = 1
    inner = Inner(task, replace(optimizer_of(config), horizon_steps=steps))
    evaluator = Evaluator(config)
    state = inner.start(task.init(config.run.seed))
    tokens, began_s = 0, time.perf_counter()
    for clock in range(steps):
        while stream.remaining < batch_size:
            stream.add(Lease(queued))
            queued += 1
        batch = stream.next()
        state, measures = inner.step(state, batch, clock)
        measures.loss.block_until_ready()
        tokens += task.tokens(batch)
    took_s = time.perf_counter() - began_s
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]
    layout = evaluator.layout
    flats = [take(layout, Fragment(p), leaves) for p in range(len(layout.fragments))]
    return {
        "heldout_loss": evaluator.loss(flats, FINAL_WINDOWS),
        "tokens_trained": tokens,
        "tokens_per_s": tokens / took_s,
    }


if __name__ == "__main__":
    print(json_text(train(load(Path(sys.argv[1])), int(sys.argv[2]))))
