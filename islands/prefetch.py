"""The prefetch of batches: one is made while the step before is computed, in the same order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

from coordinator.protocol import Lease
from islands.corpus import Starved
from islands.task import Batch, StreamLike


class Ahead(NamedTuple):
    """A batch that is not consumed yet, with the cursor at its end and its number of windows."""

    batch: Batch
    cursor: Lease
    windows: int


ReadJob: TypeAlias = tuple["Future[Ahead | None]", Callable[[], "Ahead | None"]]


def _work(jobs: SimpleQueue[ReadJob | None]) -> None:
    """Run jobs on a daemon thread, whose end is never awaited: a stream may wait forever."""
    while (job := jobs.get()) is not None:
        made, make = job
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised where the batch is requested
            made.set_exception(error)
        del job, made, make


class Prefetched:
    """A stream that a thread of its own reads one batch ahead, for one consumer.

    `cursor` and `remaining` are those of the consumer, so that a batch that was made and not
    consumed is read again by another learner. An exception of the stream is raised where its batch
    is wanted.
    """

    def __init__(self, stream: StreamLike) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._jobs: SimpleQueue[ReadJob | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._jobs,), name="data", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)
        self._ahead: Future[Ahead | None] | None = None
        self._cursor: Lease | None = None
        self._left = stream.remaining

    @property
    def batch_size(self) -> int:
        """Windows in each batch."""
        return self._stream.batch_size

    @property
    def cursor(self) -> Lease:
        """The lease read last, with the windows of it consumed so far."""
        if self._cursor is not None:
            return self._cursor
        with self._lock:
            return self._stream.cursor  # nothing was ever made: the stream reports what is wrong

    @property
    def remaining(self) -> int:
        """Windows left in the leases held, of which one batch may be made already.

        The property never waits.
        """
        return self._left

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held."""
        with self._lock:
            before = self._stream.remaining
            self._stream.add(lease)
            self._left += self._stream.remaining - before
            if self._cursor is None:
                self._cursor = self._stream.cursor
        self._begin()

    def next(self) -> Batch:
        """Return the next batch.

        Errors: `Starved` if the leases held do not fill one.
        """
        ahead, self._ahead = self._ahead, None
        made = None if ahead is None else ahead.result()
        if made is None:  # there was too little when it was tried
            made = _made(self._stream, self._lock)
        if made is None:
            return self._stream.next()  # raises `Starved` with the stream's message
        self._cursor, self._left = made.cursor, self._left - made.windows
        self._begin()
        return made.batch

    def _begin(self) -> None:
        """Make the next batch, unless one is made or being made."""
        if self._ahead is not None and not (self._ahead.done() and self._is_none()):
            return
        stream, lock = self._stream, self._lock  # not `self`, which must be collectable
        self._ahead = Future()
        self._jobs.put((self._ahead, lambda: _made(stream, lock)))

    def _is_none(self) -> bool:
        assert self._ahead is not None
        return self._ahead.exception() is None and self._ahead.result() is None


def _made(stream: StreamLike, lock: threading.Lock) -> Ahead | None:
    """Return the next batch; None if there is too little for one, and then nothing is consumed."""
    with lock:
        before = stream.remaining
        try:
            batch = stream.next()
        except Starved:
            return None
        return Ahead(batch, stream.cursor, before - stream.remaining)
