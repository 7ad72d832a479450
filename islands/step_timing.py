"""The timing of a learner's steps, of which one may run on the devices while the next is prepared.

Only the training thread measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax

PACE_DRIFT = 1.01
"""A slowed learner keeps the pace of its quickest step, which it forgets by this factor a step: if
others take its cores for a while it idles less, and not more."""


@dataclass(slots=True)
class _Running:
    """A step that the devices are at.

    `began_s`: when it began. `counted_s`: the part of its time that is counted already.
    """

    loss: jax.Array
    began_s: float
    counted_s: float = 0.0


class StepTiming:
    """The step that the devices are at, and the time that steps take.

    `loss`: of the last step whose loss was read. `quickest_s`: of the steps of late, infinite
    before the first one of a life.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._running: _Running | None = None
        self._computed_s = 0.0  # since it was taken last
        self.loss, self.quickest_s = math.nan, math.inf

    def begin(self) -> None:
        """Begin a life, in which no step has been taken."""
        self._running, self.quickest_s = None, math.inf

    @property
    def running(self) -> bool:
        """Whether the devices may be at a step whose loss is not read yet."""
        return self._running is not None

    def started(self, loss: jax.Array, began_s: float) -> None:
        """Take in that a step was dispatched."""
        self._running = _Running(loss, began_s)

    def settle(self, fed_s: float = 0.0) -> float:
        """Wait until the devices have done the step that they are at, and read its loss.

        Returns for how long they have computed it, 0 if they are at none. `fed_s`: the part of that
        time that was spent on data; the step may have been over before.
        """
        if (running := self._running) is None:
            return 0.0
        self._running = None
        self.loss = float(running.loss)
        computed_s = max(0.0, self._now_s() - running.began_s - fed_s)
        self._computed_s += computed_s - running.counted_s
        self.quickest_s = min(computed_s, PACE_DRIFT * self.quickest_s)
        return computed_s

    def take_computed_s(self, now_s: float) -> float:
        """Return for how long the devices have computed since this was asked last, with what they
        have done until now of the step that they are at."""
        if (running := self._running) is not None:
            self._computed_s += now_s - running.began_s - running.counted_s
            running.counted_s = now_s - running.began_s
        computed_s, self._computed_s = self._computed_s, 0.0
        return computed_s
