"""The fleet over a fake cluster: its keeper, the island processes, and users with requests.

Each call to the cluster takes a time that the seed chooses. Each process of an island or a spare is
a thread that calls the fleet as a real one does. The fleet is real, with its requests, inbox,
islands, spares, watchdog, results, files and ownership.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ray.exceptions import GetTimeoutError

from cluster.config.schema import Harm, IslandGroup, Machines
from cluster.fleet import (
    controller,
    core_actors,
    error_budget,
    inbox,
    island_table,
    keeper,
    reconcile_loop,
    requests,
    results,
    shutdown,
    takeover,
)
from cluster.fleet.backend import Unavailable
from cluster.fleet.controller import Fleet
from cluster.fleet.evaluation import Pending
from cluster.names import SYNCER, Seat, island_actor
from cluster.status import IslandState
from cluster.storage import fleet_file, ownership
from cluster.storage.folder import Folder
from cluster.view import IslandView, View
from coordinator.errors import RunFailed, Unreachable, UserMistake
from coordinator.protocol import Island
from coordinator.state import Phase
from tests.cluster.test_controller import FakeCluster, FakePlace, config_of
from tests.shells.scheduler import Scheduler

CALL_S = 0.05
"""Seconds of the longest call to Ray or to an actor."""
QUICK_S = 0.5
"""Seconds within which a process must get an answer, which waits for no other process."""
WISH_S = 40.0
"""Seconds within which users must get an answer.

They wait until the fleet is up and has written the request down.
"""
LIVES_S = 3.0
"""Seconds of the longest life of an island's process."""
LOOKS = 60
"""The number of the keeper's looks after which the run finishes without a request."""
HANG_S = 4.0


@dataclass
class World(FakeCluster):
    """The cluster as a scheduler plays it, and the syncer's view of the learners."""

    scheduler: Scheduler = field(kw_only=True)
    fleet: Fleet = field(init=False)
    learners: dict[Island, IslandView] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    stands: bool = False  # the syncer gives no sign
    stopping: bool = False
    over: bool = False

    def _goes(self, call: str) -> None:
        self.scheduler.nap(call, CALL_S)

    # --- places and actors ------------------------------------------------------------------------

    def reserve(self, machines: Machines, seat: Seat) -> FakePlace:
        self._goes(f"reserve {seat}")
        return super().reserve(machines, seat)

    def start_island(self, group: IslandGroup, seat: Seat, place: Any) -> str:
        self._goes(f"start {seat}")
        assert place is self.places.get(seat), f"{seat} is started on devices of another seat"
        actor = super().start_island(group, seat, place)
        self._begin(seat)
        return actor

    def _begin(self, seat: Seat) -> None:
        name = island_actor(seat)
        self.begun[name] = self.begun.get(name, 0) + 1
        number = self.begun[name]
        self.scheduler.spawn(lambda: self._live(seat, number), f"{name} {number}", daemon=True)

    def end(self, actor: str) -> None:
        self._goes(f"end {actor}")
        super().end(actor)
        self.begun[actor] = self.begun.get(actor, 0) + 1

    def restart(self, actor: str) -> None:
        super().restart(actor)
        self.stands = False

    def sign(self, actor: str) -> Pending:
        def pending(wait_s: float) -> object:
            if actor == SYNCER and self.stands:
                raise GetTimeoutError
            return None

        return pending

    def ask(
        self,
        actor: str,
        method: str,
        *arguments: object,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        self._goes(f"{method} of {actor}")
        if actor not in self.actors and self.scheduler.name != "keep":
            raise RunFailed(f"{actor} has died")  # the run is over for the caller
        while actor == SYNCER and self.stands:
            self.scheduler.sleep(0.5)
            meanwhile()
        if actor == SYNCER and method in ("look", "close") and self.scheduler.rng.random() < 0.05:
            raise Unavailable("by chance")
        if method == "stop":
            self.stopping = True
        if method == "drain":
            island = arguments[0]
            assert isinstance(island, str)
            self._said(Island(island), "left")
        return super().ask(actor, method, *arguments, meanwhile=meanwhile)

    def tell(self, actor: str, method: str, *arguments: object) -> None:
        """Call an actor without waiting.

        As in Ray, a call to an actor that has ended raises nothing.
        """
        if actor in self.actors or self.scheduler.name == "keep":
            super().tell(actor, method, *arguments)

    def tell_all(self, actors: Sequence[str], method: str, within_s: float) -> None:
        self._goes(method)
        super().tell_all(actors, method, within_s)

    # --- a process of an island or a spare --------------------------------------------------------

    def _live(self, seat: Seat, number: int) -> None:
        s, fleet = self.scheduler, self.fleet

        def gone() -> bool:
            return self.begun.get(island_actor(seat)) != number

        with s.within(QUICK_S, "the start of a process"):
            wait_s = fleet.starting(seat)
        s.sleep(wait_s)
        s.nap("imports", 1.0)
        with s.within(QUICK_S, "a role"):
            island = fleet.role(seat, warm=False)
        while island is None and not gone():
            s.sleep(0.2)
            with s.within(QUICK_S, "a role"):
                island = fleet.role(seat, warm=True)
        if island is None or gone():
            return
        before = self.learners.get(island, IslandView("starting"))
        self.learners[island] = IslandView("live", before.incarnation + 1, before.contributions)
        s.nap("trains", LIVES_S)
        if gone() or fleet.role(seat, warm=False) != island:
            return
        if s.rng.random() < 0.5:
            mine = self.learners[island]
            more = mine.contributions + 1
            self.learners[island] = IslandView(mine.learner, mine.incarnation, more)
        if s.rng.random() < 0.3:
            with s.within(QUICK_S, "last words"):
                fleet.broke(seat, "Traceback:\nValueError: by chance")
        self._said(island, "lost")
        s.nap("Ray restarts it", 0.5)
        if not gone() and island_actor(seat) in self.actors:
            self._begin(seat)

    def _said(self, island: Island, learner: IslandState) -> None:
        if (was := self.learners.get(island)) is not None:
            self.learners[island] = IslandView(learner, was.incarnation, was.contributions)

    # --- the syncer and users ---------------------------------------------------------------------

    def look(self) -> View:
        if self.scheduler.rng.random() < 0.02:
            self.stands = True
        if self.looks > LOOKS or (self.stopping and self.scheduler.rng.random() < 0.2):
            self.over = True
        phase = Phase.FINISHED if self.over else Phase.RUNNING
        return View(self.looks, phase, dict(self.learners))

    def people(self) -> None:
        """Make a request now and then, also after the end."""
        s, fleet = self.scheduler, self.fleet
        for _ in range(4):
            s.nap("thinks", 8.0)
            with s.within(WISH_S, "an answer to people"):
                try:
                    match s.rng.randrange(6):
                        case 0 | 1:
                            fleet.scale({"eu": s.rng.randint(1, 4)})
                        case 2 | 3:
                            fleet.drain(Island(f"eu-{s.rng.randrange(4)}"))
                        case 4:
                            whom = s.rng.choice(("eu-0", "eu-1", "syncer"))
                            fleet.harm(Harm.model_validate({"kind": "kill", "island": whom}))
                        case _:
                            fleet.stop("by chance")
                except (UserMistake, Unreachable, RunFailed):
                    pass  # the caller gets this answer
            with s.within(QUICK_S, "a status"):
                fleet.status()


def play(scheduler: Scheduler) -> None:
    """Bring a run up, keep it and end it, under one schedule."""
    policy = {"exceptions": 3, "deaths": 4, "first_delay_s": 0.1, "longest_delay_s": 1.0}
    policy |= {"hang_s": 5.0, "drain_s": 2.0}
    config = config_of(
        scheduler.rng.randint(1, 3),
        islands={"spares": scheduler.rng.choice((0, 1)), "opportunistic": True},
        faults={"policy": policy},
        durability={"hang_s": HANG_S},
        monitor={"refresh_s": 0.25, "metrics": False, "evaluate_every_s": 1000.0},
    )
    modules = (
        controller, core_actors, error_budget, inbox, island_table, keeper, ownership,
        reconcile_loop, requests, results, shutdown, takeover,
    )  # fmt: skip
    with TemporaryDirectory() as folder, scheduler.controls(*modules):
        run_dir = Path(folder) / "run"
        world = World(config, run_dir=run_dir, scheduler=scheduler)
        world.script = [world.look]
        world.fleet = fleet = Fleet(
            config,
            run_dir,
            "there",
            world,
            detached=True,
            auth="disabled",
            token="a",
            resumes=False,
        )
        scheduler.spawn(fleet.keep, "keep")
        for number in range(2):
            scheduler.spawn(world.people, f"people {number}")
        scheduler.run()
        assert fleet.keeper_errors == 0, "the keeper broke"
        assert fleet.outcome is not None
        if fleet.outcome.error is not None:
            assert "without a contribution between" in fleet.outcome.error
        assert (world.actors, world.places) == ({}, {}), "something is left"
        kept = fleet_file.load_fleet_memory(Folder(run_dir))
        assert kept is not None
        assert kept["outcome"] is not None, "an ended run would be taken up again"
