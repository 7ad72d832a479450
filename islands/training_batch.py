"""A batch with the shape of a training batch, and whether a host may read only its own rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from islands.data.segments import examples_in, predicted
from islands.task import Batch, Task
from islands.user_lines import WRAPPED

OURS = f"{__package__}."
"""The beginning of the names of this package's modules."""
COUNTED_BY_SHAPE = (predicted, examples_in)
"""The functions `Task.tokens` that read no values of a batch."""


def training_batch(task: Task, batch_size: int) -> Batch:
    """Return a held-out batch of `batch_size` rows, as a step gets them.

    A held-out part that has fewer rows is repeated if a helper of ours cuts it. A batch of the
    user's own is returned as it is: its first axis may be another one.
    """
    batch: Any = task.heldout(batch_size)[0]
    made_by: Any = getattr(task.heldout, WRAPPED, task.heldout)
    if not str(getattr(made_by, "__module__", "")).startswith(OURS):
        return batch
    return jax.tree.map(lambda leaf: leaf[np.arange(batch_size) % len(leaf)], batch)


def reads_own_rows(task: Task) -> bool:
    """Return whether each host of an island may read only its own rows of a batch.

    The other rows are zeros then, and a function of the user's own would count those zeros.
    """
    return getattr(task.tokens, WRAPPED, task.tokens) in COUNTED_BY_SHAPE
