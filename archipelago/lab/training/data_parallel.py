"""Data-parallel in one process, which takes each step on the summed batch of all islands.

The result equals that of islands with all-reduced gradients, as no island drops out. In virtual
time (`train`) a step takes as long as its slowest island, and then a ring all-reduce of bf16
gradients, which nothing hides.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from archipelago.lab.training.compiled_parts import inner_of
from archipelago.lab.training.loss_curve import Learned, LossCurve
from archipelago.lab.training.process import step_s
from archipelago.lab.training.timing import Timing
from cluster.config.schema import Config
from cluster.workers.assembly import learner_settings, task_of
from coordinator.codec import Wire
from coordinator.fragments import Flat, Layout, take
from coordinator.protocol import Fragment, Lease
from islands.inner import Inner, InnerState, StepMeasures
from islands.randomness import NO_DRAWS
from islands.task import Task


class StepTaken(NamedTuple):
    """One step on the summed batch."""

    state: InnerState
    """The state after the step; the next step donates it."""
    measures: StepMeasures
    """The measures of the step, which may still be computing."""
    tokens: int
    """The tokens of the batch."""


def steps_on_summed_batch(
    config: Config, task: Task, inner: Inner, state: InnerState, steps: int
) -> Iterator[StepTaken]:
    """Train for `steps` steps from a state, on the leases 0, 1, 2 and so on, one after another."""
    batch_size = sum(group.count * group.batch_size for group in config.islands)
    stream, leases, draws = task.stream(batch_size), 0, NO_DRAWS._replace(seed=config.run.seed)
    for clock in range(steps):
        while not leases or stream.remaining < batch_size:
            stream.add(Lease(leases))
            leases += 1
        batch = stream.next()
        state, measures = inner.step(state, batch, clock, draws.at(clock))
        yield StepTaken(state, measures, int(task.tokens(batch)))


def fragments_of(layout: Layout, state: InnerState) -> list[Flat]:
    """Return a state's parameters as fragments on the host."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]
    return [take(layout, Fragment(p), leaves) for p in range(len(layout.fragments))]


def train(config: Config, timing: Timing, curve: LossCurve) -> Learned:
    """Train the configured optimizer for T steps in virtual time.

    Errors: `UserMistake` if there is no such task.
    """
    task, layout = task_of(config), curve.evaluator.layout
    inner = inner_of(config, task)
    state = inner.start(task.init(config.run.seed))
    islands = [learner_settings(config, island) for island in config.island_names]
    rngs = [random.Random(f"{config.run.seed}/{each.island}/1") for each in islands]
    ring_bytes = round(2 * (1 - 1 / len(islands)) * Wire.BF16.bytes_of(sum(layout.sizes)))
    ring_s = timing.passes_s(ring_bytes) + 2 * timing.latency_s if len(islands) > 1 else 0.0
    now_s = computed_s = 0.0
    tokens, steps = 0, config.run.steps
    for t, taken in enumerate(steps_on_summed_batch(config, task, inner, state, steps), 1):
        state = taken.state
        tokens += taken.tokens
        took_s = [step_s(timing, *each) for each in zip(islands, rngs, strict=True)]
        now_s, computed_s = now_s + max(took_s) + ring_s, computed_s + sum(took_s)
        curve.averages.see(t, lambda now=state: fragments_of(layout, now))
        if t < steps and curve.due(t):
            curve.look(t, now_s, tokens, fragments_of(layout, state))
    measured: dict[str, object] = {
        "tokens_trained": tokens,
        "tokens_merged": tokens,
        "tokens_discarded": 0,
        "tokens_lost": 0,
        "tokens_outstanding": 0,
        "merges": steps,
        "mean_participants": float(len(islands)),
        "goodput": computed_s / (len(islands) * now_s),
        "uptime": 1.0,
        "faults": 0,
        "failures": {},
        "recovery_s": [],
        "max_merge_gap_s": now_s / steps,
        "up_bytes_per_token": len(islands) * steps * ring_bytes / tokens,
        "down_bytes_per_token": len(islands) * steps * ring_bytes / tokens,
        "rejected_contributions": 0,
        "effective_overlap": 0.0,
    }
    return curve.ended(config, steps, now_s, measured, fragments_of(layout, state))
