"""The fleet's shell: owns everything of one run, from its first actor to its summary.

One thread keeps the run: it looks at what the syncer says and at what Ray holds, asks `reconcile`
what to do, does it, and looks again. Others call `status`, `scale`, `drain`, `stop`; they leave a
wish. What is there is in `islands`, the core actors in `services`, faults in `injection`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from cluster.config.rule import group_of
from cluster.config.schema import Config, Harm
from cluster.fleet.cluster import RayCluster, Unavailable
from cluster.fleet.exporter import Exporter
from cluster.fleet.injection import Injection
from cluster.fleet.islands import HeldIsland, Islands
from cluster.fleet.outcome import Outcome
from cluster.fleet.placement import homeless, hosts, impossible, wish
from cluster.fleet.reconcile import Action, Deed, Hold, Holding, reconcile
from cluster.fleet.results import Results
from cluster.fleet.services import Services
from cluster.fleet.shown import line_of, nothing_yet, shown
from cluster.fleet.tracebacks import keep_traceback
from cluster.fleet.wishes import Wishes
from cluster.names import FLEET, Seat, free_seat
from cluster.status import RunStatus
from cluster.storage import ownership, runs
from cluster.storage.files import write
from cluster.storage.layout import load_layout
from cluster.storage.looks import LOOKS, Looks
from cluster.storage.open import depot_of, patiently
from cluster.storage.ownership import Ownership
from cluster.storage.pids import born
from cluster.view import View
from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.fragments import Layout
from coordinator.protocol import Island
from coordinator.state import Phase

log = logging.getLogger("archipelago.fleet")

UP_TIMEOUT_S = 20.0
"""So long a wish waits for a fleet that is only just there."""
LEAVE_TIMEOUT_S = 5.0
LINGER_S = 30.0
"""So long a fleet that nobody follows can still be asked how its run ended."""


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
        self._token, self._resumes, self._cluster = token, resumes, cluster
        self._from_stored = from_stored
        self._own: Ownership | None = None
        self._config, self._run_dir, self._namespace = config, run_dir, namespace
        self._depot = depot_of(config, run_dir)
        self._detached, self._auth = detached, auth
        self._lock = threading.RLock()  # of the islands, and of the wishes below
        self._keeping = threading.Lock()  # taken before the other one
        self._islands = Islands(config, cluster, self._lock)
        self._wishes = Wishes(run_dir.name, config, cluster.nodes)
        self._told_to_stop = False
        self._up = threading.Event()  # brought up, or taken over
        self._seen: RunStatus | None = None
        self._began = time.time()
        self._services = Services(config, cluster)
        of_run = (run_dir.name, config, cluster, self._islands, self._services, self.drain)
        self._injection = Injection(*of_run, outlives=detached)
        self._layout: Layout
        self._exporter = Exporter(run_dir, config.monitor, self._shown_status)
        self._dismissed = threading.Event()
        self.outcome: Outcome | None = None

    # --- called by others -------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """The run as it was when last looked at."""
        return self._shown_status() or nothing_yet(self._run_dir.name, self._config)

    def scale(self, counts: Mapping[str, int]) -> None:
        """Have so many islands of each of these groups.

        Errors: `UserMistake` if one is not there, or could never be; then nothing is changed.
        """
        self._up.wait(UP_TIMEOUT_S)  # a fleet that comes back does not know yet what it wants
        with self._lock:
            self._wishes.scale(counts)
            self._islands.forgive()
        self._keep_in_mind()

    def drain(self, island: Island) -> None:
        """Let this island hand in what it has and leave, and have none in its place.

        Errors: `UserMistake` if there is no such island, or too few would be left.
        """
        self._up.wait(UP_TIMEOUT_S)
        with self._lock:
            self._wishes.drain(island)
            self._islands.forgive()
        self._keep_in_mind()

    def harm(self, harm: Harm) -> None:
        """Break something on purpose, now.

        Errors: `UserMistake` if it is not there, or would take the fleet with it.
        """
        self._injection.harm(harm)

    def stop(self, why: str) -> None:
        """Have the run end."""
        with self._lock:
            self._wishes.stop(why)
        self._keep_in_mind()

    def starting(self, seat: Seat) -> float:
        """A process begins here; for how many seconds it shall wait before it does."""
        with self._lock:
            wait_s, taken_over = self._islands.starting(seat, helps=self._wishes.stopping is None)
        if taken_over:
            self._keep_in_mind()
        return wait_s

    def role(self, seat: Seat, *, warm: bool) -> Island | None:
        """Which island the process that is here is; None for a spare. `warm`: it could be one."""
        return self._islands.role(seat, warm=warm)

    def broke(self, seat: Seat, words: str) -> None:
        """A process that was here ended with an exception; `words` is its traceback."""
        name = keep_traceback(self._run_dir, seat, words)
        log.error("the process at %s broke (%s):\n%s", seat, name or "kept nowhere", words)
        self._islands.broke(seat, words, name)

    def dismiss(self) -> None:
        """Whoever followed the run knows how it ended."""
        self._dismissed.set()

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
        run, mine = self._run_dir.name, ownership.me(self._token)
        self._own = own = patiently(lambda: ownership.take(self._depot, run, mine))
        own.start()
        if self._resumes and own.life == 1:
            stored = self._from_stored
            runs.reopen(self._run_dir, self._config, own.number, from_stored=stored)
        if (kept := patiently(lambda: runs.kept_of(self._depot))) is not None:
            if (outcome := self._take_over(kept, own.number)) is not None:
                return outcome
        else:
            self._bring_up(own.number)
        self._up.set()
        self._keep_in_mind()
        me, head = os.getpid(), self._cluster.address()
        live = runs.Live(run, self._namespace, head, me, self._auth, born(me))
        runs.announce(self._run_dir, live)
        self._exporter.start()
        with closing(Looks(self._run_dir / LOOKS, self._config.monitor.metrics_mb)) as metrics:
            while True:
                time.sleep(self._config.monitor.refresh_s)
                own.check()
                if (outcome := self._look(metrics)) is not None:
                    return outcome

    def _look(self, metrics: Looks) -> Outcome | None:
        """Look at the run once and do what follows; how it ended, None while it goes on."""
        try:
            view = self._look_and_act()
        except Unavailable as error:  # what was not done is decided anew next time
            log.warning("the syncer cannot be heard at present: %s", error)
            return None
        if (status := self._shown_status()) is not None:
            metrics.write(line_of(status))
        if view.phase is not Phase.FINISHED:
            return None
        try:
            return self._end()
        except Unavailable as error:  # one of them is back at the next look
            log.warning("the end is tried again: %s", error)
            return None

    def _bring_up(self, owner: int) -> None:
        config, nodes = self._config, self._cluster.nodes()
        problems = [
            problem
            for g in config.islands
            if (problem := impossible(g, g.count, nodes)) is not None
        ]
        if (problem := homeless(config.monitor.evaluator, nodes)) is not None:
            problems.append(problem)
        labels = config.sync.shard_labels
        if labels is not None and not hosts(labels, nodes):
            has = "; ".join(map(str, nodes))
            problems.append(f"sync.shard_labels: no node has {labels}; the cluster has {has}")
        if problems:
            raise UserMistake("\n".join(problems))
        runs.leave(self._depot, self._run_dir, runs.CONFIG, config.toml().encode())
        self._services.start(owner)
        self._layout = self._services.begin()

    def _take_over(self, kept: runs.FleetMemory, owner: int) -> Outcome | None:
        """This process comes after another: find what that one has started, if it is still there.

        Returns how the run ended, if it had ended then.
        """
        log.warning("back; taking over %d islands", len(kept["held"]))
        self._depot.tidy(runs.KEPT)
        with self._lock:
            self._wishes.desired = frozenset(map(Island, kept["desired"]))
            self._wishes.stopping = self._wishes.stopping or kept["stopping"]
            self._began = kept["began"]
        self._injection.remember(kept["faults"])
        self._layout = patiently(lambda: load_layout(self._depot))
        if not (self._run_dir / runs.CONFIG).exists():  # on another node, where nobody has been
            write(self._run_dir / runs.CONFIG, self._config.toml().encode())
        self._islands.find(kept["held"], kept["spares"], time.monotonic())
        if kept["outcome"] is None:
            self._services.start(owner)
            return None
        return Outcome(**kept["outcome"])

    def _look_and_act(self) -> View:
        view, status = self._services.look(self._islands.with_devices())
        now_s = time.monotonic()
        self._islands.note_learners(view)
        self._islands.note_devices()
        with self._lock:
            stopping = self._wishes.stopping
            desired = self._wishes.desired if stopping is None else frozenset(self._islands.all())
        if stopping is None:
            changed = self._islands.use_spares(desired, now_s)
            if self._islands.spares.tend(self._islands.taken(), now_s) or changed:
                self._keep_in_mind()
        policy = self._config.faults.policy
        for action in reconcile(desired, self._islands.holdings(), now_s, policy):
            self._do(action, now_s)
        self._seen = status
        if view.phase is Phase.RUNNING:
            self._hope()
            if stopping is not None and not self._told_to_stop:
                self._services.stop(stopping)
                self._told_to_stop = True
            self._injection.strike_what_is_due(view, self._keep_in_mind)
            self._services.judge()
        return view

    def _do(self, action: Action, now_s: float) -> None:
        """Carry one action out; the next look goes on from what has come of it."""
        island, islands = action.island, self._islands
        log.info("%s %s: %s", action.deed, island, action.why)
        match action.deed:
            case Deed.PLACE:
                group = group_of(self._config, island)
                seat = free_seat(group.group, islands.taken(), island)
                place, why = self._cluster.reserve(group, seat), f"waits for {wish(group)}"
                holding = Holding(island, Hold.WAITING, now_s)
                islands.put(island, HeldIsland(holding, seat, place, why=why))
                self._keep_in_mind()
            case Deed.START:
                it = islands[island]
                assert it.place is not None
                group = group_of(self._config, island)
                it.actor = self._cluster.start_island(group, it.seat, it.place)
                islands.move(island, Hold.RUNNING, action.why)
            case Deed.DRAIN:
                self._services.drain(island, action.why)
                islands.move(island, Hold.DRAINING, action.why)
            case Deed.GIVE_BACK:
                islands.free(islands[island])
                islands.remove(island)
                self._keep_in_mind()
            case Deed.SET_ASIDE:
                it = islands[island]
                islands.free(it)
                islands.move(island, Hold.ASIDE, action.why)
                if self._config.faults.policy.then == "stop":
                    raise it.given_up()

    def _hope(self) -> None:
        """Can enough islands still be had?

        Errors: `RunFailed` with the last words of one that was set aside, if not.
        """
        aside = self._islands.aside()
        if aside and len(self._wishes.desired) - len(aside) < self._config.sync.quorum:
            raise max(aside, key=lambda it: bool(it.last_words)).given_up()

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> Outcome:
        """Let the islands go, judge and save the result, sum up."""
        measured, own = self._services.close(), self._own
        assert own is not None
        running = [it.actor for it in self._islands.all().values() if it.actor is not None]
        self._cluster.tell_all(running, "leave", LEAVE_TIMEOUT_S)
        return Results(self._run_dir, self._depot).leave(
            self._services,
            self._layout,
            measured,
            check=lambda: own.check(again=True),
            began=self._began,
            asked=lambda: self._wishes.stopping,
        )

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
        to take over, there is nothing to keep. A depot that does not answer holds nobody up who
        only looks, so the islands' lock is not held."""
        if not self._up.is_set() or not self._writes():
            return
        with self._keeping:
            with self._lock:
                kept = runs.FleetMemory(
                    desired=sorted(self._wishes.desired),
                    held={island: it.seat for island, it in self._islands.all().items()},
                    spares=self._islands.spares.seats,
                    stopping=self._wishes.stopping,
                    faults=self._injection.done,
                    began=self._began,
                    outcome=None if outcome is None else asdict(outcome),
                )
            try:
                runs.keep(self._depot, kept)
            except OSError as error:  # the run goes on; only a fleet that died now would not know
                log.error("what the fleet must remember could not be written: %s", error)

    def _writes(self) -> bool:
        """Is the run this process's still?"""
        return self._own is not None and self._own.lost is None

    def _shown_status(self) -> RunStatus | None:
        """What the syncer said last, with what the fleet knows of islands on top."""
        if (seen := self._seen) is None:
            return None
        with self._lock:
            warm = sum(map(len, self._islands.spares.warm(time.monotonic()).values()))
            wanted, told = len(self._wishes.desired), self._services.judging.told
            return shown(seen, self._islands.all(), wanted=wanted, spares=warm, evaluation=told)
