"""The reports of an island in rings: its progress, and how it spent its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from coordinator.protocol import Lease, Life, Progress, Report, Vitals

REPORT_S = 0.5
"""Seconds between two reports of an island."""
STEP_SMOOTHING = 0.2
"""The weight of the newest step in the moving average of the step time."""


class MemberReports:
    """The periodic reports of the progress and the vitals of one island."""

    def __init__(self, report: Callable[[Report, Vitals], None]) -> None:
        """Begin at zero. `report`: sends a report."""
        self._send = report
        self._vitals, self._progress = Vitals(float("nan")), Progress(0, 0, Lease(0))
        self._step_s = self._reported_s = 0.0

    def stepped(self, tokens: int) -> None:
        """Count a step; `tokens`: in this island's share of the batch."""
        progress = self._progress
        self._progress = Progress(progress.steps + 1, progress.tokens + tokens, Lease(0))

    def took(self, step_s: float) -> None:
        """Add a step of `step_s` seconds to the moving average of the step time."""
        self._step_s += STEP_SMOOTHING * (step_s - self._step_s) if self._step_s else step_s

    def spent(self, loss: float | None = None, **seconds: float) -> None:
        """Add seconds to the fields of `Vitals` with these names. `loss`: a new latest loss."""
        vitals = self._vitals
        sums = {key: getattr(vitals, key) + each for key, each in seconds.items()}
        self._vitals = replace(vitals, loss=vitals.loss if loss is None else loss, **sums)

    def report(self, life: Life, *, always: bool) -> None:
        """Send a report if the last one is at least `REPORT_S` old, or if `always`."""
        now_s = time.perf_counter()
        if always or now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            self._send(Report(life, self._progress, self._step_s), self._vitals)
