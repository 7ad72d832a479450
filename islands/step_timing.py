"""The timing of a learner's steps; one may run on the devices while the next is prepared.

Only the training thread measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from islands.inner import StepMeasures
from islands.losses import Metrics

PACE_DRIFT = 1.01
"""The factor per step by which a slowed learner forgets its quickest step, whose pace it keeps.

So it idles less, and not more, if other processes take its cores for a while.
"""


@dataclass(slots=True)
class _Running:
    """A step that the devices compute."""

    loss: jax.Array | float
    metrics: Metrics
    began_s: float
    """Time at which it began."""
    counted_s: float = 0.0
    """Seconds of it that are counted already."""


class StepTiming:
    """The step on the devices, and the time that steps take.

    `loss`: of the last step whose loss was read. `quickest_s`: seconds of the quickest recent step,
    infinite before the first step of a life.
    """

    def __init__(
        self, now_s: Callable[[], float], learned: Callable[[float, Metrics], None]
    ) -> None:
        """Begin without a step. `learned`: is called with each step's loss and metrics, once."""
        self._now_s, self._learned = now_s, learned
        self._running: _Running | None = None
        self._computed_s = 0.0  # since it was last taken
        self.loss, self.quickest_s = math.nan, math.inf

    def begin(self) -> None:
        """Begin a life, in which no step has been taken."""
        self._running, self.quickest_s = None, math.inf

    @property
    def running(self) -> bool:
        """Whether the devices may be computing a step whose loss is not read yet."""
        return self._running is not None

    @property
    def computing(self) -> bool:
        """Whether the devices compute a step at this moment; reading it does not block."""
        if self._running is None or not isinstance(self._running.loss, jax.Array):
            return False  # a loop of the user's own has ended its step
        loss: Any = self._running.loss
        return not loss.is_ready()

    def started(self, measures: StepMeasures, began_s: float) -> None:
        """Record that a step was dispatched."""
        self._running = _Running(measures.loss, measures.metrics, began_s)

    def settle(self, fed_s: float = 0.0) -> float:
        """Wait until the devices have computed their step, and read its loss.

        Returns the seconds that they computed it; 0 if there is none. `fed_s`: seconds of that time
        that were spent on data; the step may have been over before.
        """
        if (running := self._running) is None:
            return 0.0
        self._running = None
        self.loss = float(running.loss)
        self._learned(self.loss, running.metrics)
        computed_s = max(0.0, self._now_s() - running.began_s - fed_s)
        self._computed_s += computed_s - running.counted_s
        self.quickest_s = min(computed_s, PACE_DRIFT * self.quickest_s)
        return computed_s

    def take_computed_s(self, now_s: float) -> float:
        """Return the seconds that the devices have computed since the last call of this method.

        They include the time so far of the step that is under way.
        """
        if (running := self._running) is not None:
            self._computed_s += now_s - running.began_s - running.counted_s
            running.counted_s = now_s - running.began_s
        computed_s, self._computed_s = self._computed_s, 0.0
        return computed_s
