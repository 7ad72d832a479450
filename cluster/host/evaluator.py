"""Judges the syncer's model, never a learner's: held-out loss of the public fragments.

On one core, unless `monitor.evaluate_on` gives it more, or an accelerator.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from cluster.config.schema import Config
from cluster.host.build import task_of
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout, put_leaf, sew, take
from coordinator.protocol import Fragment
from islands.adopt import layout_of
from islands.task import Batch, Params
from islands.trainable import of_loss, of_parameters, shapes_of


class Judged(NamedTuple):
    """How far an evaluator has got: batches in its life, the seconds that the longest took, and
    those that all took but the first, which is compiled. `look`, `last`: batches of a look, and of
    a summary, if it must find out about the first model too."""

    batches: int
    longest_s: float
    spent_s: float = 0.0
    look: int = 0
    last: int = 0


SAMPLE_WINDOWS = 64
"""Held-out windows judged now and then, while the islands need the cores."""
FINAL_WINDOWS = 512
"""Held-out windows judged at the beginning and at the end."""
EVALUATION_BATCH = 16


class Evaluator:
    """Makes the initial model and judges models, off the islands' devices."""

    def __init__(self, config: Config) -> None:
        """Errors: `UserMistake` if the task cannot be trained: the code may be another one here
        than where the run was started."""
        self._config = config
        self._task = task = task_of(config)
        self._batches = task.heldout(EVALUATION_BATCH)
        shapes = shapes_of(task)
        if problems := of_parameters(task, shapes) or of_loss(task, shapes, self._batches[0]):
            raise UserMistake("\n".join(problems))
        self._layout = layout_of(task, config.sync.fragments, shapes)
        self._structure = jax.tree.structure(shapes)
        self._loss = jax.jit(task.loss)
        self._judged = Judged(0, 0.0, 0.0, self._few, 2 * self._count(FINAL_WINDOWS) + self._few)

    @property
    def judged(self) -> Judged:
        """How far it is; also while it judges."""
        return self._judged

    @property
    def layout(self) -> Layout:
        return self._layout

    def initial(self) -> list[Flat]:
        """The run's initial model, from its seed, as fragments."""
        seed, layout, draw = self._config.run.seed, self._layout, self._task.init_leaf
        if draw is None:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self._task.init(seed))]
            return [take(layout, Fragment(p), leaves) for p in range(len(layout.fragments))]
        flats = [np.empty(size, np.float32) for size in layout.sizes]
        for number, leaf in enumerate(layout.leaves):  # room for one beside the fragments
            put_leaf(layout, number, np.asarray(draw(leaf.path, seed)), flats)
        return flats

    @cached_property
    def initial_loss(self) -> float:
        """Of the initial model."""
        return self.loss(self.initial())

    def sample(self, flats: Sequence[Flat]) -> float:
        """A rougher figure, for a run that goes on: over windows spread evenly over those of
        `loss`, always the same ones."""
        count, few = self._count(FINAL_WINDOWS), self._few
        return self._mean(flats, [i * count // few for i in range(few)])

    @property
    def _few(self) -> int:
        """Batches of a sample."""
        return min(self._count(FINAL_WINDOWS), self._count(SAMPLE_WINDOWS))

    def loss(self, flats: Sequence[Flat], windows: int = FINAL_WINDOWS) -> float:
        """Held-out loss in nats per token, over so many windows or all there are."""
        return self._mean(flats, range(self._count(windows)))

    def _count(self, windows: int) -> int:
        return max(1, min(len(self._batches), windows // EVALUATION_BATCH))

    def _mean(self, flats: Sequence[Flat], batches: Sequence[int]) -> float:
        params = jax.tree.unflatten(self._structure, sew(self._layout, flats))
        return sum(self._judge(params, self._batches[i]) for i in batches) / len(batches)

    def _judge(self, params: Params, batch: Batch) -> float:
        began_s = time.monotonic()
        loss = float(self._loss(params, batch))
        took_s, before = time.monotonic() - began_s, self._judged
        self._judged = before._replace(
            batches=before.batches + 1,
            longest_s=max(before.longest_s, took_s),
            spent_s=before.spent_s + (took_s if before.batches else 0.0),
        )
        return loss
