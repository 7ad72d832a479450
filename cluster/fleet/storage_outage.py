"""An outage of the storage of a syncer that was restarted: the run waits for it, with an alert.

The syncer needs its storage to come back, and only the shards hold the newest model meanwhile.
The run therefore continues until the storage answers. A person can still end it: a stop is carried
out at once if the model was saved elsewhere, or if no shard has one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster, StorageSilent, Unavailable
from cluster.fleet.core_actors import holds_model
from cluster.fleet.requests import Requests
from cluster.storage.open_depot import PATIENCE_S
from coordinator.errors import RunFailed

log = logging.getLogger("archipelago.fleet")


class StorageOutage:
    """The outage of one run's storage; the keeper calls `note` and `over`, any thread `saved`."""

    def __init__(
        self,
        config: Config,
        run: str,
        requests: Requests,
        cluster: RayCluster,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without an outage."""
        self._config, self._cluster, self._now_s = config, cluster, now_s
        self._run, self._requests = run, requests
        self._since_s: float | None = None
        self._saved: str | None = None
        self.trouble: str | None = None
        """The reason why the syncer cannot come back yet; None if it can."""

    def saved(self, path: str) -> str:
        """Note that the model was written to this path, and return the path."""
        self._saved = path
        return path

    def over(self) -> None:
        """Note that the syncer answers."""
        self._since_s = self._saved = self.trouble = None

    def note(self, error: Unavailable) -> None:
        """Note that the syncer does not answer; only a silent storage is an outage.

        Errors: `RunFailed` if the run is to stop and its model was saved, or cannot be saved.
        """
        log.warning("the syncer does not answer at present: %s", error)
        if not isinstance(error, StorageSilent):
            return
        now_s, run = self._now_s(), self._run
        if self._since_s is None:
            self._since_s, self._saved = now_s, None
        if self._requests.stopping is None:
            self.trouble = f"{error}; the islands train on, nothing is merged: restore the storage"
            return
        self.trouble = (
            f"{error}; the run stops when it answers, or once `archipelago save {run} PATH` has "
            "written the model of the shards elsewhere"
        )
        is_long = now_s - self._since_s > PATIENCE_S
        if self._saved is not None or (is_long and not holds_model(self._config, self._cluster)):
            place = f"its model is in {self._saved}" if self._saved else "no shard holds a model"
            raise RunFailed(
                f"run {run} was stopped ({self._requests.stopping}) while its storage did not "
                f"answer, and {place}; `archipelago run --resume` continues from what is stored"
            )
