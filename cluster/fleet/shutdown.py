"""The end of a run, retried until the model is saved somewhere.

The shards stay alive meanwhile, since only they hold the newest model. Other threads may save it
elsewhere, which lets the run end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster, Unavailable
from cluster.fleet.core_actors import CoreActors
from cluster.fleet.island_table import Islands
from cluster.fleet.outcome import Outcome
from cluster.fleet.requests import Requests
from cluster.fleet.results import Results, SavedModel, no_room, save_to
from cluster.fleet.run_identity import identity_of
from cluster.storage.depot import Depot
from coordinator.errors import UserMistake
from coordinator.fragments import Layout

log = logging.getLogger("archipelago.fleet")

LEAVE_TIMEOUT_S = 5.0
"""The timeout in seconds of the islands' answers as they leave."""
AGAIN_S = 5.0
"""Seconds between two attempts to write the end of the run."""


class Shutdown:
    """The end of one run; the keeper calls `attempt` and `not_yet`, any thread calls `save`."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        depot: Depot,
        cluster: RayCluster,
        islands: Islands,
        core: CoreActors,
        requests: Requests,
    ) -> None:
        self._config, self._run_dir = config, run_dir
        self._depot, self._cluster = depot, cluster
        self._islands, self._core, self._requests = islands, core, requests
        self._results: Results | None = None
        self._measured: dict[str, object] | None = None
        self._tried_s = -AGAIN_S
        self._waits: Results | None = None  # results with a final model that no place accepts
        self._rescued: tuple[Results, SavedModel] | None = None
        self.trouble: str | None = None
        """The reason why the end cannot be written; None if it can."""

    def not_yet(self) -> None:
        """Note that the run is still running, and forget any earlier attempt."""
        if self._measured is not None:
            self._results = self._measured = self._waits = self.trouble = None

    def attempt(self, layout: Layout, *, check: Callable[[], None], began: float) -> Outcome | None:
        """Let the islands leave, save and evaluate the model, sum up; None: call this again.

        `check`: raises if another process owns the run. `began`: seconds since 1970.

        Errors: the errors of `check`.
        """
        rescued = None
        if self._rescued is not None and self._rescued[0] is self._results:
            rescued = self._rescued[1]
        if rescued is None and time.monotonic() - self._tried_s < AGAIN_S:
            return None
        try:
            if self._measured is None:
                figures = self._core.close()
                run, size = self._run_dir.name, layout.parameters
                self._measured = figures | identity_of(self._config, run, size, figures)
                actors = [actor for actor in self._islands.actors.values() if actor is not None]
                self._cluster.tell_all(actors, "leave", LEAVE_TIMEOUT_S)
                self._results = Results(self._run_dir, self._depot, layout)
            assert self._results is not None
            outcome = self._results.leave(
                self._core,
                self._measured,
                check=check,
                began=began,
                asked=lambda: self._requests.stopping,
                rescued=rescued,
            )
        except Unavailable as error:  # an actor is being restarted: retry at the next look
            log.warning("the end is tried again: %s", error)
            return None
        except OSError as error:  # the shards hold the model, and stay alive
            if self.trouble is None:
                log.error("the end is tried again: %s", error)
            self.trouble = no_room(error, self._run_dir.name, str(self._run_dir))
            self._tried_s = time.monotonic()
            self._waits = self._results
            return None
        self.trouble = None
        return outcome

    def save(self, path: Path, layout: Layout) -> str:
        """Write the public model to this path; return where it is.

        Errors: `UserMistake` if the path does not accept the model, or the shards do not answer.
        """
        final = self._waits
        try:
            public = self._core.public(lambda: None)  # the keeper restarts a shard that hangs
            saved = save_to(path, layout, public)
        except OSError as error:
            raise UserMistake(f"{path} does not take the model: {error}") from error
        except Unavailable as error:
            raise UserMistake(f"the model cannot be had at present: {error}; ask again") from error
        if final is not None:
            self._rescued = final, SavedModel(str(path), saved.versions, saved.fingerprint)
        return str(path)
