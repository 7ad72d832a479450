"""The status that the keeper has published, for threads that answer people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cluster.config.schema import Config
from cluster.fleet.loss_course import LossCourse
from cluster.fleet.status_view import starting_status
from cluster.status import EventStatus, RunStatus


class StatusBoard:
    """The published status of one run; the keeper writes it, and every thread may read it."""

    def __init__(self, run_dir: Path, config: Config) -> None:
        self._run, self._config = run_dir.name, config
        self.course = LossCourse(config, run_dir)
        """The course of the loss, for the keeper's thread alone."""
        self._published: RunStatus | None = None
        self._alerts: tuple[str, ...] = ()
        self._events: tuple[EventStatus, ...] = ()

    def publish(self, status: RunStatus) -> None:
        """Publish this status, with its loss beside the expected one."""
        self._published = self.course.judged(status)

    def publish_alerts(self, alerts: Iterable[str]) -> None:
        """Publish these alerts, with any status."""
        self._alerts = tuple(alerts)

    def publish_events(self, events: Iterable[EventStatus]) -> None:
        """Publish the newest events, with any status."""
        self._events = tuple(events)

    def published(self) -> RunStatus | None:
        """Return the status that was published last, with alerts and events; None: no status."""
        if (seen := self._published) is None:
            return None
        return {**seen, "alerts": [*self._alerts], "events": [*self._events]}

    def status(self) -> RunStatus:
        """Return the published status, or that of a run that is starting."""
        if (seen := self.published()) is not None:
            return seen
        return {**starting_status(self._run, self._config), "alerts": [*self._alerts]}
