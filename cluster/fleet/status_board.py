"""The status that the keeper has published, for threads that answer people."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.config.schema import Config
from cluster.fleet.status_view import starting_status
from cluster.status import RunStatus


class StatusBoard:
    """The published status of one run; the keeper writes it, and every thread may read it."""

    def __init__(self, run: str, config: Config) -> None:
        self._run, self._config = run, config
        self._published: RunStatus | None = None
        self._alerts: tuple[str, ...] = ()

    def publish(self, status: RunStatus) -> None:
        """Publish this status."""
        self._published = status

    def publish_alerts(self, alerts: Iterable[str]) -> None:
        """Publish these alerts, with any status."""
        self._alerts = tuple(alerts)

    def published(self) -> RunStatus | None:
        """Return the status that was published last, with the alerts; None if there is none."""
        if (seen := self._published) is None:
            return None
        return {**seen, "alerts": [*self._alerts]}

    def status(self) -> RunStatus:
        """Return the published status, or that of a run that is starting."""
        if (seen := self.published()) is not None:
            return seen
        return {**starting_status(self._run, self._config), "alerts": [*self._alerts]}
