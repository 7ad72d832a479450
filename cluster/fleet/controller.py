"""The fleet's shell: owns everything of one run, from its first actor to its summary.

One thread keeps the run: it looks at what the syncer says and at what Ray holds, asks `reconcile`
what to do, and does it. Others call `status`, `scale`, `drain`, `stop`; they leave a wish.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from cluster.actors.calls import answer
from cluster.actors.directory import Actor
from cluster.actors.start import (
    Home,
    end_actor,
    find_actor,
    find_island,
    start_evaluator,
    start_island,
    start_shard,
    start_syncer,
)
from cluster.config.rule import group_of
from cluster.config.schema import SERVICES, Config, Harm
from cluster.failures import Unjudged
from cluster.fleet.exporter import Exporter
from cluster.fleet.fault_plan import FaultPlan
from cluster.fleet.injection import break_on_purpose
from cluster.fleet.islands import HeldIsland, begins, given_up
from cluster.fleet.judging import Judging
from cluster.fleet.outcome import SUMMARY_KEYS, Outcome
from cluster.fleet.placement import cluster_nodes, hosts, impossible, reserve, reserved, wish
from cluster.fleet.reconcile import Action, Deed, Hold, Holding, Policy, reconcile, relief, resized
from cluster.fleet.services import AGAIN_S, ANSWER_TIMEOUT_S, AWAY, RayEvaluator
from cluster.fleet.shown import nothing_yet, overlaid
from cluster.fleet.spares import Spare, Spares
from cluster.names import EVALUATOR, FLEET, SYNCER, Seat, free_seat, group_name, shards_of
from cluster.status import RunStatus
from cluster.storage import ownership, runs
from cluster.storage.files import Lines, json_bytes, json_text, write
from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.storage.model_file import fingerprint, model_bytes
from cluster.storage.open import depot_of, patiently
from cluster.storage.ownership import Ownership
from cluster.storage.pids import born
from coordinator.errors import ArchipelagoError, RunFailed, UserMistake
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Island, Version

log = logging.getLogger("archipelago.fleet")
UP_TIMEOUT_S = 20.0
"""So long a wish waits for a fleet that is only just there."""
LEAVE_TIMEOUT_S = 5.0
MODEL = "model.safetensors"
LINGER_S = 30.0
"""So long a fleet that nobody follows can still be asked how its run ended."""


class Fleet:
    """One run and everything that belongs to it. `keep` is the body of its thread."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        namespace: str,
        *,
        detached: bool,
        auth: str,
        token: str,
        resumes: bool,
    ) -> None:
        """`token`: the same for all processes that Ray starts of this fleet, and of no other's.
        `resumes`: a run that another fleet has begun."""
        self._token, self._resumes = token, resumes
        self._own: Ownership | None = None
        self._config, self._run_dir, self._namespace = config, run_dir, namespace
        self._depot = depot_of(config, run_dir)
        self._detached, self._auth = detached, auth
        self._islands: dict[Island, HeldIsland] = {}
        self._desired: frozenset[Island] = frozenset(config.island_names)
        self._policy = Policy(**config.faults.policy.model_dump())
        self._spares = Spares(config, Home(namespace, detached=detached), self._policy)
        self._lock = threading.RLock()  # guards those above and the wishes below
        self._stopping: str | None = None
        self._told_to_stop = False
        self._up = threading.Event()  # brought up, or taken over
        self._seen: RunStatus | None = None
        self._began = time.time()
        self._judging: Judging
        self._unjudged: list[Unjudged] = []  # what the syncer has not been told yet
        self._plan = FaultPlan(config.faults.plan)
        self._fragments_of = shards_of(config.sync.shards, config.sync.fragments)
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
        groups, nodes = {each.group: each for each in self._config.islands}, None
        self._up.wait(UP_TIMEOUT_S)  # a fleet that comes back does not know yet what it wants
        with self._lock:
            wanted = self._desired
            for group, count in counts.items():
                if group not in groups:
                    known = ", ".join(sorted(groups))
                    raise UserMistake(
                        f"run {self._run_dir.name} has no group {group!r}; it has {known}"
                    )
                if count > sum(group_name(island) == group for island in self._desired):
                    nodes = nodes or cluster_nodes()
                    if (no := impossible(groups[group], count, nodes)) is not None:
                        raise UserMistake(no)
                wanted = resized(wanted, group, count)
            self._want(wanted)

    def drain(self, island: Island) -> None:
        """Let this island hand in what it has and leave, and have none in its place.

        Errors: `UserMistake` if there is no such island, or too few would be left.
        """
        self._up.wait(UP_TIMEOUT_S)
        with self._lock:
            if island not in self._desired:
                known = ", ".join(sorted(self._desired))
                raise UserMistake(
                    f"run {self._run_dir.name} has no island {island!r}; it has {known}"
                )
            self._want(self._desired - {island})

    def _want(self, islands: frozenset[Island]) -> None:
        """The lock is held."""
        quorum = self._config.sync.quorum
        if len(islands) < quorum:
            raise UserMistake(
                f"{len(islands)} islands would be left and sync.quorum is {quorum}: no round could "
                "close; to end the run use `archipelago stop`"
            )
        if self._stopping is not None:
            raise UserMistake(f"run {self._run_dir.name} is ending: {self._stopping}")
        self._desired = islands
        for island in [i for i, it in self._islands.items() if it.holding.hold is Hold.ASIDE]:
            del self._islands[island]  # who changes a fleet gives failed islands another chance
        self._keep_in_mind()

    def harm(self, harm: Harm) -> None:
        """Break something on purpose, now.

        Errors: `UserMistake` if it is not there, or would take the fleet with it.
        """
        with self._lock:
            known = sorted(self._islands)
        if (why := harm.misfit(known)) is not None:
            raise UserMistake(f"run {self._run_dir.name}: {why}")
        if harm.kind == "node":
            actor = self._actor_of(Island(harm.island))
            here = ray.get_runtime_context().get_node_id()
            if actor is None or self._get(actor.node.remote()) == here:
                raise UserMistake(
                    f"run {self._run_dir.name}: the node of {harm.island} is the fleet's own"
                )
        if harm.island == FLEET and not self._detached:
            raise UserMistake(f"run {self._run_dir.name} ends with its fleet: it is not submitted")
        if (victim := self._aim(harm)) is None:
            raise UserMistake(f"run {self._run_dir.name}: {harm.island} is not there at present")
        break_on_purpose(victim, harm, self.drain)

    def stop(self, why: str) -> None:
        with self._lock:
            self._stopping = self._stopping or why
            self._keep_in_mind()

    def starting(self, seat: Seat) -> float:
        """A process begins here; for how many seconds it shall wait before it does."""
        now_s = time.monotonic()
        with self._lock:
            if (it := self._at(seat)) is None:
                return self._spares.starting(seat, now_s)
            begins(it)
            island, holding = it.holding.island, it.holding
            ready = self._spares.warm(now_s).get(group_name(island))
            helps = self._stopping is None and self._policy.failing(holding) is None
            if it.starts > 1 and ready and helps:  # it is quicker than this one
                self._relieve(island, ready[0], now_s)
                return self._spares.starting(seat, now_s)
        return self._policy.delay_s(holding.failures)

    def role(self, seat: Seat, *, warm: bool) -> Island | None:
        """Which island the process that is here is; None for a spare. `warm`: it could be one."""
        with self._lock:
            if (it := self._at(seat)) is not None:
                return it.holding.island
            self._spares.heard(seat, time.monotonic(), warm=warm)
        return None

    def broke(self, seat: Seat, words: str) -> None:
        """A process that was here ended with an exception; `words` is its traceback."""
        log.error("the process at %s broke:\n%s", seat, words)
        with self._lock:
            if (it := self._at(seat)) is not None:
                it.last_words = words
                it.holding = replace(it.holding, breakages=it.holding.breakages + 1)

    def _at(self, seat: Seat) -> HeldIsland | None:
        """The island that is here. The lock is held."""
        return next((it for it in self._islands.values() if it.seat == seat), None)

    def _actor_of(self, island: Island) -> Actor | None:
        with self._lock:
            it = self._islands.get(island)
        return None if it is None else it.actor

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
        if self._detached:  # nobody else will
            ray.kill(ray.get_actor(FLEET, namespace=self._namespace), no_restart=True)

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
            runs.reopen(self._run_dir, self._config)
        if (kept := patiently(lambda: runs.kept_of(self._depot))) is not None:
            if (outcome := self._take_over(kept)) is not None:
                return outcome
        else:
            self._bring_up()
        self._up.set()
        self._keep_in_mind()
        gcs = ray.get_runtime_context().gcs_address
        me = os.getpid()
        live = runs.Live(self._run_dir.name, self._namespace, gcs, me, self._auth, born(me))
        runs.announce(self._run_dir, live)
        self._exporter.start()
        with closing(Lines(self._run_dir / "metrics.jsonl")) as metrics:
            while True:
                time.sleep(self._config.monitor.refresh_s)
                own.check()
                if (status := self._look()) is None:
                    continue
                metrics.write(json_text(status))
                if status["phase"] == "finished":
                    try:
                        return self._end()
                    except AWAY as error:  # one of them is back at the next look
                        log.warning("the end is tried again: %s", type(error).__name__)

    def _bring_up(self) -> None:
        config, run_dir = self._config, self._run_dir
        nodes = cluster_nodes()
        groups = [impossible(g, g.count, nodes) for g in config.islands]
        labels = config.sync.shard_labels
        if labels is not None and not hosts(labels, nodes):
            has = "; ".join(map(str, nodes))
            groups.append(f"sync.shard_labels: no node has {labels}; the cluster has {has}")
        if problems := [problem for problem in groups if problem is not None]:
            raise UserMistake("\n".join(problems))
        runs.leave(self._depot, run_dir, runs.CONFIG, config.toml().encode())
        self._core()
        layout, flats = self._insist(self._evaluator.initial.remote)
        self._layout = layout
        for name, fragments in self._fragments_of.items():
            own = {p: flats[p] for p in fragments}
            self._insist(lambda name=name, own=own: self._shards[name].seed.remote(layout, own))
        self._insist(lambda: self._syncer.open.remote(layout))
        self._evaluator.initial_loss.remote()  # which it keeps for the summary

    def _core(self) -> None:
        """The actors that hold no island: started, or found if an earlier fleet started them."""
        config, run_dir, namespace = self._config, self._run_dir, self._namespace
        assert self._own is not None
        owner, home = self._own.number, Home(namespace, detached=self._detached)
        self._evaluator = start_evaluator(config, home)
        evaluate_every_s = config.monitor.evaluate_every_s
        self._judging = Judging(RayEvaluator(self._evaluator), evaluate_every_s)
        labels = config.sync.shard_labels
        nodes = [] if labels is None else hosts(labels, cluster_nodes())
        self._shards = {
            name: start_shard(config, name, home, run_dir, node, owner=owner)
            for name, node in zip(self._fragments_of, cycle(nodes or [None]), strict=False)
        }
        self._syncer = start_syncer(config, run_dir.name, home, run_dir, owner=owner)

    def _take_over(self, kept: runs.FleetMemory) -> Outcome | None:
        """This process comes after another: find what that one has started, if it is still there.

        Returns how the run ended, if it had ended then.
        """
        log.warning("back; taking over %d islands", len(kept["held"]))
        self._depot.tidy(runs.KEPT)
        with self._lock:
            self._desired = frozenset(map(Island, kept["desired"]))
            self._stopping, self._began = self._stopping or kept["stopping"], kept["began"]
        self._plan = FaultPlan(self._config.faults.plan, kept["faults"])
        self._layout = patiently(lambda: load_layout(self._depot))
        if not (self._run_dir / runs.CONFIG).exists():  # on another node, where nobody has been
            write(self._run_dir / runs.CONFIG, self._config.toml().encode())
        now_s = time.monotonic()
        for island, seat in kept["held"].items():
            actor = find_island(seat, self._namespace)
            place = reserved(seat, self._namespace)
            if actor is None and place is None:
                continue
            hold = Hold.WAITING if actor is None else Hold.RUNNING
            self._islands[island] = HeldIsland(Holding(island, hold, now_s), seat, place, actor)
        self._spares.find(kept["spares"], now_s)
        if kept["outcome"] is None:
            self._core()
            return None
        return Outcome(**kept["outcome"])

    def _look(self) -> RunStatus | None:
        """One look at the run, and what follows from it; None if the syncer cannot be heard."""
        try:
            return self._look_and_act()
        except AWAY as error:  # what was not done is decided anew next time
            log.warning("the syncer cannot be heard at present: %s", type(error).__name__)
            return None

    def _look_and_act(self) -> RunStatus | None:
        with self._lock:
            held = {i: group_name(i) for i, it in self._islands.items() if it.place is not None}
        status: RunStatus = self._get(self._syncer.look.remote(held))
        now_s = time.monotonic()
        self._note_learners(status)
        self._note_devices()
        with self._lock:
            desired = self._desired if self._stopping is None else frozenset(self._islands)
            stopping = self._stopping
        if stopping is None:
            self._use_spares(now_s)
        for action in reconcile(desired, self._holdings(), now_s, self._policy):
            self._do(action, now_s)
        self._seen = status
        if status["phase"] in ("starting", "running"):
            self._hope()
            if stopping is not None and not self._told_to_stop:
                self._get(self._syncer.stop.remote(stopping))
                self._told_to_stop = True
            for number, fault in self._plan.due(status).items():
                self._strike(number, fault)
            self._judge()
        return self._shown_status()

    def _use_spares(self, now_s: float) -> None:
        """Have warm ones take over what is lost, and as many of them as are wished for."""
        with self._lock:
            warm = self._spares.warm(now_s)
            for island, seat in relief(self._desired, self._holdings(), warm, self._policy):
                begins(self._islands[island])
                self._relieve(island, seat, now_s)
        if self._spares.tend(self._taken(), now_s):
            self._keep_in_mind()

    def _relieve(self, island: Island, seat: Seat, now_s: float) -> None:
        """This spare is the island from now on, and whoever was it is a spare. The lock is held."""
        it, spare = self._islands[island], self._spares.take(seat)
        log.warning("the spare %s is %s from now on; %s is a spare", seat, island, it.seat)
        if it.place is not None:
            group = group_name(island)
            self._spares.add(Spare(it.seat, group, now_s, it.place, it.actor))
        it.seat, it.place, it.actor = spare.seat, spare.place, spare.actor
        it.holding = replace(it.holding, relieved=it.holding.incarnation)
        self._keep_in_mind()

    def _taken(self) -> set[Seat]:
        with self._lock:
            return {it.seat for it in self._islands.values()}

    def _holdings(self) -> dict[Island, Holding]:
        with self._lock:
            return {island: it.holding for island, it in self._islands.items()}

    def _note_learners(self, status: RunStatus) -> None:
        """Take in what the syncer says of the learners."""
        with self._lock:
            for said in status["islands"]:
                if (it := self._islands.get(Island(said["island"]))) is None:
                    continue
                if it.holding.hold in (Hold.RUNNING, Hold.DRAINING):
                    silent_s = it.holding.silent_since_s
                    if said["state"] != "lost":
                        silent_s = None
                    elif it.holding.learner not in ("starting", "lost"):  # nor was before it began
                        silent_s = time.monotonic()
                    it.holding = replace(
                        it.holding,
                        learner=said["state"],
                        silent_since_s=silent_s,
                        incarnation=said["incarnation"],
                    )
                if said["contributions"] > it.contributions:
                    it.contributions, it.starts = said["contributions"], 1
                    it.holding = replace(it.holding, failures=0, breakages=0)

    def _note_devices(self) -> None:
        """Take in what Ray says of devices; it may think for a while."""
        with self._lock:
            waiting = [it for it in self._islands.values() if it.holding.hold is Hold.WAITING]
        for it in waiting:  # this thread alone moves them on
            if it.place is not None and it.place.ready():
                with self._lock:
                    self._move(it, Hold.PLACED, "its devices are there")

    def _move(self, it: HeldIsland, hold: Hold, why: str) -> None:
        it.holding = replace(it.holding, hold=hold, since_s=time.monotonic())
        it.why = why

    def _do(self, action: Action, now_s: float) -> None:
        """Carry one action out; the next look goes on from what has come of it."""
        island, config = action.island, self._config
        log.info("%s %s: %s", action.deed, island, action.why)
        match action.deed:
            case Deed.PLACE:
                group = group_of(config, island)
                seat = free_seat(group.group, self._taken() | self._spares.seats.keys(), island)
                place = reserve(group, seat, self._namespace, detached=self._detached)
                why = f"waits for {wish(group)}"
                with self._lock:
                    holding = Holding(island, Hold.WAITING, now_s)
                    self._islands[island] = HeldIsland(holding, seat, place, why=why)
                    self._keep_in_mind()
            case Deed.START:
                it = self._islands[island]
                assert it.place is not None
                home = Home(self._namespace, detached=self._detached)
                group, devices = group_of(config, island), it.place.strategy()
                it.actor = start_island(config, group, it.seat, home, devices)
                with self._lock:
                    self._move(it, Hold.RUNNING, action.why)
            case Deed.DRAIN:
                self._get(self._syncer.drain.remote(island, action.why))
                with self._lock:
                    self._move(self._islands[island], Hold.DRAINING, action.why)
            case Deed.GIVE_BACK:
                self._free(self._islands[island])
                with self._lock:
                    del self._islands[island]
                    self._keep_in_mind()
            case Deed.SET_ASIDE:
                it = self._islands[island]
                self._free(it)
                with self._lock:
                    self._move(it, Hold.ASIDE, action.why)
                if self._policy.then == "stop":
                    raise given_up(it)

    def _free(self, it: HeldIsland) -> None:
        """End an island's process and return its devices."""
        if it.actor is not None:
            end_actor(it.actor)
        if it.place is not None:
            it.place.give_back()
        it.actor = it.place = None

    def _hope(self) -> None:
        """Can enough islands still be had?

        Errors: `RunFailed` with the last words of one that was set aside, if not.
        """
        with self._lock:
            aside = [it for it in self._islands.values() if it.holding.hold is Hold.ASIDE]
            left = len(self._desired) - len(aside)
        if aside and left < self._config.sync.quorum:
            raise given_up(max(aside, key=lambda it: bool(it.last_words)))

    def _strike(self, number: int, fault: Harm) -> None:
        """Have a fault of the plan happen, if it can; else it is due at the next look again.

        It is kept before it is done, since it may be this process that it ends.
        """
        if (victim := self._aim(fault)) is not None:
            self._plan.struck(number)
            self._keep_in_mind()
            try:
                break_on_purpose(victim, fault, self.drain)
            except UserMistake as error:  # a drain that would leave too few: the run need not end
                log.warning("the %s of %s does not happen: %s", fault.kind, fault.island, error)

    def _aim(self, harm: Harm) -> Actor | None:
        """Whom it hits, once the syncer has counted it; None if nobody is there.

        Errors: `ActorUnavailableError` if the syncer cannot be heard.
        """
        if harm.island in SERVICES:
            actor = find_actor(harm.island, self._namespace)
        else:
            actor = self._actor_of(Island(harm.island))
        if actor is not None:
            log.warning("%s %s on purpose", harm.kind, harm.island)
            self._get(self._syncer.fault.remote(Island(harm.island)))
        return actor

    def _judge(self) -> None:
        """Have the model judged now and then; that it could not be is counted, and no more."""
        if (why := self._judging.look()) is not None:
            self._unjudged.append(why)
        while self._unjudged:
            self._get(self._syncer.unjudged.remote(self._unjudged[0]))
            self._unjudged.pop(0)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> Outcome:
        """Let the islands go, judge and save the result, sum up."""
        measured: dict[str, object] = self._get(self._syncer.close.remote())
        running = [it.actor for it in self._islands.values() if it.actor is not None]
        goodbyes = [actor.leave.remote() for actor in running]
        if goodbyes:
            ray.wait(goodbyes, num_returns=len(goodbyes), timeout=LEAVE_TIMEOUT_S)
        whole: dict[Fragment, tuple[Version, Flat]] = {}
        for name, own in self._fragments_of.items():
            found = self._get(self._shards[name].whole.remote(own))
            whole |= dict(zip(own, found, strict=True))
        versions, flats = zip(*(whole[p] for p in sorted(whole)), strict=True)
        model = model_bytes(self._layout, flats, versions)
        assert self._own is not None
        self._own.check(again=True)  # what another one trains on has no model yet
        self._leave(MODEL, model)
        losses, missing = self._judging.verdict(flats)
        measured |= losses
        measured["global_sha256"] = fingerprint(flats)
        measured["wall_s"] = time.time() - self._began
        summary = {key: measured[key] for key in SUMMARY_KEYS}
        self._leave(runs.SUMMARY, json_bytes(summary))
        return Outcome(summary, asked=self._stopping, missing=missing)

    def _leave(self, name: str, content: bytes) -> None:
        """For people; and in the depot, if that is elsewhere and will have it."""
        write(self._run_dir / name, content)
        if self._depot != Folder(self._run_dir):
            try:
                self._depot.write(name, content)
            except OSError as error:
                log.error("%s is not in %s: %s", name, self._depot, error)

    def _clean_up(self) -> None:
        """End everything that belongs to the run; nothing else."""
        self._exporter.stop()
        if self._writes():
            runs.retire(self._run_dir)
        for it in self._islands.values():
            self._free(it)
        self._spares.give_all_back()
        for name in (SYNCER, *self._fragments_of, EVALUATOR):
            if (actor := find_actor(name, self._namespace)) is not None:
                ray.kill(actor, no_restart=True)

    # --- helpers ----------------------------------------------------------------------------------

    def _keep_in_mind(self, outcome: Outcome | None = None) -> None:
        """For a process that comes after this one; before there is anything to take over, there is
        nothing to keep."""
        if not self._up.is_set() or not self._writes():
            return
        with self._lock:
            kept = runs.FleetMemory(
                desired=sorted(self._desired),
                held={island: it.seat for island, it in sorted(self._islands.items())},
                spares=self._spares.seats,
                stopping=self._stopping,
                faults=self._plan.done,
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

    def _get(self, reference: ray.ObjectRef) -> Any:
        try:
            return answer(reference, ANSWER_TIMEOUT_S)
        except GetTimeoutError as error:
            words = f"an actor of the run has not answered for {ANSWER_TIMEOUT_S:g} s"
            raise RunFailed(words) from error

    def _insist(self, ask: Callable[[], ray.ObjectRef]) -> Any:
        """... asked again while the actor is being restarted, since nothing can go on without."""
        while True:
            try:
                return self._get(ask())
            except AWAY as error:
                log.warning("asking again: %s", type(error).__name__)
                time.sleep(AGAIN_S)

    def _shown_status(self) -> RunStatus | None:
        """What the syncer said last, with what the fleet knows of islands on top."""
        if (seen := self._seen) is None:
            return None
        said = {each["island"]: each for each in seen["islands"]}
        with self._lock:
            shown = [overlaid(said.get(island), it) for island, it in sorted(self._islands.items())]
            warm = sum(map(len, self._spares.warm(time.monotonic()).values()))
        return {**seen, "islands": shown, "wanted": len(self._desired), "spares": warm}
