"""The fleet's table of islands: what each one holds, where, and how its processes have fared."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.config.schema import Config
from cluster.fleet.cluster import Handle, Place, RayCluster
from cluster.fleet.reconcile import Hold, Holding, delay_s, failing, relief
from cluster.fleet.spares import Spare, Spares
from cluster.names import Seat, group_name
from cluster.view import View
from coordinator.errors import RunFailed
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")


@dataclass(slots=True)
class HeldIsland:
    """One island's holding, and the handles that go with it."""

    holding: Holding
    seat: Seat
    place: Place | None = None
    actor: Handle | None = None
    starts: int = 0  # of its process, since its last contribution
    contributions: int = 0
    last_words: str = ""
    traceback: str = ""  # the file that has them, until its next contribution
    why: str = ""

    def begins(self) -> None:
        """Count one more process of this island that begins."""
        self.starts += 1
        self.holding = replace(self.holding, failures=self.starts - 1, silent_since_s=None)

    def move(self, hold: Hold, why: str) -> None:
        """It has got there, for this reason."""
        self.holding = replace(self.holding, hold=hold, since_s=time.monotonic())
        self.why = why

    def given_up(self) -> RunFailed:
        """The error of a run that cannot do without it."""
        words = f"; its last words:\n{self.last_words}" if self.last_words else ""
        return RunFailed(f"island {self.holding.island} {self.why}{words}")


class Islands:
    """All islands of a run by name, with the spares that may take one over.

    Every method takes the fleet's lock, since processes that begin ask from threads of their own;
    none waits for Ray with it held but those that say so.
    """

    def __init__(self, config: Config, cluster: RayCluster, lock: threading.RLock) -> None:
        self._policy, self._cluster, self._lock = config.faults.policy, cluster, lock
        self._held: dict[Island, HeldIsland] = {}
        self.spares = Spares(config, cluster)

    # --- what processes say -----------------------------------------------------------------------

    def starting(self, seat: Seat, *, helps: bool) -> tuple[float, bool]:
        """A process begins here: for how many seconds it shall wait before it does, and whether a
        spare has taken its island over. `helps`: islands may still be taken over."""
        now_s = time.monotonic()
        with self._lock:
            if (it := self._at(seat)) is None:
                return self.spares.starting(seat, now_s), False
            it.begins()
            island, holding = it.holding.island, it.holding
            ready = self.spares.warm(now_s).get(group_name(island))
            helps = helps and failing(self._policy, holding) is None
            if it.starts > 1 and ready and helps:  # it is quicker than this one
                self._relieve(island, ready[0], now_s)
                return self.spares.starting(seat, now_s), True
        return delay_s(self._policy, holding.failures), False

    def role(self, seat: Seat, *, warm: bool) -> Island | None:
        """Which island the process that is here is; None for a spare. `warm`: it could be one."""
        with self._lock:
            if (it := self._at(seat)) is not None:
                return it.holding.island
            self.spares.heard(seat, time.monotonic(), warm=warm)
        return None

    def broke(self, seat: Seat, words: str, traceback: str = "") -> None:
        """A process that was here ended with an exception; `words` is its traceback, and
        `traceback` the file of the run directory that has it."""
        with self._lock:
            if (it := self._at(seat)) is not None:
                it.last_words, it.traceback = words, traceback
                it.holding = replace(it.holding, breakages=it.holding.breakages + 1)

    def _at(self, seat: Seat) -> HeldIsland | None:
        """The island that is here. The lock is held."""
        return next((it for it in self._held.values() if it.seat == seat), None)

    # --- what is there ----------------------------------------------------------------------------

    def __contains__(self, island: object) -> bool:
        with self._lock:
            return island in self._held

    def __getitem__(self, island: Island) -> HeldIsland:
        with self._lock:
            return self._held[island]

    def all(self) -> dict[Island, HeldIsland]:
        """Every island, in order."""
        with self._lock:
            return dict(sorted(self._held.items()))

    def actor_of(self, island: Island) -> Handle | None:
        with self._lock:
            it = self._held.get(island)
        return None if it is None else it.actor

    def holdings(self) -> dict[Island, Holding]:
        with self._lock:
            return {island: it.holding for island, it in self._held.items()}

    def taken(self) -> set[Seat]:
        """Seats that an island or a spare has."""
        with self._lock:
            return {it.seat for it in self._held.values()} | self.spares.seats.keys()

    def with_devices(self) -> dict[Island, str]:
        """The islands that have devices, or have asked for them, with their groups."""
        with self._lock:
            return {i: group_name(i) for i, it in self._held.items() if it.place is not None}

    def aside(self) -> list[HeldIsland]:
        """Those that failed again and again."""
        with self._lock:
            return [it for it in self._held.values() if it.holding.hold is Hold.ASIDE]

    # --- what changes -----------------------------------------------------------------------------

    def put(self, island: Island, it: HeldIsland) -> None:
        with self._lock:
            self._held[island] = it

    def remove(self, island: Island) -> None:
        with self._lock:
            del self._held[island]

    def move(self, island: Island, hold: Hold, why: str) -> None:
        with self._lock:
            self._held[island].move(hold, why)

    def forgive(self) -> None:
        """Forget which islands failed again and again: they get another chance."""
        with self._lock:
            for it in self.aside():
                del self._held[it.holding.island]

    def note_learners(self, view: View) -> None:
        """Take in what the syncer says of the learners."""
        with self._lock:
            for island, said in view.islands.items():
                if (it := self._held.get(island)) is None:
                    continue
                if it.holding.hold in (Hold.RUNNING, Hold.DRAINING):
                    silent_s = it.holding.silent_since_s
                    if said.learner != "lost":
                        silent_s = None
                    elif it.holding.learner not in ("starting", "lost"):  # nor was before it began
                        silent_s = time.monotonic()
                    it.holding = replace(
                        it.holding,
                        learner=said.learner,
                        silent_since_s=silent_s,
                        incarnation=said.incarnation,
                    )
                if said.contributions > it.contributions:
                    it.contributions, it.starts, it.traceback = said.contributions, 1, ""
                    it.holding = replace(it.holding, failures=0, breakages=0)

    def note_devices(self) -> None:
        """Take in what Ray says of devices, which may take a while; the lock is free meanwhile."""
        with self._lock:
            waiting = [it for it in self._held.values() if it.holding.hold is Hold.WAITING]
        for it in waiting:  # the keeper's thread alone moves them on
            if it.place is not None and it.place.ready():
                with self._lock:
                    it.move(Hold.PLACED, "its devices are there")

    def use_spares(self, desired: frozenset[Island], now_s: float) -> bool:
        """Have warm spares take over what is lost; True if one has."""
        with self._lock:
            warm = self.spares.warm(now_s)
            pairs = relief(desired, self.holdings(), warm, self._policy)
            for island, seat in pairs:
                self._held[island].begins()
                self._relieve(island, seat, now_s)
        return bool(pairs)

    def _relieve(self, island: Island, seat: Seat, now_s: float) -> None:
        """This spare is the island from now on, and whoever was it is a spare. The lock is held."""
        it, spare = self._held[island], self.spares.take(seat)
        log.warning("the spare %s is %s from now on; %s is a spare", seat, island, it.seat)
        if it.place is not None:
            self.spares.add(Spare(it.seat, group_name(island), now_s, it.place, it.actor))
        it.seat, it.place, it.actor = spare.seat, spare.place, spare.actor
        it.holding = replace(it.holding, relieved=it.holding.incarnation)

    def free(self, it: HeldIsland) -> None:
        """End an island's process and return its devices."""
        if it.actor is not None:
            self._cluster.end(it.actor)
        if it.place is not None:
            it.place.give_back()
        it.actor = it.place = None

    def free_all(self) -> None:
        """End all processes of islands and spares."""
        for it in self.all().values():
            self.free(it)
        self.spares.give_all_back()

    def find(self, seats: Mapping[Island, Seat], spares: Mapping[Seat, str], now_s: float) -> None:
        """Take over what an earlier life of the fleet has started, as far as it is there."""
        for island, seat in seats.items():
            actor, place = self._cluster.find_island(seat), self._cluster.reserved(seat)
            if actor is None and place is None:
                continue
            hold = Hold.WAITING if actor is None else Hold.RUNNING
            self.put(island, HeldIsland(Holding(island, hold, now_s), seat, place, actor))
        self.spares.find(spares, now_s)
