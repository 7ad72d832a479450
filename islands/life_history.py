"""The lives that a learner has had, how the last one ended, and whether another may begin."""

from __future__ import annotations

import threading
from collections import deque

from coordinator.protocol import Life

LIVES_KEPT = 64
"""The newest lives that a learner keeps; messages about older ones have ended long ago."""


class LifeHistory:
    """The lives of one learner.

    The mailbox's lock guards it: each method is one critical section, and takes the lock itself.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self._lives = deque[Life](maxlen=LIVES_KEPT)
        self._ended, self._why = 0, ""  # the incarnation of the last life that is over
        self._staying = True
        self._broken: BaseException | None = None  # set by threads other than the training thread

    def add(self, life: Life) -> None:
        """Add a life that begins."""
        with self._lock:
            self._lives.append(life)

    def end(self, life: Life, why: str) -> None:
        """Record that this life is over."""
        with self._lock:
            self._ended, self._why = life.incarnation, why
            self._lock.notify_all()

    def leave(self) -> None:
        """Begin no other life."""
        with self._lock:
            self._staying = False
            self._lock.notify_all()

    def fail(self, error: BaseException) -> None:
        """Make the training thread raise an error of another thread of this learner."""
        with self._lock:
            self._broken = self._broken or error
            self._lock.notify_all()

    @property
    def broken(self) -> BaseException | None:
        """The exception that broke another thread of this learner."""
        with self._lock:
            return self._broken

    @property
    def staying(self) -> bool:
        """Whether this learner may begin another life."""
        with self._lock:
            return self._staying

    def had(self, life: Life) -> bool:
        """Return whether this is one of the last `LIVES_KEPT` lives of this learner."""
        with self._lock:
            return life in self._lives

    def outlive(self, life: Life) -> str:
        """Wait until this life, which may be about to begin, is over; return the reason."""
        with self._lock:
            self._lock.wait_for(lambda: self._ended >= life.incarnation)
            return self._why

    def leaves_within(self, for_s: float) -> bool:
        """Wait up to this many seconds for the order to leave; return whether it came."""
        with self._lock:
            return bool(self._lock.wait_for(lambda: not self._staying, for_s))

    def over_within(self, life: Life, for_s: float) -> bool:
        """Wait up to this many seconds for the end of this life; return whether it is over.

        The life may be about to begin.
        """
        with self._lock:
            return bool(self._lock.wait_for(lambda: self._ended >= life.incarnation, for_s))
