"""The keeper of a run: the one thread that brings it up, looks after it and cleans up.

It alone changes the table of islands and `fleet.json`. Other threads leave requests and messages
for it, and read what it has published.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster
from cluster.fleet.clean_up import each_step
from cluster.fleet.core_actors import CoreActors
from cluster.fleet.error_budget import ErrorBudget
from cluster.fleet.exporter import Exporter
from cluster.fleet.fault_injection import Injection
from cluster.fleet.fleet_memory import FleetMemoryWriter
from cluster.fleet.inbox import IslandInbox
from cluster.fleet.island_table import Islands
from cluster.fleet.outcome import Outcome
from cluster.fleet.placement import unplaceable
from cluster.fleet.preemption import Preemptions
from cluster.fleet.reconcile_loop import ReconcileLoop
from cluster.fleet.requests import Requests
from cluster.fleet.run_records import RunRecords
from cluster.fleet.shutdown import Shutdown
from cluster.fleet.status_board import StatusBoard
from cluster.fleet.syncer_outage import SyncerOutage
from cluster.fleet.takeover import Takeover
from cluster.names import FLEET
from cluster.storage import ownership, runs
from cluster.storage.fleet_file import FleetMemory
from cluster.storage.limited_depot import LimitedDepot
from cluster.storage.open_depot import depot_of
from cluster.storage.ownership import Ownership
from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.fragments import Layout
from coordinator.state import Phase

log = logging.getLogger("archipelago.fleet")

LINGER_S = 30.0
"""Seconds for which a fleet can still be asked how its run ended, if it is not dismissed."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FleetStart:
    """The circumstances in which a fleet was started."""

    namespace: str
    """The namespace of the run's actors."""
    detached: bool
    """Whether the fleet outlives the process that has started it."""
    auth: str
    """The authentication mode of the Ray cluster, which clients of the run need."""
    token: str
    """An identity shared by all processes that Ray starts of this fleet, and by no others."""
    resumes: bool
    """Whether another fleet has begun the run."""
    from_stored: bool = False
    """Whether the run resumes from the newest stored fragments."""


class Keeper:
    """The keeper of one run; `keep` is the body of its thread."""

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
        depot = LimitedDepot(self._depot)  # this thread must not hang with the storage
        self._own: Ownership | None = None
        self.up = threading.Event()
        """An event that is set once the run is brought up, or taken over."""
        self._dismissed = threading.Event()
        self._core = core = CoreActors(config, cluster)
        self._islands = islands = Islands(config, cluster, inbox)
        self._takeover = Takeover(config, run_dir, depot, cluster, islands, self._publish_alerts)
        self._outage = SyncerOutage(config, run_dir.name, requests, cluster)
        self.injection = Injection(
            run_dir.name, config, cluster, islands, core, requests.drain, inbox, start.detached
        )
        """The injection of faults, which any thread may call."""
        self._loop = ReconcileLoop(
            config, cluster, islands, core, self.injection, requests, board,
            Preemptions(config, cluster, inbox), self._remember,
        )  # fmt: skip
        self._memory = FleetMemoryWriter(depot, islands, requests, self.injection)
        self.errors = ErrorBudget()
        """The steps of the keeper that failed."""
        self._exporter = Exporter(
            run_dir, config.monitor, board.published, board.status, failed=self.errors.lost_thread
        )
        self._records = RunRecords(run_dir, config, self.injection.struck, requests)
        self._shutdown = Shutdown(config, run_dir, self._depot, cluster, islands, core, requests)
        self.outcome: Outcome | None = None
        """The outcome of the run; None while it is running."""
        self._began = time.time()
        self._layout: Layout

    # --- called by other threads ------------------------------------------------------------------

    def save(self, path: Path) -> str:
        """Write the public model to this path; return where it is. The run must be `up`.

        Errors: `UserMistake` if the path does not accept it, or the shards do not answer.
        """
        return self._outage.saved(self._shutdown.save(path, self._layout))

    def dismiss(self) -> None:
        """Let the keeper end: the caller has the outcome of the run."""
        self._dismissed.set()

    # --- the life of the run ----------------------------------------------------------------------

    def keep(self) -> None:
        """Bring the run up, or take it over; keep it to its end; clean up."""
        try:
            outcome = self._to_the_end()
        except BaseException as error:  # the run has failed: clean up
            if not isinstance(error, ArchipelagoError):  # a defect of ours or Ray's
                log.exception("the fleet has failed")
            outcome = Outcome.of_error(error)
        try:
            self._let_go(outcome)
        finally:
            self.outcome = outcome
        self._dismissed.wait(LINGER_S)
        if self._start.detached and (fleet := self._cluster.find(FLEET)) is not None:
            self._cluster.end(fleet)  # no other process ends a detached fleet

    def _let_go(self, outcome: Outcome) -> None:
        """End everything that belongs to this fleet, files last; leave the run to its next owner.

        If another process has taken over, all of it belongs to that one: end only this process.
        """
        self._requests.close()
        if (own := self._own) is None:
            return  # nothing has begun
        if own.relieved:
            log.error("this process of the fleet ends, and nothing else: %s", own.lost)
            logging.shutdown()
            os._exit(1)
        each_step(
            partial(self._remember, outcome),  # the run is over for the fleet's next process too
            self._takeover.find_unsought,
            self._islands.free_all,
            self._core.end,
            self._exporter.stop,
            lambda: runs.retire(self._run_dir) if self._writes() else None,
            partial(own.leave, begun=runs.CONFIG),
        )

    def _to_the_end(self) -> Outcome:
        take = partial(self._takeover.take, ownership.me(self._start.token))
        running = self._steadily(self._takeover.begin)  # a running run needs a keeper
        self._own = own = self._steadily(take) if running else take()
        own.start()
        if self._start.resumes and own.life == 1:
            from_stored = self._start.from_stored
            runs.reopen(self._run_dir, self._config, own.number, from_stored=from_stored)
        if (kept := self._takeover.memory()) is not None:
            if (earlier := self._steadily(lambda: self._take_over(kept, own.number))) is not None:
                return earlier
        else:
            self._bring_up(own.number)
        self._board.course.begin(self._layout.parameters)
        self.up.set()
        self._remember()
        address, start = self._cluster.address(), self._start
        self._exporter.announce(runs.live_as(self._run_dir, start.namespace, address, start.auth))
        self._exporter.start(needed=kept is None)
        with self._records:
            try:
                while True:
                    time.sleep(self._config.monitor.refresh_s)
                    own.check()
                    if (outcome := self._steadily(self._look)) is not None:
                        return outcome
            except BaseException as error:
                if self._writes():  # else the records belong to another process
                    self._records.failed(str(Outcome.of_error(error).error))
                raise

    def _steadily(self, step: Callable[[], T]) -> T:
        return self.errors.retry(step, self._publish_alerts)

    def _look(self) -> Outcome | None:
        """Look at the run once and act; return how it ended, None while it is running."""
        try:
            view = self._outage.watch(self._loop.look)
        finally:
            if not self._memory.is_current:
                self._remember()
            self._publish_alerts()
        record = self._records.alerted if view is None else self._records.look
        record(self._board.status())
        self._board.publish_events(self._records.recent)
        if view is None:
            return None
        if view.phase is not Phase.FINISHED:
            self._shutdown.not_yet()
            return None
        own = self._own
        assert own is not None
        outcome = self._shutdown.attempt(
            self._layout, check=lambda: own.check(again=True), began=self._began
        )
        self._publish_alerts()
        if outcome is not None:
            self._records.end(self._board.status(), outcome.summary)
            self._board.publish_events(self._records.recent)
        return outcome

    def _bring_up(self, owner: int) -> None:
        if problems := unplaceable(self._config, self._cluster.nodes()):
            raise UserMistake("\n".join(problems))
        runs.leave(self._depot, self._run_dir, runs.CONFIG, self._config.toml().encode())
        self._core.start(owner)
        self._layout = self._core.begin()

    def _take_over(self, kept: FleetMemory, owner: int) -> Outcome | None:
        """Take over from an earlier process of this fleet: find its islands that are alive.

        Return how the run ended; None if it has not ended, and the core actors are then started.
        """
        log.warning("back; taking over %d islands", len(kept["held"]))
        self._takeover.find(kept)
        self._requests.restore(kept, time.monotonic())
        self._began = kept["began"]
        self.injection.remember(kept["faults"])
        self._layout = self._takeover.layout()
        self._exporter.describe(self._config)
        if kept["outcome"] is None:
            self._core.start(owner)
            return None
        return Outcome(**kept["outcome"])

    def _remember(self, outcome: Outcome | None = None) -> None:
        """Write the memory for the fleet's next process, as soon as the run is up."""
        if self.up.is_set() and self._writes():
            self._memory.write(self._began, outcome)

    def _writes(self) -> bool:
        """Return whether this process still owns the run."""
        return self._own is not None and self._own.lost is None

    def _publish_alerts(self) -> None:
        alerts = (
            self.errors.trouble, self.errors.unheard, self._shutdown.trouble, self._memory.trouble,
            self._exporter.tend(), self._records.trouble, self._board.course.trouble,
            *self._core.troubles, *self._takeover.troubles, self._outage.trouble,
        )  # fmt: skip
        self._board.publish_alerts(each for each in alerts if each is not None)
