"""The records of a run while it is running: `metrics.jsonl`, `events.jsonl`, trackers, Ray."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from cluster.config.schema import Config
from cluster.failures import in_short
from cluster.fleet.event_kinds import RunEvent
from cluster.fleet.metrics_row import interval_s, last_status, metrics_line
from cluster.fleet.ray_metrics import RayMetrics
from cluster.fleet.record_files import RecordFiles
from cluster.fleet.requests import Requests
from cluster.fleet.run_events import (
    InjectedFault,
    events_between,
    fault_events,
    scale_events,
)
from cluster.fleet.status_view import starting_status
from cluster.fleet.tracking import Trackers
from cluster.fleet.trouble_events import alert_events, with_open_alerts
from cluster.names import group_name
from cluster.status import EventStatus, RunStatus
from cluster.storage.files import json_text
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
EVENTS_SHOWN = 64
"""The newest events that a status has; a terminal that looks every few seconds misses none."""
EVENTS_READ = 4096
"""The newest events of an earlier fleet in which alerts are sought that are not over."""


class RunRecords:
    """The records of one run as a context manager; the keeper's thread calls it at each look.

    A fleet that takes a run over continues them from their last lines.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        faults: deque[InjectedFault],
        requests: Requests,
        now_s: Callable[[], float] = time.time,
        ray_metrics: RayMetrics | None = None,
    ) -> None:
        """Prepare the records.

        `faults`: injected faults that no event has yet; any thread adds some. `requests`: name the
        islands that the run should have. `ray_metrics`: for `monitor.ray_metrics`; None: new ones.
        """
        self._run_dir, self._config = run_dir, config
        self._files = RecordFiles(run_dir, config.monitor.metrics_mb)
        self._faults, self._requests, self._now_s = faults, requests, now_s
        self._before: RunStatus | None = None
        self._added_s = -math.inf  # the time of the last line of metrics.jsonl, since 1970
        self._wanted: dict[str, int] = {}
        self._trackers = Trackers()
        on_ray = config.monitor.ray_metrics
        self._ray_metrics = (ray_metrics or RayMetrics()) if on_ray else None
        self.recent: tuple[EventStatus, ...] = ()
        """The newest events, oldest first; also those of an earlier fleet."""

    def __enter__(self) -> RunRecords:
        """Read the last lines of an earlier fleet, and start the trackers."""
        before = self._files.last_status()
        events = self._files.last_events(EVENTS_READ)
        seen = before or starting_status(self._run_dir.name, self._config)
        seen = with_open_alerts(seen, events)
        self._before = seen if before is not None or seen.get("alerts") else None
        self._wanted = _by_group(self._requests.desired)
        self.recent = events[-EVENTS_SHOWN:]
        self._trackers = Trackers.start(
            self._config,
            self._run_dir,
            resumed=before is not None,
            evaluated=before["heldout"][-1] if before is not None and before["heldout"] else None,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._files.close()
        self._trackers.close()

    @property
    def trouble(self) -> str | None:
        """The reasons why the files, a tracker or Ray miss values; None if none does."""
        ray = None if self._ray_metrics is None else self._ray_metrics.trouble
        return "; ".join(filter(None, (self._files.trouble, self._trackers.trouble, ray))) or None

    def look(self, status: RunStatus) -> None:
        """Record a status, and the events since the one before.

        Of many islands not every look has a line in `metrics.jsonl`, unless it has an evaluation.
        """
        unix_s = self._now_s()
        if self._is_due(status, unix_s):
            self._files.add_status(metrics_line(status, unix_s))
            self._added_s = unix_s
        groups = {each["island"]: each["group"] for each in status["islands"]}
        wanted = _by_group(self._requests.desired)
        struck = [self._faults.popleft() for _ in range(len(self._faults))]
        self._note(fault_events(struck, groups), status, unix_s)
        self._note(scale_events(self._wanted, wanted), status, unix_s)
        self._note(events_between(self._before, status), status, unix_s)
        self._before, self._wanted = status, wanted
        self._trackers.log(status, unix_s)
        if self._ray_metrics is not None:
            self._ray_metrics.look(status)

    def _is_due(self, status: RunStatus, unix_s: float) -> bool:
        if self._before is None or self._before["heldout"] != status["heldout"]:
            return True
        least_s = interval_s(len(status["islands"]), self._config.monitor.metrics_mb)
        return not 0.0 <= unix_s - self._added_s < least_s  # the clock may have been set back

    def alerted(self, status: RunStatus) -> None:
        """Record only the events about the alerts of a status whose other parts are not new.

        If the fleet has no status of the syncer yet, the other parts are those of the last row.
        """
        if (before := self._before) is None and not status.get("alerts"):
            return
        if before is not None and status["figures"] is None:
            status = {**before, "alerts": status.get("alerts", [])}
        self._note(alert_events(before, status), status, self._now_s())
        self._before = status
        if self._ray_metrics is not None:
            self._ray_metrics.look(status)

    def failed(self, why: str) -> None:
        """Record that the run has failed: an alert, which is over when the run is resumed."""
        before, unix_s = self._before, self._now_s()
        shown = before or starting_status(self._run_dir.name, self._config)
        alerts = [*shown.get("alerts", ()), f"the run has failed: {in_short(why)}"]
        last: RunStatus = {**shown, "alerts": alerts}
        self._files.add_status(metrics_line(last, unix_s))
        self._note(alert_events(before, last), last, unix_s)
        self._before = last

    def end(self, status: RunStatus, summary: Mapping[str, object]) -> None:
        """Record the last status, with the loss of the final model, and the summary.

        Alerts that are over since the last look have their events.
        """
        last, unix_s = last_status(status, summary), self._now_s()
        self._files.add_status(metrics_line(last, unix_s))
        self._note(alert_events(self._before, last), last, unix_s)
        self._before = last
        self._trackers.log(last, unix_s)
        self._trackers.end(summary)

    def _note(self, events: Iterable[RunEvent], status: RunStatus, unix_s: float) -> None:
        seen = [event.seen(status, unix_s) for event in events]
        for each in seen:
            self._files.add_event(json_text(each))
            log.info("%s", each["text"])
        self.recent = (*self.recent, *seen)[-EVENTS_SHOWN:]


def _by_group(islands: Iterable[Island]) -> dict[str, int]:
    return dict(Counter(map(group_name, islands)))
