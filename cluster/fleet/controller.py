"""The interface of the fleet: requests of users and processes, answered on any thread.

One thread, the `Keeper`, keeps the run. A call leaves requests and messages for it, or reads what
it has published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from cluster.config.schema import Config, Harm
from cluster.fleet.backend import RayCluster
from cluster.fleet.inbox import IslandInbox
from cluster.fleet.keeper import FleetStart, Keeper
from cluster.fleet.outcome import Outcome
from cluster.fleet.queue_message import RunMessage, owner_of, run_message
from cluster.fleet.requests import Requests
from cluster.fleet.status_board import StatusBoard
from cluster.fleet.tracebacks import Tracebacks
from cluster.names import Seat
from cluster.status import RunStatus
from coordinator.errors import UserMistake
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")

UP_TIMEOUT_S = 20.0
"""Seconds that a request waits for a fleet that is just starting."""
HINTS: Mapping[str, Callable[[str], str]] = {
    "chaos": lambda run: "resume it without that key, or try a run of your own",
    "stop": lambda run: f"end it by Ctrl-C or, if submitted, `ray job stop {run}`",
}
"""The remedy for each command that a run forbids, by the run's name."""
KEPT_TIMEOUT_S = 5.0
"""Seconds that a request waits until the keeper has written it down."""


class Fleet:
    """One run and everything that belongs to it; `keep` is the body of the keeper's thread."""

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
        since_s: float | None = None,
    ) -> None:
        """Prepare the run; the arguments from `detached` on are those of `FleetStart`.

        `since_s`: the time of the submission, in seconds since 1970, by which the queue ranks runs.
        """
        self._run_dir, self._config = run_dir, config
        self._since_s = time.time() if since_s is None else since_s
        self._requests = Requests(run_dir.name, config, cluster.nodes)
        self._inbox, self._tracebacks = IslandInbox(config.faults.policy), Tracebacks(run_dir)
        self._board = StatusBoard(run_dir, config)
        start = FleetStart(namespace, detached, auth, token, resumes, from_stored)
        self._keeper = Keeper(
            config, run_dir, cluster, start, self._requests, self._inbox, self._board
        )

    def keep(self) -> None:
        """Bring the run up, or take it over; keep it to its end; clean up."""
        self._keeper.keep()

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the run; None while it is running."""
        return self._keeper.outcome

    @property
    def keeper_errors(self) -> int:
        """Steps of the keeper that failed, in all."""
        return self._keeper.errors.total

    def lost_thread(self, error: BaseException) -> None:
        """Count an exception that ended another thread of this process; it raises an alert."""
        self._keeper.errors.lost_thread(error)

    # --- called by people -------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """Return the status of the run as of the last look."""
        return self._board.status()

    def scale(self, counts: Mapping[str, int]) -> None:
        """Set the number of islands of each of these groups.

        Errors: `UserMistake` if there is no such group, or it can never be placed; then nothing
        changes.
        """
        self._keeper.up.wait(UP_TIMEOUT_S)  # a restarted fleet has to read its memory first
        self._wait_kept(self._requests.scale(counts))

    def drain(self, island: Island) -> None:
        """Have this island hand in everything it has and leave, without a replacement.

        Errors: `UserMistake` if there is no such island, or too few would be left.
        """
        self._keeper.up.wait(UP_TIMEOUT_S)
        self._wait_kept(self._requests.drain(island))

    def harm(self, harm: Harm) -> None:
        """Inject a fault now.

        Errors: `UserMistake` if its target is not there, it would end the fleet too, or the run
        forbids it.
        """
        self._refuse_forbidden("chaos")
        self._keeper.injection.harm(harm)

    def stop(self, why: str, *, by_command: bool = False) -> None:
        """Have the run end.

        `by_command`: `archipelago stop` asks for it, not the process that follows the run.

        Errors: `UserMistake` if the run forbids that command.
        """
        if by_command:
            self._refuse_forbidden("stop")
        self._wait_kept(self._requests.stop(why))

    def save(self, path: Path) -> str:
        """Write the public model to this path; return where it is.

        A run that waits at its end, because nothing accepts its model, ends then.

        Errors: `UserMistake` if the path does not accept the model, or there is none yet.
        """
        if not self._keeper.up.wait(UP_TIMEOUT_S):
            raise UserMistake(f"run {self._run_dir.name} is starting: it has no model yet")
        return self._keeper.save(path)

    def dismiss(self) -> None:
        """Let the fleet end: the caller that followed the run has its outcome."""
        self._keeper.dismiss()

    def _refuse_forbidden(self, command: Literal["chaos", "stop"]) -> None:
        if command in self._config.run.forbid:
            run = self._run_dir.name
            raise UserMistake(f"run {run} forbids {command} (run.forbid); {HINTS[command](run)}")

    def _wait_kept(self, number: int) -> None:
        """Wait until a request is written down, so that a restarted fleet still has it."""
        if not self._requests.wait_kept(number, KEPT_TIMEOUT_S):
            log.warning("a wish is not written down after %g s: the keeper is busy", KEPT_TIMEOUT_S)

    # --- called by the queue of the cluster -------------------------------------------------------

    def queue_report(self) -> RunMessage:
        """Return the run with the islands that it holds or wants."""
        config, (islands, withheld) = self._config, self._requests.withheld.report()
        run, owner = self._run_dir.name, owner_of(config)
        return run_message(config, run, owner, self._since_s, islands, withheld)

    def withhold(self, islands: Mapping[Island, str]) -> None:
        """Have the run do without these islands, each for this reason, and with all others."""
        self._requests.withheld.tell(islands, time.monotonic())

    # --- called by processes of islands and spares ------------------------------------------------

    def starting(self, seat: Seat) -> float:
        """Note that a process begins at this seat; return how many seconds it waits first."""
        return self._inbox.starting(seat, time.monotonic())

    def role(self, seat: Seat, *, warm: bool) -> Island | None:
        """Return the island of the process at this seat; None for a spare.

        `warm`: the process could run an island at once.
        """
        return self._inbox.role(seat, time.monotonic(), warm=warm)

    def broke(self, seat: Seat, words: str) -> None:
        """Note that the process at this seat ended with an exception; `words`: its traceback."""
        self._inbox.broke(seat, words, name := self._tracebacks.keep(seat, words))
        log.error("the process at %s broke (%s):\n%s", seat, name or "kept nowhere", words)

    def notice(self, seat: Seat, why: str, within_s: float, node: str | None) -> None:
        """Note that the process at this seat, or its node, will be taken away in `within_s`."""
        self._inbox.notice(seat, why, time.monotonic() + within_s, node)
