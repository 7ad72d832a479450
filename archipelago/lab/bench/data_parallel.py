"""The baseline's process: it trains data-parallel and prints the held-out loss.

`python -m archipelago.lab.bench.data_parallel CONFIG.toml STEPS` prints it as JSON.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import jax

from archipelago.lab.training.data_parallel import fragments_of, steps_on_summed_batch
from cluster.config.load import load
from cluster.config.schema import Config
from cluster.storage.files import json_text
from cluster.workers.assembly import optimizer_of, task_of
from cluster.workers.evaluator import FINAL_WINDOWS, Evaluator
from islands.inner import Inner


def train(config: Config, steps: int) -> dict[str, float]:
    """Train on the summed batch of the islands, with a schedule that ends at `steps`.

    Return the held-out loss in nats per token, the tokens, and the tokens per second of the
    training alone.
    """
    task = task_of(config)
    inner = Inner(task, replace(optimizer_of(config), horizon_steps=steps))
    evaluator = Evaluator(config)
    state = inner.start(task.init(config.run.seed))
    tokens, began_s = 0, time.perf_counter()
    for taken in steps_on_summed_batch(config, task, inner, state, steps):
        jax.block_until_ready(taken.measures.loss)
        state = taken.state
        tokens += taken.tokens
    took_s = time.perf_counter() - began_s
    return {
        "heldout_loss": evaluator.loss(fragments_of(evaluator.layout, state), FINAL_WINDOWS),
        "tokens_trained": tokens,
        "tokens_per_s": tokens / took_s,
    }


if __name__ == "__main__":
    print(json_text(train(load(Path(sys.argv[1])), int(sys.argv[2]))))
