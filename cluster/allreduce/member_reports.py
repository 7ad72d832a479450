"""The reports of an island in rings: its progress, and how it spent its time."""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.protocol import Lease, Life, Progress, Report, Vitals
from islands.activity_clock import ActivityClock
from islands.time_budget import OF_VITALS

REPORT_S = 0.5
"""Seconds between two reports of an island."""
STEP_SMOOTHING = 0.2
"""The weight of the newest step in the moving average of the step time."""


class MemberReports:
    """The periodic reports of the progress and the vitals of one island."""

    def __init__(self, report: Callable[[Report, Vitals], None], clock: ActivityClock) -> None:
        """Begin at zero. `report`: sends a report. `clock`: the time budget of this process."""
        self._send, self._clock = report, clock
        self._loss, self._progress = float("nan"), Progress(0, 0, Lease(0))
        self._step_s = self._reported_s = 0.0

    def stepped(self, tokens: int) -> None:
        """Count a step; `tokens`: in this island's share of the batch."""
        progress = self._progress
        self._progress = Progress(progress.steps + 1, progress.tokens + tokens, Lease(0))

    def took(self, step_s: float) -> None:
        """Add a step of `step_s` seconds to the moving average of the step time."""
        self._clock.stepped(step_s)
        self._step_s += STEP_SMOOTHING * (step_s - self._step_s) if self._step_s else step_s

    def spent(self, loss: float | None = None, **seconds: float) -> None:
        """Account the time since the last call, or since the last activity ended.

        `seconds`: by the names of `Vitals`; the rest is copying. `loss`: that of a new step.
        """
        if loss is not None:
            self._loss = loss
            self._clock.learned(loss)
        parts = {key: seconds[name] for key, name in OF_VITALS.items() if name in seconds}
        self._clock.split(parts)

    def report(self, life: Life, *, always: bool) -> None:
        """Send a report if the last one is at least `REPORT_S` old, or if `always`."""
        now_s = time.perf_counter()
        if always or now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            self._send(Report(life, self._progress, self._step_s), self._clock.vitals(self._loss))
