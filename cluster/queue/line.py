"""The connection of a job to the queue over Ray."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import RayError

from cluster.fleet.queue_message import RunMessage
from cluster.queue.actor import start_queue
from cluster.queue.desk import AnswerMessage
from cluster.queue.place import QueueLine
from coordinator.errors import Unreachable

log = logging.getLogger("archipelago.queue")
ANSWER_S = 10.0
"""Timeout of a question, in seconds."""


class RayQueueLine(QueueLine):
    """The connection to the queue actor, which is started if it is not there."""

    def __init__(self) -> None:
        self._queue: Any = None

    def ask(self, message: RunMessage, admitted: bool) -> AnswerMessage:
        """Ask whether a run may start.

        Errors: `Unreachable` if the queue does not answer.
        """
        try:
            if self._queue is None:
                self._queue = start_queue()
            return ray.get(self._queue.ask.remote(message, admitted), timeout=ANSWER_S)
        except RayError as error:
            self._queue = None  # if it was ended for good, another one is started
            raise Unreachable(type(error).__name__) from error

    def leave(self, run: str) -> None:
        """Leave the queue; a silent job has left after a while, too."""
        try:
            if self._queue is not None:
                ray.get(self._queue.leave.remote(run), timeout=ANSWER_S)
        except RayError as error:
            log.info("the queue does not answer: %s", type(error).__name__)
