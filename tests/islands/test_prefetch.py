"""A prefetched stream behaves like the stream that it reads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.protocol import Lease
from islands.corpus import Starved, Stream
from islands.prefetch import Prefetched
from islands.task import Batch
from tests.islands.test_corpus import LEASE, counting
from tests.live.cli import until

WAIT_S = 60.0
CORPUS = counting()


def stream(batch_size: int) -> Stream:
    return Stream(CORPUS, batch_size, seed=7)


@given(
    batch_size=st.integers(1, 9),
    calls=st.lists(st.one_of(st.just(-1), st.integers(0, 40)), max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_prefetched_stream_matches_its_stream_for_any_calls(
    batch_size: int, calls: Sequence[int]
) -> None:
    """A call of -1 reads the next batch; any other number adds a lease."""
    plain, ahead = stream(batch_size), Prefetched(stream(batch_size))
    for call in calls:
        if call >= 0:
            lease = Lease(call, call % LEASE)
            try:
                plain.add(lease)
            except ValueError:
                continue  # still held here; a batch ahead may have released it
            ahead.add(lease)
        else:
            try:
                wanted = plain.next()
            except Starved as starved:
                with pytest.raises(Starved, match=str(starved).split(":")[0]):
                    ahead.next()
            else:
                np.testing.assert_array_equal(ahead.next(), wanted)
        if plain.leases:
            assert ahead.remaining == plain.remaining
            if plain.cursor != ahead.cursor:  # the next one was added after one was read
                assert (ahead.cursor.start, plain.cursor.start) == (LEASE, plain.cursor.start)


class Slow:
    """A stream that makes a batch only when it is allowed to."""

    def __init__(self, inner: Stream) -> None:
        self._inner, self.may, self.made = inner, threading.Semaphore(0), 0
        self.raises: Exception | None = None

    @property
    def batch_size(self) -> int:
        return self._inner.batch_size

    def add(self, lease: Lease) -> None:
        self._inner.add(lease)

    def next(self) -> Batch:
        if self.raises is not None:
            raise self.raises
        assert self.may.acquire(timeout=WAIT_S)
        batch = self._inner.next()
        self.made += 1
        return batch

    @property
    def cursor(self) -> Lease:
        return self._inner.cursor

    @property
    def remaining(self) -> int:
        return self._inner.remaining


def test_prefetches_exactly_one_batch() -> None:
    slow = Slow(stream(2))
    ahead = Prefetched(slow)
    slow.may.release(10)
    ahead.add(Lease(3))
    until(lambda: slow.made == 1)
    assert ahead.cursor == Lease(3, 0), "it has not been consumed"
    assert ahead.remaining == LEASE
    ahead.next()
    until(lambda: slow.made == 2)
    assert (ahead.cursor, ahead.remaining) == (Lease(3, 2), LEASE - 2)
    ahead.next()
    ahead.next()
    assert (ahead.cursor, ahead.remaining) == (Lease(3, LEASE), 0)
    with pytest.raises(Starved, match="2 windows wanted, 0 left"):
        ahead.next()
    ahead.add(Lease(4))
    until(lambda: slow.made == 4)
    assert (ahead.cursor, ahead.remaining) == (Lease(3, LEASE), LEASE)


def test_stream_error_is_raised_when_the_batch_is_read() -> None:
    slow = Slow(stream(2))
    slow.raises = OSError("the disk is gone")
    ahead = Prefetched(slow)
    ahead.add(Lease(3))
    assert ahead.remaining == LEASE
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            ahead.next()


def test_without_a_lease_raises_as_its_stream_does() -> None:
    ahead = Prefetched(stream(2))
    assert ahead.remaining == 0
    with pytest.raises(Starved, match="has no cursor"):
        ahead.cursor  # noqa: B018
    with pytest.raises(Starved, match="2 windows wanted"):
        ahead.next()


def test_thread_ends_with_the_stream() -> None:
    before = {*threading.enumerate()}
    ahead = Prefetched(stream(2))
    ahead.add(Lease(3))
    ahead.next()
    mine = {*threading.enumerate()} - before
    assert len(mine) == 1
    del ahead
    until(lambda: not any(thread.is_alive() for thread in mine))


HANGS = """
from coordinator.protocol import Lease
from islands.prefetch import Prefetched
from tests.islands.test_prefetch import Slow, stream
ahead = Prefetched(Slow(stream(2)))
ahead.add(Lease(3))
print("over")
"""


@pytest.mark.long
def test_hanging_stream_does_not_block_process_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S - 5,
    )
    assert (done.returncode, done.stdout) == (0, "over\n")
