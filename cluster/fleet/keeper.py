"""The keeper of a run: the one thread that brings it up, looks after it and cleans up.

It alone changes the table of islands and `fleet.json`. Other threads leave requests and words for
it, and read what it has published.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster, Unavailable
from cluster.fleet.core_actors import CoreActors
from cluster.fleet.error_budget import ErrorBudget
from cluster.fleet.exporter import Exporter
from cluster.fleet.fault_injection import Injection
from cluster.fleet.fleet_memory import FleetMemoryWriter
from cluster.fleet.inbox import IslandInbox
from cluster.fleet.island_table import Islands
from cluster.fleet.outcome import Outcome
from cluster.fleet.placement import unplaceable
from cluster.fleet.reconcile_loop import ReconcileLoop
from cluster.fleet.requests import Requests
from cluster.fleet.shutdown import Shutdown
from cluster.fleet.status_board import StatusBoard
from cluster.fleet.status_view import metrics_line
from cluster.names import FLEET, SYNCER
from cluster.storage import ownership, runs
from cluster.storage.fleet_file import FLEET_FILE, FleetMemory, load_fleet_memory
from cluster.storage.layout import load_layout
from cluster.storage.metrics_log import LOOKS, MetricsLog
from cluster.storage.open_depot import depot_of, patiently
from cluster.storage.ownership import Ownership
from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.fragments import Layout
from coordinator.protocol import Island
from coordinator.state import Phase

log = logging.getLogger("archipelago.fleet")

LINGER_S = 30.0
"""So long a fleet that nobody follows can still be asked how its run ended."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FleetStart:
    """How a fleet was started, and as what."""

    namespace: str
    """The namespace of the run's actors."""
    detached: bool
    """Whether the fleet outlives the process that has started it."""
    auth: str
    """How Ray's cluster authenticates, for people who want to reach the run."""
    token: str
    """The same for all processes that Ray starts of this fleet, and of no other's."""
    resumes: bool
    """Whether another fleet has begun the run."""
    from_stored: bool = False
    """Whether the run resumes from the newest stored fragments."""


class Keeper:
    """The keeper of one run. `keep` is the body of its thread."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        cluster: RayCluster,
        start: FleetStart,
        requests: Requests,
        inbox: IslandInbox,
        board: StatusBoard,
    ) -> None:
        self._config, self._run_dir, self._cluster = config, run_dir, cluster
        self._start, self._requests, self._board = start, requests, board
        self._depot = depot_of(config, run_dir)
        self._own: Ownership | None = None
        self.up = threading.Event()
        """Set once the run is brought up, or taken over."""
        self._dismissed = threading.Event()
        self._core = core = CoreActors(config, cluster)
        self._islands = islands = Islands(config, cluster, inbox)
        self.injection = Injection(
            run_dir.name, config, cluster, islands, core, requests.drain, outlives=start.detached
        )
        """Breaks what any thread asks it to."""
        self._loop = ReconcileLoop(
            config, cluster, islands, core, self.injection, requests, board, self._remember
        )
        self._memory = FleetMemoryWriter(self._depot, islands, requests, self.injection)
        self._exporter = Exporter(run_dir, config.monitor, board.published)
        self._shutdown = Shutdown(run_dir, self._depot, cluster, islands, core, requests)
        self.errors = ErrorBudget()
        """The steps of the keeper that broke."""
        self.outcome: Outcome | None = None
        """How the run ended; None while it goes on."""
        self._began = time.time()
        self._layout: Layout

    # --- called by other threads ------------------------------------------------------------------

    def save(self, path: Path) -> str:
        """Write the public model to this path; return where it is. The run must be `up`.

        Errors: `UserMistake` if the path does not take it, or the shards cannot be heard.
        """
        return self._shutdown.save(path, self._layout)

    def dismiss(self) -> None:
        """Let the keeper end: somebody knows how the run ended."""
        self._dismissed.set()

    # --- the life of the run ----------------------------------------------------------------------

    def keep(self) -> None:
        """Bring the run up, or take it over; look after it to its end; clean up."""
        try:
            outcome = self._to_the_end()
        except UserMistake as error:
            outcome = Outcome({}, str(error), mistake=True)
        except ArchipelagoError as error:
            outcome = Outcome({}, str(error))
        except BaseException as error:  # a defect, or Ray's: the run has failed, and must be ended
            log.exception("the fleet cannot go on")
            outcome = Outcome({}, f"{type(error).__name__}: {error}")
        try:
            self._let_go(outcome)
        finally:
            self.outcome = outcome
        self._dismissed.wait(LINGER_S)
        if self._start.detached and (fleet := self._cluster.find(FLEET)) is not None:
            self._cluster.end(fleet)  # nobody else will

    def _let_go(self, outcome: Outcome) -> None:
        """End what is this fleet's, and nothing else; leave the run to whoever comes next."""
        self._requests.close()
        if (own := self._own) is None:
            return  # nothing was begun
        if own.relieved:
            log.error("this process of the fleet ends, and nothing else: %s", own.lost)
            logging.shutdown()
            os._exit(1)
        self._remember(outcome)  # it is over, also for a process that comes after this one
        self._exporter.stop()
        if self._writes():
            runs.retire(self._run_dir)
        self._islands.free_all()
        self._core.end()
        own.leave(begun=runs.CONFIG)

    def _to_the_end(self) -> Outcome:
        mine = ownership.me(self._start.token)
        again = self._cluster.find(SYNCER) is not None  # the run is there, and needs a keeper

        def take() -> Ownership:
            return patiently(lambda: ownership.take(self._depot, self._run_dir.name, mine))

        self._own = own = self._steadily(take) if again else take()
        own.start()
        if self._start.resumes and own.life == 1:
            from_stored = self._start.from_stored
            runs.reopen(self._run_dir, self._config, own.number, from_stored=from_stored)
        if (kept := patiently(lambda: load_fleet_memory(self._depot))) is not None:
            taken = self._steadily(lambda: self._take_over(kept, own.number))
            if taken is not None:
                return taken
        else:
            self._bring_up(own.number)
        self.up.set()
        self._remember()
        head, start = self._cluster.address(), self._start
        self._exporter.announce(runs.live_as(self._run_dir, start.namespace, head, start.auth))
        self._exporter.start(needed=kept is None)
        with closing(MetricsLog(self._run_dir / LOOKS, self._config.monitor.metrics_mb)) as metrics:
            while True:
                time.sleep(self._config.monitor.refresh_s)
                own.check()
                if (outcome := self._steadily(lambda: self._look(metrics))) is not None:
                    return outcome

    def _steadily(self, step: Callable[[], T]) -> T:
        return self.errors.retry(step, self._publish_alerts)

    def _look(self, metrics: MetricsLog) -> Outcome | None:
        """Look at the run once and do what follows; how it ended, None while it goes on."""
        try:
            view = self._loop.look()
        except Unavailable as error:  # what was not done is decided anew next time
            log.warning("the syncer cannot be heard at present: %s", error)
            return None
        finally:
            if not self._memory.is_current:
                self._remember()
            self._publish_alerts()
        if (status := self._board.published()) is not None:
            metrics.write(metrics_line(status))
        if view.phase is not Phase.FINISHED:
            self._shutdown.not_yet()
            return None
        own = self._own
        assert own is not None
        outcome = self._shutdown.attempt(
            self._layout, check=lambda: own.check(again=True), began=self._began
        )
        self._publish_alerts()
        return outcome

    def _bring_up(self, owner: int) -> None:
        if problems := unplaceable(self._config, self._cluster.nodes()):
            raise UserMistake("\n".join(problems))
        runs.leave(self._depot, self._run_dir, runs.CONFIG, self._config.toml().encode())
        self._core.start(owner)
        self._layout = self._core.begin()

    def _take_over(self, kept: FleetMemory, owner: int) -> Outcome | None:
        """This process comes after another: find what that one has started, if it is still there.

        Returns how the run ended, if it had ended then.
        """
        log.warning("back; taking over %d islands", len(kept["held"]))
        self._depot.tidy(FLEET_FILE)
        self._requests.restore(frozenset(map(Island, kept["desired"])), kept["stopping"])
        self._began = kept["began"]
        self.injection.remember(kept["faults"])
        self._layout = patiently(lambda: load_layout(self._depot))
        self._exporter.describe(self._config)
        self._islands.find(kept["held"], kept["spares"], time.monotonic())
        if kept["outcome"] is None:
            self._core.start(owner)
            return None
        return Outcome(**kept["outcome"])

    def _remember(self, outcome: Outcome | None = None) -> None:
        """Write down what a process that comes after this one must know; before there is anything
        to take over, there is nothing to keep."""
        if not self.up.is_set() or not self._writes():
            return
        self._memory.write(self._began, outcome)

    def _writes(self) -> bool:
        """Return whether the run is still this process's."""
        return self._own is not None and self._own.lost is None

    def _publish_alerts(self) -> None:
        errors, end = self.errors.trouble, self._shutdown.trouble
        said = (errors, end, self._memory.trouble, self._exporter.tend())
        self._board.publish_alerts(each for each in said if each is not None)
