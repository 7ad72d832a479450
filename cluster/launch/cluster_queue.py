"""The queue of a cluster, asked from a terminal."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from cluster.launch.connect import connect
from cluster.queue.actor import QUEUE_SPACE, find_queue
from cluster.queue.queue_status import QueueStatus
from cluster.queue.quotas import read_quotas
from cluster.queue.ray_side import save_quotas
from coordinator.errors import UserMistake

ANSWER_S = 10.0
"""Timeout of the queue, in seconds."""
NOT_THERE = "it starts with the first submitted run"


def queue_of_cluster(address: str, new_quotas: Path | None = None) -> QueueStatus:
    """Return the table of a cluster's queue, after setting quotas from a file if one is given.

    Errors: `UserMistake` if the file is wrong, or the cluster or its queue cannot be reached.
    """
    quotas = None if new_quotas is None else read_quotas(new_quotas)
    with redirect_stdout(sys.stderr):  # Ray prints news of its nodes, also at shutdown
        connect(address, QUEUE_SPACE)
        try:
            if quotas is not None:
                save_quotas(quotas)
            queue: Any = find_queue()
            if queue is None:
                return QueueStatus(runs=[], quotas=[], trouble=NOT_THERE)
            return ray.get(queue.show.remote(), timeout=ANSWER_S)
        except RayError as error:
            raise UserMistake(
                f"the queue of the cluster at {address} does not answer: {type(error).__name__}; "
                "Ray restarts it, so try again in a moment"
            ) from error
        finally:
            ray.shutdown()
