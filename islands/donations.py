"""Donations: a life's optimizer moments, copied leaf by leaf for a learner that joins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from coordinator.protocol import Life
from islands.learner_life import LearnerState


@dataclass(frozen=True, slots=True, eq=False)
class Donation:
    """The moments of one life for a learner that joins."""

    number: int
    """Number of the donation in this process; other hosts keep their copies under it."""
    leaves: list[NDArray[Any]]
    """The leaves copied so far."""
    given: Future[Donation | None]
    """The future of the complete donation; None if the life is over first."""


class Donations:
    """The donations of a learner, one at a time; all callers meanwhile get the same one.

    The mailbox's lock guards them: each method is one critical section, and takes the lock itself.
    """

    def __init__(self, lock: threading.Condition, state: Callable[[], LearnerState | None]) -> None:
        """Create it; `state` returns the present life's state, and is called under the lock."""
        self._lock, self._state = lock, state
        self._count = 0  # over all lives
        self._asked: Donation | None = None

    def ask(self, life: Life) -> Donation | None:
        """Ask for this life's moments; None if it is not the present life."""
        with self._lock:
            if not self._is_lived(life):
                return None
            if self._asked is None:
                self._count += 1
                self._asked = Donation(self._count, [], Future())
                self._lock.notify_all()
            return self._asked

    def copied(self, life: Life) -> tuple[int, float]:
        """Return how many leaves of moments this life has copied, and its seconds per step."""
        with self._lock:
            state, donation = self._state(), self._asked
            step_s = 0.0 if state is None else state.step_s
            return (
                len(donation.leaves) if self._is_lived(life) and donation is not None else 0
            ), step_s

    def asked(self) -> tuple[Donation, float] | None:
        """Return the requested donation and the seconds per step; None if there is none."""
        with self._lock:
            if (state := self._state()) is None or self._asked is None:
                return None
            return self._asked, state.step_s

    def give(self, donation: Donation) -> None:
        """Complete the donation for all callers, once all leaves are copied."""
        with self._lock:
            if self._asked is donation:
                self._asked = None
                donation.given.set_result(donation)

    def end(self) -> None:
        """Release all callers without moments: the life is over."""
        with self._lock:
            if self._asked is not None:
                self._asked.given.set_result(None)
            self._asked = None

    def _is_lived(self, life: Life) -> bool:
        state = self._state()
        return state is not None and state.life == life
