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
    """Moments for a learner that joins: the leaves copied so far, and all of them once they are.

    `number`: counts the donations of this process. The other hosts of the island keep their copies
    under it.
    """

    number: int
    leaves: list[NDArray[Any]]
    given: Future[Donation | None]


class Donations:
    """The donations of a learner, one at a time; all who ask meanwhile get the same one.

    The mailbox's lock guards them: each method is one critical section, and takes the lock itself.
    """

    def __init__(self, lock: threading.Condition, state: Callable[[], LearnerState | None]) -> None:
        """`state`: of the life that is lived; it is read with the lock held."""
        self._lock, self._state = lock, state
        self._count = 0  # in all lives
        self._asked: Donation | None = None

    def ask(self, life: Life) -> Donation | None:
        """Ask for this life's moments; None if it is not lived."""
        with self._lock:
            if not self._is_lived(life):
                return None
            if self._asked is None:
                self._count += 1
                self._asked = Donation(self._count, [], Future())
                self._lock.notify_all()
            return self._asked

    def copied(self, life: Life) -> tuple[int, float]:
        """Return how many leaves of its moments this life has copied, and the seconds of its
        steps."""
        with self._lock:
            state, asked = self._state(), self._asked
            step_s = 0.0 if state is None else state.step_s
            return len(asked.leaves) if self._is_lived(life) and asked is not None else 0, step_s

    def asked(self) -> tuple[Donation, float] | None:
        """Return the moments that are asked for, and the seconds of a step; None if none are."""
        with self._lock:
            if (state := self._state()) is None or self._asked is None:
                return None
            return self._asked, state.step_s

    def give(self, donation: Donation) -> None:
        """Give the moments to whoever asked; all leaves are copied."""
        with self._lock:
            if self._asked is donation:
                self._asked = None
                donation.given.set_result(donation)

    def end(self) -> None:
        """Give nothing to whoever asked: the life is over."""
        with self._lock:
            if self._asked is not None:
                self._asked.given.set_result(None)
            self._asked = None

    def _is_lived(self, life: Life) -> bool:
        state = self._state()
        return state is not None and state.life == life
