"""The waits of an island for payloads of publications, bounded so that later offers get through.

A payload may take long: a lost transfer is repeated after minutes. Without a bound, such payloads
would hold all threads of the offers, and the shards would keep the payloads of all later ones.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

from coordinator.protocol import Fragment

LAST_S = 1.0
"""The longest wait in seconds of the only thread that does not wait yet."""


class PayloadWaits:
    """The fragments whose payloads an island waits for at present; usable on any thread."""

    def __init__(self, threads: int) -> None:
        """`threads`: the number of threads of offers, at least 2; one is free within `LAST_S`."""
        self._threads, self._waiting, self._lock = threads, set[Fragment](), Lock()

    @contextmanager
    def of(self, fragment: Fragment) -> Generator[float]:
        """Yield the longest wait in seconds for a payload of a fragment; infinite if there is none.

        It is 0 while another thread waits for an older version of the same fragment: the learner
        then asks for all versions that it lacks at once.
        """
        with self._lock:
            is_first = fragment not in self._waiting
            is_last = len(self._waiting) >= self._threads - 1
            if is_first:
                self._waiting.add(fragment)
        if not is_first:
            yield 0.0
            return
        try:
            yield LAST_S if is_last else math.inf
        finally:
            with self._lock:
                self._waiting.remove(fragment)
