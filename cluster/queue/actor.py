"""The actor of the queue: one detached actor for each cluster, which Ray restarts.

It ends when there is no run any more, so that nothing is left on the cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from cluster.actors.directory import Actor, setup_logging
from cluster.actors.start import Home
from cluster.fleet.queue_message import RunMessage
from cluster.queue.desk import AnswerMessage, QueueDesk
from cluster.queue.queue_status import QueueStatus
from cluster.queue.ray_side import RayQueueCluster

log = logging.getLogger("archipelago.queue")
QUEUE, QUEUE_SPACE = "queue", "archipelago:queue"
"""The name of the actor and its namespace, which no run can have: names have no colon."""
LOOK_S = 2.0
"""Seconds between two looks."""
QUEUE_THREADS = 16
"""Threads of the process: no call takes long, but many jobs may wait."""


class QueueActor:
    """The queue of a cluster as a Ray actor; a thread of its own looks at the cluster."""

    def __init__(self) -> None:
        setup_logging()
        self._desk = QueueDesk(RayQueueCluster())
        threading.Thread(target=self._keep, name="queue", daemon=True).start()

    def ask(self, message: RunMessage, admitted: bool) -> AnswerMessage:
        """Return whether a run may start; the call is the heartbeat of its job."""
        return self._desk.ask(message, admitted)

    def leave(self, run: str) -> None:
        """Note that the job of a run asks no more."""
        self._desk.leave(run)

    def show(self) -> QueueStatus:
        """Return the table of the queue as of its last look."""
        return self._desk.show()

    def _keep(self) -> None:
        while True:
            if self._desk.is_idle:
                self._end()
            try:
                self._desk.look()
            except Exception as error:  # the head may be away; the next look decides again
                log.exception("a look of the queue has failed")
                self._desk.trouble(f"{type(error).__name__}: {error}")
            time.sleep(LOOK_S)

    def _end(self) -> None:
        """End this process for good; if Ray does not do it, the looks go on."""
        log.info("there is no run any more: the queue ends, and the next job starts another one")
        with suppress(RayError, ValueError):
            ray.kill(ray.get_actor(QUEUE, namespace=QUEUE_SPACE))


def start_queue() -> Actor:
    """Start the queue of the cluster near this process, or return it if it is there."""
    home = Home(QUEUE_SPACE, detached=True)
    kind: Any = ray.remote(QueueActor)
    options = {**home.options(QUEUE, {}), **home.near()}
    return kind.options(**options, num_cpus=0, max_concurrency=QUEUE_THREADS).remote()


def find_queue() -> Actor | None:
    """Return the queue of the cluster; None if no run was submitted yet."""
    try:
        return ray.get_actor(QUEUE, namespace=QUEUE_SPACE)
    except ValueError:
        return None
