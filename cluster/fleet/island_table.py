"""The fleet's table of islands: what each one holds, where, and how its processes have fared."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from cluster.config.schema import Config
from cluster.fleet.backend import Handle, Place, RayCluster
from cluster.fleet.clean_up import each_step
from cluster.fleet.inbox import IslandInbox, ProcessFailed, ProcessStarted, SeatAssignment
from cluster.fleet.reconcile import Hold, Holding, relief
from cluster.fleet.spares import Spare, Spares
from cluster.names import Seat, group_name
from cluster.view import ProcessStarts, View
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
    starts: int = 0
    """Processes that have begun since its last contribution."""
    contributions: int = 0
    """Contributions of all its lives that the syncer has admitted."""
    last_words: str = ""
    """The traceback of its last process that broke."""
    traceback: str = ""
    """The file that has it."""
    process: int = 0
    """The number of its newest process, as counted by this process of the fleet; 0: none seen."""
    process_at_s: float = 0.0
    """The time at which that process began."""
    broke_as: int | None = None
    """The incarnation that broke; None until the syncer has reported it."""
    why: str = ""
    """The reason for its state, for people."""

    def begins(self) -> None:
        """Count one more process of this island that begins."""
        self.starts += 1
        restarted = self.holding.incarnation if self.starts > 1 else self.holding.restarted
        self.holding = replace(
            self.holding, failures=self.starts - 1, silent_since_s=None, restarted=restarted
        )

    def process_began(self, at_s: float) -> None:
        """Note that another process runs this island from this time on."""
        self.process, self.process_at_s = self.process + 1, at_s

    def move(self, hold: Hold, why: str) -> None:
        """Note that the island has reached this state, and why."""
        self.holding = replace(self.holding, hold=hold, since_s=time.monotonic())
        self.why = why

    def given_up(self) -> RunFailed:
        """Return the error of a run that cannot continue without this island."""
        words = f"; its last words:\n{self.last_words}" if self.last_words else ""
        return RunFailed(f"island {self.holding.island} {self.why}{words}")


class Islands:
    """All islands of a run by name, with the spares that may take one over.

    Only the keeper's thread calls these methods. Other threads read `actors`, which is replaced and
    never changed, and the assignments that are posted in the inbox.
    """

    def __init__(self, config: Config, cluster: RayCluster, inbox: IslandInbox) -> None:
        self._policy, self._cluster, self._inbox = config.faults.policy, cluster, inbox
        self._held: dict[Island, HeldIsland] = {}
        self._taken_s = time.monotonic()  # when the inbox was read last
        self.spares = Spares(config, cluster)
        self.actors: Mapping[Island, Handle | None] = MappingProxyType({})

    # --- queries ----------------------------------------------------------------------------------

    def __contains__(self, island: object) -> bool:
        return island in self._held

    def __getitem__(self, island: Island) -> HeldIsland:
        return self._held[island]

    def all(self) -> dict[Island, HeldIsland]:
        """Return every island, sorted by name."""
        return dict(sorted(self._held.items()))

    def holdings(self) -> dict[Island, Holding]:
        """Return the holdings, from which `reconcile` decides."""
        return {island: it.holding for island, it in self._held.items()}

    def taken(self) -> set[Seat]:
        """Return the seats that an island or a spare has."""
        return {it.seat for it in self._held.values()} | self.spares.seats.keys()

    def with_devices(self) -> dict[Island, str]:
        """Return the islands that have devices or have asked for them, with their groups."""
        return {i: group_name(i) for i, it in self._held.items() if it.place is not None}

    def process_starts(self) -> ProcessStarts:
        """Return the newest start of each island's processes, for their time budgets."""
        now_s = time.monotonic()
        newest = {
            island: (it.process, now_s - it.process_at_s)
            for island, it in self._held.items()
            if it.process
        }
        return ProcessStarts(now_s - self._taken_s, newest)

    def aside(self) -> list[HeldIsland]:
        """Return the islands that failed again and again."""
        return [it for it in self._held.values() if it.holding.hold is Hold.ASIDE]

    def post(self) -> None:
        """Publish the present table to processes and other threads."""
        postings = {it.seat: SeatAssignment(island, it.starts) for island, it in self._held.items()}
        postings |= {
            seat: SeatAssignment(None, starts) for seat, starts in self.spares.starts.items()
        }
        self._inbox.post(postings)
        self.actors = MappingProxyType({i: it.actor for i, it in self.all().items()})

    # --- changes ----------------------------------------------------------------------------------

    def put(self, island: Island, it: HeldIsland) -> None:
        """Add an island."""
        self._held[island] = it
        self.post()

    def remove(self, island: Island) -> None:
        """Forget an island."""
        del self._held[island]
        self.post()

    def move(self, island: Island, hold: Hold, why: str) -> None:
        """Note that an island has reached this state, and why."""
        self._held[island].move(hold, why)
        self.post()

    def forgive(self) -> None:
        """Forget the islands that failed again and again: they get another chance."""
        for it in self.aside():
            del self._held[it.holding.island]
        self.post()

    def note_processes(self) -> None:
        """Apply the messages that processes have sent since the last look."""
        contents, self._taken_s = self._inbox.take(), time.monotonic()
        for word in contents.words:
            it = None if word.island is None else self._held.get(word.island)
            match word:
                case ProcessStarted(seat, None, at_s):
                    self.spares.starting(seat, at_s)
                case ProcessStarted(seat, _, at_s) if it is not None and it.seat == seat:
                    it.begins()
                    it.process_began(at_s)
                case ProcessFailed(seat, _, words, traceback) if it is not None and it.seat == seat:
                    it.last_words, it.traceback = words, traceback
                    it.broke_as = None
                    it.holding = replace(it.holding, breakages=it.holding.breakages + 1)
                case _:
                    pass  # another process runs this island by now
        for seat, heartbeat in contents.heard.items():
            self.spares.heard(seat, heartbeat.at_s, warm=heartbeat.warm)
        self.post()

    def note_learners(self, view: View) -> None:
        """Apply the syncer's view of the learners."""
        for island, island_view in view.islands.items():
            if (it := self._held.get(island)) is None:
                continue
            if it.traceback and it.broke_as is None:
                it.broke_as = island_view.incarnation
            if it.holding.hold in (Hold.RUNNING, Hold.DRAINING):
                silent_s = it.holding.silent_since_s
                if island_view.learner != "lost":
                    silent_s = None
                elif it.holding.learner not in ("starting", "lost"):
                    # a loss from before its process began does not count
                    silent_s = time.monotonic()
                it.holding = replace(
                    it.holding,
                    learner=island_view.learner,
                    silent_since_s=silent_s,
                    incarnation=island_view.incarnation,
                )
            if island_view.contributions > it.contributions:
                it.contributions, it.starts = island_view.contributions, 1
                it.holding = replace(it.holding, failures=0, breakages=0)
        self.post()

    def note_devices(self) -> None:
        """Note which devices have become available; Ray's answer may take a while."""
        for island, it in self.all().items():
            if it.holding.hold is Hold.WAITING and it.place is not None and it.place.ready():
                self.move(island, Hold.PLACED, "its devices are there")

    def use_spares(self, desired: frozenset[Island], now_s: float) -> bool:
        """Have warm spares take over lost or restarting islands; return whether one has."""
        pairs = relief(desired, self.holdings(), self.spares.warm(now_s), self._policy)
        for island, seat in pairs:
            it = self._held[island]
            if it.holding.restarted < it.holding.incarnation:
                it.begins()  # count the spare as a start; a restarting process is counted already
            self._relieve(island, seat, now_s)
        self.post()
        return bool(pairs)

    def _relieve(self, island: Island, seat: Seat, now_s: float) -> None:
        """Make this spare the island from now on, and the process at its seat a spare."""
        it, spare = self._held[island], self.spares.take(seat)
        log.warning("the spare %s is %s from now on; %s is a spare", seat, island, it.seat)
        if it.place is not None:
            self.spares.add(Spare(it.seat, group_name(island), now_s, it.place, it.actor))
        it.seat, it.place, it.actor = spare.seat, spare.place, spare.actor
        it.process_began(now_s)
        it.holding = replace(it.holding, relieved=it.holding.incarnation)

    def free(self, it: HeldIsland) -> None:
        """End an island's process, and return its devices."""
        actor, place = it.actor, it.place
        it.actor = it.place = None  # first: the calls below may raise, and must not be repeated
        try:
            if actor is not None:
                self._cluster.end(actor)
        finally:
            if place is not None:
                place.give_back()

    def free_all(self) -> None:
        """End all processes of islands and spares, and return their devices.

        If that fails for one, it is logged, and all others are ended.
        """
        each_step(*(partial(self.free, it) for it in self.all().values()))
        self.spares.give_all_back()

    def find(self, seats: Mapping[Island, Seat], spares: Mapping[Seat, str], now_s: float) -> None:
        """Take over what an earlier process of the fleet has started, if it is still there."""
        for island, seat in seats.items():
            actor, place = self._cluster.find_island(seat), self._cluster.reserved(seat)
            if actor is None and place is None:
                continue
            hold = Hold.WAITING if actor is None else Hold.RUNNING
            self._held[island] = HeldIsland(Holding(island, hold, now_s), seat, place, actor)
        self.spares.find(spares, now_s)
        self.post()
