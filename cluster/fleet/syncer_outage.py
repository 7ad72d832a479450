"""An outage of the syncer: the run waits for it, with an alert if it is long.

Most outages are restarts, and are over within seconds. Without the syncer the status of the run is
old, so its figures look as good as before; only the alert shows the outage.

A syncer that was restarted needs its storage to come back, and only the shards hold the newest
model meanwhile. The run therefore continues until the storage answers. A person can still end it: a
stop is carried out at once if the model was saved elsewhere, or if no shard has one.
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
from cluster.view import View
from coordinator.errors import RunFailed

log = logging.getLogger("archipelago.fleet")
AWAY_S = 30.0
"""Seconds without an answer of the syncer after which an outage is an alert."""


class SyncerOutage:
    """The outage of one run's syncer; the keeper calls it, and any thread calls `saved`."""

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
        self._since_s: float | None = None  # the time from which the storage is silent
        self._away_s: float | None = None  # the time of the first look without an answer
        self._saved: str | None = None
        self.trouble: str | None = None
        """The reason why the syncer does not answer; None if it does, or was just lost."""

    def saved(self, path: str) -> str:
        """Note that the model was written to this path, and return the path."""
        self._saved = path
        return path

    def watch(self, look: Callable[[], View]) -> View | None:
        """Return the result of a look at the syncer; None if it does not answer.

        Errors: the errors of `note`, and those of the look other than `Unavailable`.
        """
        began_s = self._now_s()
        try:
            view = look()
        except Unavailable as error:  # the next look decides again
            self.note(error, began_s)
            return None
        self.over()
        return view

    def over(self) -> None:
        """Note that the syncer answers."""
        self._since_s = self._away_s = self._saved = self.trouble = None

    def note(self, error: Unavailable, began_s: float | None = None) -> None:
        """Note that the syncer does not answer; a storage that is silent is an alert at once.

        `began_s`: the time at which it was asked; None: now.

        Errors: `RunFailed` if the run is to stop and its model was saved, or cannot be saved.
        """
        log.warning("the syncer does not answer at present: %s", error)
        now_s, run = self._now_s(), self._run
        if self._away_s is None:
            self._away_s = now_s if began_s is None else began_s
        if not isinstance(error, StorageSilent):
            if self.trouble is None and now_s - self._away_s >= AWAY_S:
                self.trouble = (
                    f"the syncer has not answered for {AWAY_S:g} s ({error}); the islands train "
                    "on, nothing is merged, and the figures of the run are old: the fleet retries; "
                    "read the log of the actor `syncer`, and look at its node"
                )
            return
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
