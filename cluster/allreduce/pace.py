"""The pace of an island that is slowed down on purpose."""

from __future__ import annotations

import time

from cluster.config.schema import IslandGroup

PACE_DRIFT = 1.01
"""The growth of the quickest step time per step, as in a decoupled learner (`islands.trainer`)."""


class StepPace:
    """The idling that makes an island's steps as slow as its configuration or a fault demands."""

    def __init__(self, group: IslandGroup) -> None:
        self._group = group
        self._quickest_s = float("inf")

    def idle(self, computed_s: float, before_s: float, drag: float) -> float:
        """Idle before a step ends, and return the seconds spent.

        `computed_s`: seconds that the step has computed. `before_s`: when it began. `drag`: the
        factor by which a fault plan slows the step.
        """
        self._quickest_s = min(computed_s, PACE_DRIFT * self._quickest_s)
        slowed = drag / self._group.speed
        began_s = time.perf_counter()
        idle_s = slowed * self._quickest_s - computed_s if slowed > 1 else 0.0
        time.sleep(max(0.0, idle_s, before_s + self._group.step_s - began_s))
        return time.perf_counter() - began_s
