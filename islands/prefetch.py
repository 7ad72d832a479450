"""A batch is made while the step before it is computed: the same batches, in the same order."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from coordinator.protocol import Lease
from islands.corpus import Starved
from islands.task import Batch, StreamLike


class Ahead(NamedTuple):
    """A batch that nobody has consumed yet, where it ends, and how many windows it has."""

    batch: Batch
    cursor: Lease
    windows: int


class Prefetched:
    """A stream, read by a thread of its own one batch ahead; `cursor` and `remaining` are those of
    whoever consumes, so that a batch that was made and not consumed is read again by whoever comes
    next.

    For one consumer, like the stream. What the stream raises is raised where its batch is wanted.
    """

    def __init__(self, stream: StreamLike) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._thread = ThreadPoolExecutor(1, "data")
        self._ahead: Future[Ahead | None] | None = None
        self._cursor: Lease | None = None
        self._left = stream.remaining

    @property
    def batch_size(self) -> int:
        """Windows in each batch."""
        return self._stream.batch_size

    @property
    def cursor(self) -> Lease:
        """The lease read last, with the windows consumed of it so far."""
        if self._cursor is not None:
            return self._cursor
        with self._lock:
            return self._stream.cursor  # nothing was ever made: it says what is wrong

    @property
    def remaining(self) -> int:
        """Windows left in the leases held, of which one batch may be made already. Nobody is
        waited for."""
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
        """The next batch; `Starved` if the leases held do not fill one."""
        ahead, self._ahead = self._ahead, None
        made = None if ahead is None else ahead.result()
        if made is None:  # there was too little when it was tried
            made = self._make()
        if made is None:
            return self._stream.next()  # `Starved`, in its own words
        self._cursor, self._left = made.cursor, self._left - made.windows
        self._begin()
        return made.batch

    def _begin(self) -> None:
        """Make the next batch, unless one is made or being made."""
        if self._ahead is None or (self._ahead.done() and self._is_none()):
            self._ahead = self._thread.submit(self._make)

    def _is_none(self) -> bool:
        assert self._ahead is not None
        return self._ahead.exception() is None and self._ahead.result() is None

    def _make(self) -> Ahead | None:
        """None if there is too little for one; then nothing is consumed."""
        with self._lock:
            before = self._stream.remaining
            try:
                batch = self._stream.next()
            except Starved:
                return None
            return Ahead(batch, self._stream.cursor, before - self._stream.remaining)
