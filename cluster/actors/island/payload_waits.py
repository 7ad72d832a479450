"""The waits of an island for payloads of publications, bounded so that later offers get through.

A payload may take long: a lost transfer is repeated after minutes. Without a bound, such payloads
would hold all threads of the offers, and the shards would keep the payloads of all later ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock

from coordinator.protocol import Fragment

LAST_S = 1.0
"""The longest wait in seconds of the only thread that does not wait yet."""


class PayloadWaits:
    """The fragments whose payloads an island waits for at present; usable on any thread."""

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`threads`: the number of threads of offers, at least 2; one is free within `LAST_S`."""
        self._threads, self._clock, self._lock = threads, clock, Lock()
        self._waiting = dict[Fragment, float]()  # when each wait began, in seconds

    @contextmanager
    def of(self, fragment: Fragment) -> Generator[float]:
        """Yield the longest wait in seconds for a payload of a fragment; infinite if there is none.

        It is 0 while another thread waits for an older version of the same fragment: the learner
        then asks for all versions that it lacks at once. It is also 0 while all other threads have
        waited for `LAST_S`: the link is full, and a transfer that is given up is sent twice.
        """
        now_s = self._clock()
        with self._lock:
            longest_s = self._longest_s(fragment, now_s)
            if longest_s > 0:
                self._waiting[fragment] = now_s
        try:
            yield longest_s
        finally:
            if longest_s > 0:
                with self._lock:
                    del self._waiting[fragment]

    def _longest_s(self, fragment: Fragment, now_s: float) -> float:
        if fragment in self._waiting:
            return 0.0
        if len(self._waiting) < self._threads - 1:
            return math.inf
        newest_s = max(self._waiting.values())
        return LAST_S if now_s - newest_s < LAST_S else 0.0
