"""The syncer's clock."""

from __future__ import annotations

import time


class Clock:
    """The wall clock at the start, in seconds since 1970, counted on by the monotonic clock.

    A correction of the machine's clock therefore never reaches the rules. Because it starts from
    the wall clock, a syncer that is restarted on any machine continues where the one before
    stopped.
    """

    def __init__(self, not_before_s: float = 0.0) -> None:
        """Start at `not_before_s` or later: the last time that an earlier clock has returned."""
        self._ahead_s = max(time.time(), not_before_s) - time.monotonic()

    def __call__(self) -> float:
        """Return the present time in seconds."""
        return time.monotonic() + self._ahead_s
