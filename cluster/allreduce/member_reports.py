"""The reports of one island in rings: how far it is, and what its time went to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from coordinator.protocol import Lease, Life, Progress, Report, Vitals

REPORT_S = 0.5
"""Between two reports of an island."""
STEP_SMOOTHING = 0.2


class MemberReports:
    """The progress and the vitals of one island, reported now and then."""

    def __init__(self, report: Callable[[Report, Vitals], None]) -> None:
        """`report`: sends a report."""
        self._send = report
        self._vitals, self._progress = Vitals(float("nan")), Progress(0, 0, Lease(0))
        self._step_s = self._reported_s = 0.0

    def stepped(self, tokens: int) -> None:
        """Count a step of this island's share of a batch, which had so many tokens."""
        done = self._progress
        self._progress = Progress(done.steps + 1, done.tokens + tokens, Lease(0))

    def took(self, step_s: float) -> None:
        """Let a step of so many seconds count towards the seconds of a step."""
        self._step_s += STEP_SMOOTHING * (step_s - self._step_s) if self._step_s else step_s

    def spent(self, loss: float | None = None, **seconds: float) -> None:
        """Add seconds to the fields of `Vitals` with these names. `loss`: the newest one."""
        now = self._vitals
        more = {key: getattr(now, key) + each for key, each in seconds.items()}
        self._vitals = replace(now, loss=now.loss if loss is None else loss, **more)

    def report(self, life: Life, *, always: bool) -> None:
        """Send a report, if the last one was long enough ago, or `always`."""
        now_s = time.perf_counter()
        if always or now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            self._send(Report(life, self._progress, self._step_s), self._vitals)
