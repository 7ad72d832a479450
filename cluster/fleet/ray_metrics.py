"""The metrics of a run on the pages of Ray's metrics agents, for a Prometheus that scrapes those.

Ray puts `ray_` before each name. `archipelago dashboards` and `archipelago manifest kuberay` write
the relabelling that takes it off again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ray.util.metrics import Gauge

from cluster.failures import in_short
from cluster.fleet.metrics import METRICS
from cluster.status import RunStatus

log = logging.getLogger("archipelago.fleet")
EVERY_S = 4.0
"""Seconds between two times that all values are set.

Ray reports every 10 s (`RAY_metrics_report_interval_ms`), and only series that were set since the
last report. So the series of an island that has left end by themselves.
"""


class RayMetrics:
    """The metrics of one run as gauges of Ray; the keeper's thread calls it at each look.

    Counters are gauges too, because a fleet that takes a run over continues with their totals.
    """

    def __init__(
        self,
        make: Callable[..., Gauge] = Gauge,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it. `make`: returns a gauge for a name, a help text and the names of labels."""
        self._make, self._now_s, self._set_s = make, now_s, -EVERY_S
        self._gauges: dict[str, Gauge] = {}
        self.trouble: str | None = None
        """The last exception of Ray's metrics, in one line; None if the last values were set."""

    def look(self, status: RunStatus) -> None:
        """Set all values from a status, at most every `EVERY_S` seconds.

        An exception is kept as `trouble`, so that it cannot end the run.
        """
        if self._now_s() - self._set_s < EVERY_S:
            return
        self._set_s = self._now_s()
        try:
            self._set_all(status)
        except Exception as error:
            if self.trouble is None:
                log.error("Ray's metrics failed", exc_info=error)
            self.trouble = in_short(f"monitor.ray_metrics fails: {type(error).__name__}: {error}")
        else:
            self.trouble = None

    def _set_all(self, status: RunStatus) -> None:
        for metric in METRICS:
            name, labels = metric.full_name, ("run", *metric.labels)
            if name not in self._gauges:
                self._gauges[name] = self._make(name, metric.help, labels)
            for values, number in metric.read(status):
                self._gauges[name].set(
                    number, dict(zip(labels, (status["run"], *values), strict=True))
                )
