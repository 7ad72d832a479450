"""The syncer's clock."""

from __future__ import annotations

import time


class Clock:
    """Seconds since 1970 by the wall clock at the start, and steady from there.

    Steady, so that no correction of the machine's clock reaches the rules; by the wall clock, so
    that a syncer that comes back, on whatever machine, goes on where the one before stopped.
    """

    def __init__(self, not_before_s: float = 0.0) -> None:
        """`not_before_s`: what was read last, below which it never falls."""
        self._ahead_s = max(time.time(), not_before_s) - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_s
