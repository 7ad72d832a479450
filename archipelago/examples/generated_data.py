"""A data source that reads no files, `task.target = "archipelago.examples.generated_data:task"`.

Each window is computed from its number, so it is the same on every machine and after a restart.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import archipelago as ap


class Generated:
    """Batches that `make` computes from the numbers of their windows."""

    def __init__(self, batch_size: int, lease_windows: int, make: Any) -> None:
        self.batch_size, self._length, self._make = batch_size, lease_windows, make
        self.cursor: Any = None
        self._ahead: list[ap.Lease] = []  # for each window the cursor behind it

    def add(self, lease: ap.Lease) -> None:
        """Queue the windows of a lease; those before its start are consumed already."""
        self.cursor = self.cursor or lease
        self._ahead += [ap.Lease(lease.number, n + 1) for n in range(lease.start, self._length)]

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        return len(self._ahead)

    def next(self) -> ap.Batch:
        """Return the next batch, across leases if needed."""
        if self.remaining < self.batch_size:
            raise ap.Starved(f"{self.batch_size} windows wanted, {self.remaining} left")
        taken = [self._ahead.pop(0) for _ in range(self.batch_size)]
        self.cursor = taken[-1]
        return self._make([each.number * self._length + each.start - 1 for each in taken])


def points(numbers: Sequence[int], *seed: int, inputs: int) -> dict[str, Any]:
    """Return points, float32 [batch, inputs], and on which side of a plane each one is."""
    draws = [np.random.default_rng((*seed, number)).standard_normal(inputs) for number in numbers]
    x = np.stack(draws).astype(np.float32)
    return {"x": x, "y": (x.sum(axis=1) > 0).astype(np.int32)}


def task(data: ap.DataSpec, inputs: int = 8) -> ap.Task:
    """Return a logistic regression on points of this source."""

    def init(seed: int) -> Any:
        return {"w": jax.random.normal(jax.random.key(seed), (inputs, 2)), "b": jnp.zeros(2)}

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = batch["x"] @ params["w"] + params["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    def make(numbers: Sequence[int]) -> Any:
        return points(numbers, data.seed, 0, inputs=inputs)

    return ap.Task(
        name="generated",
        vocabulary=2,
        init=init,
        loss=loss,
        tokens=lambda batch: len(batch["y"]),
        stream=lambda batch_size: Generated(batch_size, data.lease_windows, make),
        heldout=lambda batch_size: [
            points(range(first, first + batch_size), data.seed, 1, inputs=inputs)
            for first in range(0, 512, batch_size)
        ],
        stacked=lambda path: False,
        embedding=lambda path: False,
    )
