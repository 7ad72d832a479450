"""The fleet's shell: owns everything of one run, from its first actor to its summary.

One thread, the keeper, keeps the run: it looks at what the syncer says and at what Ray holds, asks
`reconcile` what to do, does it, and looks again. It alone changes `islands` and `fleet.json`.
Other threads leave wishes (`wishes`) and words (`desk`) for it, and read what it has published.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from cluster.config.schema import Config, Harm
from cluster.fleet.backend import RayCluster, Unavailable
from cluster.fleet.core_actors import Services
from cluster.fleet.error_budget import Stumbles
from cluster.fleet.exporter import Exporter
from cluster.fleet.fault_injection import Injection
from cluster.fleet.fleet_memory import Memory
from cluster.fleet.inbox import Desk
from cluster.fleet.island_actions import Deeds
from cluster.fleet.island_table import Islands
from cluster.fleet.outcome import Outcome
from cluster.fleet.placement import unplaceable
from cluster.fleet.reconcile import reconcile
from cluster.fleet.requests import Wanted, Wishes
from cluster.fleet.shutdown import Ending
from cluster.fleet.status_view import line_of, nothing_yet, shown
from cluster.fleet.tracebacks import keep_traceback
from cluster.names import FLEET, SYNCER, Seat
from cluster.status import RunStatus
from cluster.storage import fleet_file, ownership, runs
from cluster.storage.layout import load_layout
from cluster.storage.metrics_log import LOOKS, MetricsLog
from cluster.storage.open_depot import depot_of, patiently
from cluster.storage.ownership import Ownership
from cluster.view import View
from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.fragments import Layout
from coordinator.protocol import Island
from coordinator.state import Phase

log = logging.getLogger("archipelago.fleet")

UP_TIMEOUT_S = 20.0
"""So long a wish waits for a fleet that is only just there."""
KEPT_TIMEOUT_S = 5.0
"""So long a wish waits until the keeper has written it down."""
LINGER_S = 30.0
"""So long a fleet that nobody follows can still be asked how its run ended."""
T = TypeVar("T")


class Fleet:
    """One run and everything that belongs to it. `keep` is the body of its thread."""

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
        """`token`: the same for all processes that Ray starts of this fleet, and of no other's.
        `resumes`: a run that another fleet has begun; `from_stored`: from what is stored of it."""
        self._config, self._run_dir, self._namespace = config, run_dir, namespace
        self._token, self._cluster = token, cluster
        self._resumes, self._from_stored = resumes, from_stored
        self._depot = depot_of(config, run_dir)
        self._own: Ownership | None = None
        self._detached, self._auth = detached, auth
        self._wishes = Wishes(run_dir.name, config, cluster.nodes)
        self._desk = Desk(config.faults.policy)
        self._up, self._dismissed = threading.Event(), threading.Event()  # up: or taken over
        self._services = Services(config, cluster)
        self._exporter = Exporter(run_dir, config.monitor, self._shown_status)
        self._ending = Ending(run_dir, self._depot, self._services)
        self.outcome: Outcome | None = None
        # the keeper's own; other threads read `actors` of the islands, and what is published
        self._islands = Islands(config, cluster, self._desk)
        self._memory, self._stumbles = Memory(self._depot), Stumbles()
        of_run = (run_dir.name, config, cluster, self._islands, self._services, self._wishes.drain)
        self._injection = Injection(*of_run, outlives=detached)
        self._deeds = Deeds(config, cluster, self._islands, self._services, self._keep_in_mind)
        self._told_to_stop, self._pardons, self._t = False, 0, -1
        self._told: Wanted | None = None  # the wishes that are written down
        self._began = time.time()
        self._layout: Layout
        self._published: RunStatus | None = None
        self._alerts: tuple[str, ...] = ()

    # --- called by others -------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """Return the run as it was when last looked at."""
        if (seen := self._shown_status()) is not None:
            return seen
        return {**nothing_yet(self._run_dir.name, self._config), "alerts": [*self._alerts]}

    def scale(self, counts: Mapping[str, int]) -> None:
        """Have so many islands of each of these groups.

        Errors: `UserMistake` if one is not there, or could never be; then nothing is changed.
        """
        self._up.wait(UP_TIMEOUT_S)  # a fleet that comes back does not know yet what it wants
        self._wished(self._wishes.scale(counts))

    def drain(self, island: Island) -> None:
        """Let this island hand in what it has and leave, and have none in its place.

        Errors: `UserMistake` if there is no such island, or too few would be left.
        """
        self._up.wait(UP_TIMEOUT_S)
        self._wished(self._wishes.drain(island))

    def harm(self, harm: Harm) -> None:
        """Break something on purpose, now.

        Errors: `UserMistake` if it is not there, or would take the fleet with it.
        """
        self._injection.harm(harm)

    def stop(self, why: str) -> None:
        """Have the run end."""
        self._wished(self._wishes.stop(why))

    def save(self, path: Path) -> str:
        """Write the public model to this path; return where it is. A run that waits at its end,
        since nothing takes its model, ends then.

        Errors: `UserMistake` if the path does not take it, or there is no model yet.
        """
        if not self._up.wait(UP_TIMEOUT_S):
            raise UserMistake(f"run {self._run_dir.name} is starting: it has no model yet")
        return self._ending.save(path, self._layout)

    def starting(self, seat: Seat) -> float:
        """Note that a process begins here; return for how many seconds it shall wait before."""
        return self._desk.starting(seat, time.monotonic())

    def role(self, seat: Seat, *, warm: bool) -> Island | None:
        """Return which island the process here is; None for a spare. `warm`: it could be one."""
        return self._desk.role(seat, time.monotonic(), warm=warm)

    def broke(self, seat: Seat, words: str) -> None:
        """Note that a process that was here ended with an exception; `words`: its traceback."""
        self._desk.broke(seat, words, name := keep_traceback(self._run_dir, seat, words))
        log.error("the process at %s broke (%s):\n%s", seat, name or "kept nowhere", words)

    @property
    def stumbles(self) -> int:
        """Steps of the keeper that broke, in all."""
        return self._stumbles.total

    def dismiss(self) -> None:
        """Whoever followed the run knows how it ended."""
        self._dismissed.set()

    def _wished(self, number: int) -> None:
        """Wait until a wish is written down, so that a fleet that dies now still knows it."""
        if not self._wishes.wait_kept(number, KEPT_TIMEOUT_S):
            log.warning("a wish is not written down after %g s: the keeper is busy", KEPT_TIMEOUT_S)

    # --- the keeper -------------------------------------------------------------------------------

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
        if self._detached and (fleet := self._cluster.find(FLEET)) is not None:
            self._cluster.end(fleet)  # nobody else will

    def _let_go(self, outcome: Outcome) -> None:
        """End what is this fleet's, and nothing else; leave the run to whoever comes next."""
        self._wishes.close()
        if (own := self._own) is None:
            return  # nothing was begun
        if own.relieved:
            log.error("this process of the fleet ends, and nothing else: %s", own.lost)
            logging.shutdown()
            os._exit(1)
        self._keep_in_mind(outcome)  # it is over, also for a process that comes after this one
        self._clean_up()
        own.leave(begun=runs.CONFIG)

    def _to_the_end(self) -> Outcome:
        mine = ownership.me(self._token)
        again = self._cluster.find(SYNCER) is not None  # the run is there, and needs a keeper

        def take() -> Ownership:
            return patiently(lambda: ownership.take(self._depot, self._run_dir.name, mine))

        self._own = own = self._steadily(take) if again else take()
        own.start()
        if self._resumes and own.life == 1:
            from_stored = self._from_stored
            runs.reopen(self._run_dir, self._config, own.number, from_stored=from_stored)
        if (kept := patiently(lambda: fleet_file.load_fleet_memory(self._depot))) is not None:
            taken = self._steadily(lambda: self._take_over(kept, own.number))
            if taken is not None:
                return taken
        else:
            self._bring_up(own.number)
        self._up.set()
        self._keep_in_mind()
        head = self._cluster.address()
        self._exporter.announce(runs.live_as(self._run_dir, self._namespace, head, self._auth))
        self._exporter.start(needed=kept is None)
        with closing(MetricsLog(self._run_dir / LOOKS, self._config.monitor.metrics_mb)) as metrics:
            while True:
                time.sleep(self._config.monitor.refresh_s)
                own.check()
                if (outcome := self._steadily(lambda: self._look(metrics))) is not None:
                    return outcome

    def _steadily(self, step: Callable[[], T]) -> T:
        """Return what this step comes to; a step that breaks is made again, after a while.

        Errors: what the step refuses; what it raises if it breaks again and again.
        """
        while True:
            try:
                came = step()
            except ArchipelagoError:
                raise
            except Exception as error:  # noqa: BLE001 - counted, and raised in the end
                pause_s = self._stumbles.count(error)  # raises the error if it is one too many
                self._publish_alerts()
                time.sleep(pause_s)
                continue
            self._stumbles.over()
            return came

    def _look(self, metrics: MetricsLog) -> Outcome | None:
        """Look at the run once and do what follows; how it ended, None while it goes on."""
        try:
            view = self._look_and_act()
        except Unavailable as error:  # what was not done is decided anew next time
            log.warning("the syncer cannot be heard at present: %s", error)
            return None
        finally:
            if self._wishes.wanted != self._told:
                self._keep_in_mind()
            self._publish_alerts()
        if (status := self._shown_status()) is not None:
            metrics.write(line_of(status))
        if view.phase is not Phase.FINISHED:
            self._ending.not_yet()
            return None
        own = self._own
        assert own is not None
        outcome = self._ending.attempt(
            self._layout,
            [actor for actor in self._islands.actors.values() if actor is not None],
            self._cluster,
            check=lambda: own.check(again=True),
            began=self._began,
            asked=lambda: self._wishes.stopping,
        )
        self._publish_alerts()
        return outcome

    def _bring_up(self, owner: int) -> None:
        if problems := unplaceable(self._config, self._cluster.nodes()):
            raise UserMistake("\n".join(problems))
        runs.leave(self._depot, self._run_dir, runs.CONFIG, self._config.toml().encode())
        self._services.start(owner)
        self._layout = self._services.begin()

    def _take_over(self, kept: fleet_file.FleetMemory, owner: int) -> Outcome | None:
        """This process comes after another: find what that one has started, if it is still there.

        Returns how the run ended, if it had ended then.
        """
        log.warning("back; taking over %d islands", len(kept["held"]))
        self._depot.tidy(fleet_file.FLEET_FILE)
        self._wishes.restore(frozenset(map(Island, kept["desired"])), kept["stopping"])
        self._began = kept["began"]
        self._injection.remember(kept["faults"])
        self._layout = patiently(lambda: load_layout(self._depot))
        self._exporter.describe(self._config)
        self._islands.find(kept["held"], kept["spares"], time.monotonic())
        if kept["outcome"] is None:
            self._services.start(owner)
            return None
        return Outcome(**kept["outcome"])

    def _look_and_act(self) -> View:
        islands = self._islands
        view, status = self._services.look(islands.with_devices())
        now_s = time.monotonic()
        if view.t > self._t:
            self._t = view.t
            self._services.watch.progressed()
        islands.note_processes()
        islands.note_learners(view)
        islands.note_devices()
        wanted = self._wishes.wanted
        if wanted.pardons != self._pardons:
            self._pardons = wanted.pardons
            islands.forgive()
        stopping = wanted.stopping
        desired = wanted.desired if stopping is None else frozenset(islands.all())
        if stopping is None:
            changed = islands.use_spares(desired, now_s)
            if islands.spares.tend(islands.taken(), now_s) or changed:
                islands.post()
                self._keep_in_mind()
        policy = self._config.faults.policy
        for action in reconcile(desired, islands.holdings(), now_s, policy):
            self._deeds.do(action, now_s)
        self._publish(status, wanted)
        if view.phase is Phase.RUNNING:
            self._hope(wanted)
            if stopping is not None and not self._told_to_stop:
                self._services.stop(stopping)
                self._told_to_stop = True
            self._injection.strike_what_is_due(view, self._keep_in_mind)
            self._services.judge()
        return view

    def _hope(self, wanted: Wanted) -> None:
        """Can enough islands still be had?

        Errors: `RunFailed` with the last words of one that was set aside, if not.
        """
        aside = self._islands.aside()
        if aside and len(wanted.desired) - len(aside) < self._config.sync.quorum:
            raise max(aside, key=lambda it: bool(it.last_words)).given_up()

    def _clean_up(self) -> None:
        """End everything that belongs to the run; nothing else."""
        self._exporter.stop()
        if self._writes():
            runs.retire(self._run_dir)
        self._islands.free_all()
        self._services.end()

    # --- helpers ----------------------------------------------------------------------------------

    def _keep_in_mind(self, outcome: Outcome | None = None) -> None:
        """Write down what a process that comes after this one must know; before there is anything
        to take over, there is nothing to keep."""
        if not self._up.is_set() or not self._writes():
            return
        wanted = self._wishes.wanted
        done = self._injection.done
        self._memory.keep(self._islands, wanted, done, self._began, outcome)
        self._told = wanted
        self._wishes.kept(wanted)

    def _writes(self) -> bool:
        """Is the run this process's still?"""
        return self._own is not None and self._own.lost is None

    def _publish(self, status: RunStatus, wanted: Wanted) -> None:
        """Show people what the syncer said, with what the fleet knows of islands on top."""
        warm = sum(map(len, self._islands.spares.warm(time.monotonic()).values()))
        self._published = shown(
            {**status, "asked": wanted.stopping},
            self._islands.all(),
            wanted=len(wanted.desired),
            spares=warm,
            evaluation=self._services.judging.told,
        )

    def _publish_alerts(self) -> None:
        keeper, end = self._stumbles.trouble, self._ending.trouble
        said = (keeper, end, self._memory.trouble, self._exporter.tend())
        self._alerts = tuple(each for each in said if each is not None)

    def _shown_status(self) -> RunStatus | None:
        """Return what was published last, with what somebody must see to."""
        if (seen := self._published) is None:
            return None
        return {**seen, "alerts": [*self._alerts]}
