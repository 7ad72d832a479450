"""Calls of a storage that may hang: each has a timeout, and a new one waits for the one before.

A storage that hangs raises no error, and the operating system may block its caller for hours. So
each call runs on a thread of its own, one after the other. A call that exceeds the timeout is given
up: its thread stays with it, and nothing else is called until it has ended. So there is at most one
such thread, and a late write never replaces a newer one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from cluster.tasks import heard

log = logging.getLogger("archipelago.depot")
SILENCE_S = 10.0
"""The timeout of one call, in seconds."""
T = TypeVar("T")


class LimitedCalls:
    """The calls of one storage; several threads may call it."""

    def __init__(self, limit_s: float | None = None) -> None:
        """Begin without a call; `limit_s`: the timeout in seconds, by default `SILENCE_S`."""
        self._limit_s = SILENCE_S if limit_s is None else limit_s
        self._turn = threading.Lock()  # held by one call until it has ended or is given up
        self._since = ""  # when the last call began
        self._late: Future[Any] | None = None  # the last call that was given up

    def call(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which must not need a lock of its caller.

        Errors: `TimeoutError`, which is an `OSError`, if there is no result in time, or if an
        earlier call was given up and has not ended; the errors of `call`.
        """
        if not self._turn.acquire(timeout=self._limit_s):
            raise self._silent()
        try:
            if self._late is not None and not self._late.done():
                raise self._silent()
            self._late, self._since = None, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            job = Future[T]()
            threading.Thread(target=_run, args=(job, call), name="storage", daemon=True).start()
            wait({job}, self._limit_s)
            if job.done():
                return job.result()
            self._late = job
            heard(job, _ended_late)
            raise self._silent()
        finally:
            self._turn.release()

    def _silent(self) -> TimeoutError:
        return TimeoutError(f"the storage has not answered since {self._since}")


def _run(job: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        job.set_exception(error)
    else:
        job.set_result(result)


def _ended_late(error: BaseException) -> None:
    log.error("a call of the storage that was given up has failed: %s", error)
