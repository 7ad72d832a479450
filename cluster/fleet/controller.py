"""The fleet as it is called: what people and processes ask of a run, answered on any thread.

One thread, the `Keeper`, keeps the run. A call leaves requests and words for it, or reads what it
has published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.config.schema import Config, Harm
from cluster.fleet.backend import RayCluster
from cluster.fleet.inbox import IslandInbox
from cluster.fleet.keeper import FleetStart, Keeper
from cluster.fleet.outcome import Outcome
from cluster.fleet.requests import Requests
from cluster.fleet.status_board import StatusBoard
from cluster.fleet.tracebacks import keep_traceback
from cluster.names import Seat
from cluster.status import RunStatus
from coordinator.errors import UserMistake
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")

UP_TIMEOUT_S = 20.0
"""So long a request waits for a fleet that is only just there."""
KEPT_TIMEOUT_S = 5.0
"""So long a request waits until the keeper has written it down."""


class Fleet:
    """One run and everything that belongs to it. `keep` is the body of the keeper's thread."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        namespace: str,
        cluster: RayCluster,
        *,
        detached: bool,
        auth: str,
        token: str,
        resumes: bool,
        from_stored: bool = False,
    ) -> None:
        """The arguments after `cluster` are those of `FleetStart`."""
        self._run_dir = run_dir
        self._requests = Requests(run_dir.name, config, cluster.nodes)
        self._inbox = IslandInbox(config.faults.policy)
        self._board = StatusBoard(run_dir.name, config)
        start = FleetStart(namespace, detached, auth, token, resumes, from_stored)
        self._keeper = Keeper(
            config, run_dir, cluster, start, self._requests, self._inbox, self._board
        )

    def keep(self) -> None:
        """Bring the run up, or take it over; look after it to its end; clean up."""
        self._keeper.keep()

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended; None while it goes on."""
        return self._keeper.outcome

    @property
    def keeper_errors(self) -> int:
        """Steps of the keeper that broke, in all."""
        return self._keeper.errors.total

    # --- called by people -------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """Return the run as it was when last looked at."""
        return self._board.status()

    def scale(self, counts: Mapping[str, int]) -> None:
        """Have so many islands of each of these groups.

        Errors: `UserMistake` if one is not there, or could never be; then nothing is changed.
        """
        self._keeper.up.wait(UP_TIMEOUT_S)  # one that comes back does not know yet what it wants
        self._wait_kept(self._requests.scale(counts))

    def drain(self, island: Island) -> None:
        """Let this island hand in what it has and leave, and have none in its place.

        Errors: `UserMistake` if there is no such island, or too few would be left.
        """
        self._keeper.up.wait(UP_TIMEOUT_S)
        self._wait_kept(self._requests.drain(island))

    def harm(self, harm: Harm) -> None:
        """Break something on purpose, now.

        Errors: `UserMistake` if it is not there, or would take the fleet with it.
        """
        self._keeper.injection.harm(harm)

    def stop(self, why: str) -> None:
        """Have the run end."""
        self._wait_kept(self._requests.stop(why))

    def save(self, path: Path) -> str:
        """Write the public model to this path; return where it is. A run that waits at its end,
        since nothing takes its model, ends then.

        Errors: `UserMistake` if the path does not take it, or there is no model yet.
        """
        if not self._keeper.up.wait(UP_TIMEOUT_S):
            raise UserMistake(f"run {self._run_dir.name} is starting: it has no model yet")
        return self._keeper.save(path)

    def dismiss(self) -> None:
        """Let the fleet end: whoever followed the run knows how it ended."""
        self._keeper.dismiss()

    def _wait_kept(self, number: int) -> None:
        """Wait until a request is written down, so that a fleet that dies now still knows it."""
        if not self._requests.wait_kept(number, KEPT_TIMEOUT_S):
            log.warning("a wish is not written down after %g s: the keeper is busy", KEPT_TIMEOUT_S)

    # --- called by processes of islands and spares ------------------------------------------------

    def starting(self, seat: Seat) -> float:
        """Note that a process begins here; return for how many seconds it shall wait before."""
        return self._inbox.starting(seat, time.monotonic())

    def role(self, seat: Seat, *, warm: bool) -> Island | None:
        """Return which island the process here is; None for a spare. `warm`: it could be one."""
        return self._inbox.role(seat, time.monotonic(), warm=warm)

    def broke(self, seat: Seat, words: str) -> None:
        """Note that a process that was here ended with an exception; `words`: its traceback."""
        self._inbox.broke(seat, words, name := keep_traceback(self._run_dir, seat, words))
        log.error("the process at %s broke (%s):\n%s", seat, name or "kept nowhere", words)
