"""The share of each batch that a member of a ring trains on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from cluster.allreduce.ring_messages import RingDecision
from coordinator.protocol import Lease
from islands.task import Task


def member_batches(
    task: Task, turn: RingDecision, windows: int, lease_windows: int
) -> Callable[[], Any]:
    """Return a function that returns this member's share of the next batch of the ring.

    All members read the same sequence of data, from the position of the training state on. So the
    ring trains on the batches that a single process would. `windows`: in a batch of the whole ring.
    """
    stream = task.stream(windows)
    number, start = divmod(turn.held.windows, lease_windows)
    stream.add(Lease(number, start))
    own_rows = slice(turn.rank * windows // turn.members, (turn.rank + 1) * windows // turn.members)

    def batch() -> Any:
        nonlocal number
        while stream.remaining < windows:
            number += 1
            stream.add(Lease(number))
        return jax.tree.map(lambda leaf: leaf[own_rows], stream.next())

    return batch
