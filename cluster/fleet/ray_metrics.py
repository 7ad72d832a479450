"""The metrics of a run on the pages of Ray's metrics agents, for a Prometheus that scrapes those.

Ray puts `ray_` before each name. `archipelago dashboards` and `archipelago manifest kuberay` write
the relabelling that takes it off again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ray.util.metrics import Gauge

from cluster.fleet.metrics import METRICS
from cluster.status import RunStatus

EVERY_S = 4.0
"""Seconds between two times that all values are set.

Ray reports every 10 s (`RAY_metrics_report_interval_ms`), and only series that were set since the
last report. So the series of an island that has left end by themselves.
"""


class RayMetrics:
    """The metrics of one run as gauges of Ray; the keeper's thread calls it at each look.

    Counters are gauges too, because a fleet that takes a run over continues with their totals.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._set_s = now_s, -EVERY_S
        self._gauges = {
            metric.full_name: Gauge(metric.full_name, metric.help, ("run", *metric.labels))
            for metric in METRICS
        }

    def look(self, status: RunStatus) -> None:
        """Set all values from a status, at most every `EVERY_S` seconds."""
        if self._now_s() - self._set_s < EVERY_S:
            return
        self._set_s = self._now_s()
        for metric in METRICS:
            gauge, names = self._gauges[metric.full_name], ("run", *metric.labels)
            for labels, value in metric.read(status):
                gauge.set(value, dict(zip(names, (status["run"], *labels), strict=True)))
