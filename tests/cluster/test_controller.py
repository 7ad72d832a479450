"""Tests of the fleet over a fake Ray cluster: whole runs, from start to summary, in milliseconds.

The fake's syncer shows the test's script; the fake records places, actors and calls. The
controller, its table of islands, core actors, fault injection, results, files and ownership are
real.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cluster.config.load import parse
from cluster.config.schema import Config, Harm, IslandGroup, Machines
from cluster.fleet import controller, core_actors, keeper
from cluster.fleet.backend import AliveCheck, RayCluster, Unavailable
from cluster.fleet.controller import Fleet
from cluster.fleet.core_actors import CoreActors
from cluster.fleet.evaluation import Evaluating, Pending
from cluster.fleet.given_up import CHECK_LOOKS
from cluster.fleet.outcome import Outcome
from cluster.fleet.placement import Node
from cluster.fleet.status_view import starting_status
from cluster.names import (
    EVALUATOR,
    SYNCER,
    Seat,
    island_actor,
    region_evaluator,
    seat_of_actor,
)
from cluster.status import IslandState, IslandStatus, RunStatus
from cluster.storage import fleet_file, runs
from cluster.storage.folder import Folder
from cluster.storage.layout import save_layout
from cluster.view import IslandView, View
from cluster.workers.evaluator_answers import Judged
from coordinator.errors import RunFailed, Unreachable, UserMistake
from coordinator.fragments import Layout, Leaf, cut
from coordinator.protocol import Fragment, Island, Version
from coordinator.state import Phase

A, B, C = (Island(f"eu-{n}") for n in range(3))
LAYOUT: Layout = cut([Leaf("w", (8,))], 1)
FLAT = np.arange(8, dtype=np.float32)
FIGURES = dict.fromkeys(
    (
        "tokens_trained", "tokens_merged", "tokens_discarded", "tokens_lost", "tokens_outstanding",
        "merges", "mean_participants", "goodput", "uptime", "faults", "recovery_s",
        "max_merge_gap_s", "up_bytes_per_token", "down_bytes_per_token", "rejected_contributions",
        "effective_overlap",
    ),
    1,
)  # fmt: skip


@dataclass
class FakePlace:
    """Devices that are there when the cluster has `room`."""

    cluster: FakeCluster
    seat: Seat

    def ready(self) -> bool:
        return self.cluster.room

    def give_back(self) -> None:
        del self.cluster.places[self.seat]

    def nodes(self) -> list[str]:
        return [f"node of {self.seat}"]


class FakeEvaluator(Evaluating):
    def ask(self, method: str, *arguments: object) -> Pending:
        said = {"judge": None, "judged": Judged(3, 0.5, 0.5, 4, 68)}
        return lambda wait_s: said.get(method, 1.5)

    def restart(self) -> None:
        raise AssertionError("it answers")


@dataclass
class FakeCluster(RayCluster):
    """One namespace: actors and places by name, the calls to them, and what the syncer shows.

    `script` holds what the syncer's next looks show, in turn; the last entry stays. `actors` and
    `places` outlive a fleet, as detached actors do.
    """

    config: Config
    script: list[Callable[[], View]] = field(default_factory=list)
    run_dir: Path = Path()
    room: bool = True
    away: int = 0  # the number of calls to the syncer that fail next
    actors: dict[str, str] = field(default_factory=dict)
    places: dict[Seat, FakePlace] = field(default_factory=dict)
    said: list[tuple[str, str, tuple[object, ...]]] = field(default_factory=list)
    looks: int = 0
    reserved_once: list[Seat] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    drains: dict[str, float | None] = field(default_factory=dict)
    refused_drains: int = 0  # the number of requests to drain a node that fail next
    started: list[str] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)  # actors for which Ray starts no process

    def draining(self) -> dict[str, float | None]:
        return dict(self.drains)

    def drain_node(self, node: str, why: str, left_s: float) -> bool:
        if self.refused_drains:
            self.refused_drains -= 1
            return False
        self.drains[node] = left_s
        return True

    def nodes(self) -> list[Node]:
        return [Node("here", {"CPU": 8.0, "memory": 1e9}, {})]

    def here(self) -> str:
        return "node-0"

    def address(self) -> str:
        return "192.0.2.1:6379"

    def reserve(self, machines: Machines, seat: Seat) -> FakePlace:
        assert seat not in self.places, f"{seat} has devices already"
        self.places[seat] = FakePlace(self, seat)
        self.reserved_once.append(seat)
        return self.places[seat]

    def reserved(self, seat: Seat) -> FakePlace | None:
        return self.places.get(seat)

    def _start(self, name: str) -> str:
        self.started.append(name)
        self.actors[name] = name
        return name

    def start_island(self, group: IslandGroup, seat: Seat, place: Any) -> str:
        assert self.places[seat] is place
        return self._start(island_actor(seat))

    def start_region_evaluator(self, region: str) -> str:
        return self._start(region_evaluator(region))

    def start_evaluator(self, place: Any) -> str:
        assert self.places.get(Seat(EVALUATOR)) is place
        return self._start(EVALUATOR)

    def start_shard(self, name: str, node: str | None, owner: int) -> str:
        return self._start(name)

    def start_syncer(self, owner: int) -> str:
        return self._start(SYNCER)

    def find(self, name: str) -> str | None:
        return self.actors.get(name)

    def find_island(self, seat: Seat) -> str | None:
        return self.find(island_actor(seat))

    def seats(self) -> list[Seat]:
        named = map(seat_of_actor, self.actors)
        return sorted({*self.places, *filter(None, named)} - {Seat(EVALUATOR)})

    def end(self, actor: str) -> None:
        self.given_up.discard(actor)
        del self.actors[actor]

    def restart(self, actor: str) -> None:
        assert actor in self.actors
        self.restarted.append(actor)

    def sign(self, actor: str) -> Pending:
        return lambda wait_s: None

    def alive(self, actor: str) -> AliveCheck:
        return lambda: (True, "its packages cannot be unpacked" if actor in self.given_up else "")

    def ask(
        self,
        actor: str,
        method: str,
        *arguments: object,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        if method == "fault" and actor not in self.actors:  # people call while a run ends
            raise Unavailable(f"{actor} has ended")
        assert actor in self.actors, f"{method} of {actor}, which is not there"
        if actor == SYNCER and self.away:
            self.away -= 1
            raise Unavailable("ActorUnavailableError")
        self.said.append((actor, method, arguments))
        match method:
            case "layout":
                return LAYOUT
            case "seed":
                return [arguments[1]], ""
            case "open":
                return save_layout(Folder(self.run_dir), LAYOUT)  # as the syncer does
            case "look":
                self.looks += 1
                show = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                return show(), self.status()
            case "close":
                return dict(FIGURES)
            case "whole":
                return [(Version(0, 3), FLAT) for _ in [Fragment(0)]]
            case "node":
                return "node-1"
            case _:
                return None

    def status(self) -> RunStatus:
        return starting_status("run", self.config)

    def promise(self, actor: str, method: str, *arguments: object) -> object:
        self.said.append((actor, method, arguments))
        return FLAT

    def tell(self, actor: str, method: str, *arguments: object) -> None:
        assert actor in self.actors
        self.said.append((actor, method, arguments))

    def tell_all(self, actors: Sequence[str], method: str, within_s: float) -> None:
        for actor in actors:
            self.tell(actor, method)

    def evaluating(self, evaluator: str) -> Evaluating:
        return FakeEvaluator()

    def heard(self, method: str) -> list[tuple[str, tuple[object, ...]]]:
        """Return the actors that were called with this method, and the arguments."""
        return [(actor, arguments) for actor, name, arguments in self.said if name == method]


def config_of(count: int = 2, **tables: Any) -> Config:
    islands = {"group": "eu", "count": count, **tables.pop("islands", {})}
    return parse(
        {
            "task": {"preset": "byte-tiny"},
            "sync": {"fragments": 1, **tables.pop("sync", {})},
            "islands": [islands],
            "monitor": {"refresh_s": 0.001, "metrics": False, "evaluate_every_s": 1000.0},
            **tables,
        }
    )


def seen(
    *,
    t: int = 1,
    phase: Phase = Phase.RUNNING,
    **learners: IslandState | tuple[IslandState, int] | tuple[IslandState, int, int],
) -> Callable[[], View]:
    """Return a look of the syncer: each island's learner, its incarnation and its contributions."""

    def view(said: IslandState | tuple[Any, ...]) -> IslandView:
        return IslandView(*said) if isinstance(said, tuple) else IslandView(said)

    islands = {Island(name.replace("_", "-")): view(said) for name, said in learners.items()}
    return lambda: View(t, phase, islands)


FINISHED = seen(phase=Phase.FINISHED)


STEADY: list[Fleet] = []
"""Fleets of the test whose keepers must not raise an exception."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(keeper, "LINGER_S", 0.0)
    monkeypatch.setattr(controller, "UP_TIMEOUT_S", 0.0)
    monkeypatch.setattr(controller, "KEPT_TIMEOUT_S", 0.0)  # the keeper's own thread calls here
    STEADY.clear()
    yield
    assert [fleet.status().get("alerts") for fleet in STEADY if fleet.keeper_errors] == []


def fleet_of(config: Config, cluster: FakeCluster, run_dir: Path, token: str = "a") -> Fleet:
    cluster.run_dir = run_dir
    fleet = Fleet(
        config,
        run_dir,
        "there",
        cluster,
        detached=True,
        auth="disabled",
        token=token,
        resumes=False,
    )
    STEADY.append(fleet)
    return fleet


def run(config: Config, cluster: FakeCluster, run_dir: Path) -> Outcome:
    fleet = fleet_of(config, cluster, run_dir)
    fleet.keep()
    assert fleet.outcome is not None
    return fleet.outcome


def events_of(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the recorded events of these kinds."""
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["kind"] in kinds]


class ClusterWithStatus(FakeCluster):
    """A cluster whose syncer has each island of a look in its status, too."""

    shown: View

    def status(self) -> RunStatus:
        begun = starting_status("run", self.config)
        islands = [island_row(name, each) for name, each in self.shown.islands.items()]
        return {**begun, "phase": "running", "islands": islands}


def island_row(name: Island, shown: IslandView) -> IslandStatus:
    """Return an island's row in a status."""
    return {
        "island": name, "group": "eu", "state": shown.learner, "incarnation": 1, "life": 1,
        "steps": 0, "tokens_per_s": 0.0, "loss": None, "why": "", "contributions": 0,
        "cosine": None, "restarts": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("end", "texts"),
    [
        ("left", ["eu-1 has left"]),
        ("lost", ["eu-1 is lost", "eu-1 is gone from the run"]),
    ],
)
def test_events_name_the_end_of_a_drain(
    tmp_path: Path, end: IslandState, texts: Sequence[str]
) -> None:
    """An island returns its devices in the same look in which the fleet learns of its end."""
    cluster = ClusterWithStatus(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def show(*, drain: bool = False, **learners: IslandState) -> Callable[[], View]:
        def view() -> View:
            if drain:
                fleet.drain(B)
            cluster.shown = seen(**cast("Any", learners))()
            return cluster.shown

        return view

    live, gone = show(eu_0="live", eu_1="live"), show(eu_0="live", eu_1=end)
    draining = show(eu_0="live", eu_1="draining")
    drain = show(drain=True, eu_0="live", eu_1="live")
    cluster.script = [show(), show(), live, drain, draining, gone, gone, gone, FINISHED]
    fleet.keep()
    found = events_of(tmp_path / "run", "drain", "leave", "loss")
    assert [each["text"].partition(":")[0] for each in found] == ["eu-1 is draining", *texts]


def of_two_hosts(**tables: Any) -> Config:
    """Return the configuration of a run whose evaluator has machines of its own."""
    monitor = {"refresh_s": 0.001, "metrics": False, "evaluate_every_s": 1000.0}
    return config_of(monitor=monitor | {"evaluator": {"hosts": 2}}, **tables)


def test_evaluator_of_several_hosts_returns_its_machines(tmp_path: Path) -> None:
    cluster = FakeCluster(of_two_hosts(), [seen(), seen(t=5, eu_0="live"), FINISHED])
    outcome = run(cluster.config, cluster, tmp_path / "run")
    assert outcome.error is None
    assert outcome.summary["heldout_loss"] == 1.5
    assert cluster.reserved_once == [Seat(EVALUATOR), Seat("eu-0"), Seat("eu-1")]
    assert (cluster.actors, cluster.places) == ({}, {}), "nothing is left"


def test_evaluator_without_machines_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_actors, "PLACED_S", 0.0)
    monkeypatch.setattr(core_actors, "AGAIN_S", 0.0)
    cluster = FakeCluster(of_two_hosts(), [FINISHED], room=False)
    outcome = run(cluster.config, cluster, tmp_path / "run")
    said = str(outcome.error)
    assert "monitor.evaluator: 2 hosts of no devices cannot be had for 0 s" in said
    assert (cluster.actors, cluster.places) == ({}, {}), "nothing is left"


def test_runs_from_first_actor_to_summary(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(), [seen(), seen(), seen(t=5, eu_0="live"), FINISHED])
    outcome = run(cluster.config, cluster, tmp_path / "run")
    assert outcome.error is None
    assert outcome.summary["heldout_loss"] == 1.5
    assert [who for who, _ in cluster.heard("leave")] == ["island eu-0", "island eu-1"]
    assert [name for _, name, _ in cluster.said[:3]] == ["layout", "initial", "seed"]
    held = [arguments[0] for _, arguments in cluster.heard("look")]
    assert held[0] is None, "before the first action the fleet does not know who has devices"
    assert held[1] == {"eu-0": "eu", "eu-1": "eu"}
    assert (cluster.actors, cluster.places) == ({}, {}), "nothing is left"
    assert json.loads((tmp_path / "run" / runs.SUMMARY).read_text())["merges"] == 1
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / runs.LIVE).exists()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["heldout"][-1] == [last["t"], 1.5], "of the final model"
    assert all(not json.loads(line)["heldout"] for line in lines[:-1])


def test_thread_that_dies_raises_an_alert(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(), [seen(), seen(t=5, eu_0="live"), FINISHED])
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    fleet.lost_thread(ValueError("a defect"))
    fleet.keep()
    assert fleet.keeper_errors == 1
    wanted = "a thread of the fleet ended with ValueError: a defect"
    assert wanted in fleet.status().get("alerts", ())
    STEADY.remove(fleet)


def test_shard_that_dies_during_seeding_is_seeded_again(
    tmp_path: Path,
) -> None:
    class Dying(FakeCluster):
        has: list[Fragment]

        def ask(
            self,
            actor: str,
            method: str,
            *arguments: Any,
            meanwhile: Callable[[], None] = lambda: None,
        ) -> Any:
            if method != "seed":
                return super().ask(actor, method, *arguments, meanwhile=meanwhile)
            seeds = len(self.heard("seed"))
            super().ask(actor, method, *arguments, meanwhile=meanwhile)
            if seeds == 1:
                self.has = []
                raise Unavailable("ActorUnavailableError")
            self.has = [*(self.has if seeds else []), arguments[1]]
            return self.has, ""

    cluster = Dying(config_of(sync={"fragments": 3}), run_dir=tmp_path)
    core = CoreActors(cluster.config, cluster)
    core.start(owner=1)
    core.begin()
    assert [p for _, (_, p, _) in cluster.heard("seed")] == [0, 1, 1, 0, 2]
    assert [p for _, (p,) in cluster.heard("initial")] == [0, 1, 1, 0, 2]


def test_impossible_placement_is_refused_before_anything_starts(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(9), [FINISHED])
    outcome = run(cluster.config, cluster, tmp_path / "run")
    assert outcome.mistake
    assert "can never be placed" in str(outcome.error)
    assert cluster.said == [], "no actor was called"


def test_starts_no_process_before_its_devices_are_there(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(1), room=False)

    shown = list[str]()

    def waits() -> View:
        assert "island eu-0" not in cluster.actors
        shown.extend(each["why"] for each in fleet.status()["islands"])
        cluster.room = cluster.looks > 3
        return seen()()

    def started() -> View:
        return (FINISHED if "island eu-0" in cluster.actors else seen())()

    cluster.script = [waits, waits, waits, waits, started]
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    fleet.keep()
    assert fleet.outcome is not None
    assert fleet.outcome.error is None
    (why,) = set(shown)
    assert re.fullmatch(r"waits for 1 CPU since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", why)


def test_waits_for_a_syncer_that_is_away_even_at_the_end(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(1), [seen()])

    def ends() -> View:
        cluster.away = 2
        cluster.script = [FINISHED]
        return FINISHED()

    cluster.script = [seen(), ends]
    outcome = run(cluster.config, cluster, tmp_path / "run")
    assert outcome.error is None
    assert len(cluster.heard("close")) == 1


def dying(fleet: Fleet, seat: str, contributions: int = 0) -> Callable[[], View]:
    """Return a look at which another process of this island starts and then breaks."""

    def look() -> View:
        fleet.starting(Seat(seat))
        fleet.broke(Seat(seat), f"Traceback:\nValueError: {seat} cannot")
        return View(1, Phase.RUNNING, {Island(seat): IslandView("lost", 1, contributions)})

    return look


def test_crash_looping_island_is_set_aside_and_the_run_continues(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    cluster.script = [seen(), seen(), *[dying(fleet, "eu-0")] * 3, seen(), FINISHED]
    fleet.keep()
    assert fleet.outcome is not None
    assert fleet.outcome.error is None
    assert fleet._keeper._islands[A].last_words.endswith("eu-0 cannot")
    (said,) = (each for each in fleet.status()["islands"] if each["island"] == A)
    assert said["why"].endswith("; traceback in tracebacks/eu-0-3.txt")
    kept = tmp_path / "run" / "tracebacks" / "eu-0-3.txt"
    assert kept.read_text().endswith("ValueError: eu-0 cannot")
    assert [who for who, _ in cluster.heard("leave")] == ["island eu-1"]


def given_up(cluster: FakeCluster, times: int) -> Callable[[], View]:
    """Have Ray give up the actor of eu-0 at each look, this many times."""
    left = [times]

    def show() -> View:
        actor = "island eu-0"
        if left[0] and actor in cluster.actors and actor not in cluster.given_up:
            cluster.given_up.add(actor)
            left[0] -= 1
        return seen(eu_1="live")()

    return show


@pytest.mark.parametrize(("times", "starts", "is_aside"), [(2, 3, False), (100, 5, True)])
def test_island_whose_actor_ray_gives_up_is_started_again(
    tmp_path: Path, times: int, starts: int, is_aside: bool
) -> None:
    """Ray gives up an actor whose process it cannot prepare; the process cannot report that."""
    policy = {"deaths": 3}
    cluster = FakeCluster(config_of(2, faults={"policy": policy}))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    shows = given_up(cluster, times)
    cluster.script = [seen(), seen(), *[shows] * 20 * CHECK_LOOKS, FINISHED]
    fleet.keep()
    assert fleet.outcome is not None
    assert fleet.outcome.error is None
    assert cluster.started.count("island eu-0") == starts
    (told,) = (each for each in fleet.status()["islands"] if each["island"] == A)
    assert (told["state"] == "set aside") == is_aside
    assert ("3 processes ended" in told["why"] and "cannot be unpacked" in told["why"]) == is_aside


def test_contribution_resets_the_count_of_failures(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    broken = [dying(fleet, "eu-0")] * 2
    cluster.script = [seen(), seen(), *broken, seen(eu_0=("live", 2, 1)), *broken, seen(), FINISHED]
    fleet.keep()
    assert [who for who, _ in cluster.heard("leave")] == ["island eu-0", "island eu-1"]


def test_run_without_a_possible_quorum_ends_with_the_last_error(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster(config_of(2, sync={"quorum": 2}))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    cluster.script = [seen(), seen(), *[dying(fleet, "eu-0")] * 3, seen()]
    fleet.keep()
    assert fleet.outcome is not None
    assert "eu-0 broke 3 times" in str(fleet.outcome.error)
    assert "ValueError: eu-0 cannot" in str(fleet.outcome.error)
    assert (cluster.actors, cluster.places) == ({}, {})


def test_warm_spare_replaces_a_lost_island(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(1, islands={"spares": 1}))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def warm() -> View:
        assert fleet.role(Seat("eu+0"), warm=True) is None
        assert fleet.starting(Seat("eu-0")) == 0.0
        assert fleet.role(Seat("eu-0"), warm=False) == A, "it only begins: nothing is lost yet"
        return seen(eu_0=("live", 1, 1))()

    def lost() -> View:
        assert fleet.role(Seat("eu+0"), warm=True) is None
        return seen(eu_0=("lost", 1, 1))()

    def swapped() -> View:
        assert fleet.role(Seat("eu+0"), warm=True) == A
        assert fleet.role(Seat("eu-0"), warm=False) is None, "it is the spare"
        kept = fleet_file.load_fleet_memory(fleet._keeper._depot)
        assert kept is not None
        assert (kept["held"], list(kept["spares"])) == ({A: "eu+0"}, ["eu-0"])
        return FINISHED()

    cluster.script = [seen(), seen(), seen(), warm, lost, swapped]
    fleet.keep()
    assert fleet.outcome is not None
    assert fleet.outcome.error is None
    assert (cluster.actors, cluster.places) == ({}, {})


def test_scales_up_and_down_during_the_run(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def more() -> View:
        fleet.scale({"eu": 3})
        return seen(eu_0="live", eu_1="live")()

    def fewer() -> View:
        assert "island eu-2" in cluster.actors
        fleet.scale({"eu": 1})
        return seen(eu_0="live", eu_1="live", eu_2="joining")()

    gone = seen(eu_0="live", eu_1="left", eu_2="left")
    cluster.script = [seen(), more, seen(), seen(), fewer, gone, gone, FINISHED]
    fleet.keep()
    assert sorted(str(island) for _, (island, _) in cluster.heard("drain")) == ["eu-1", "eu-2"]
    assert [who for who, _ in cluster.heard("leave")] == ["island eu-0"]


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ({"us": 1}, "has no group 'us'; it has eu"),
        ({"eu": 0}, "no round could close"),
        ({"eu": 9}, "can never be placed"),
    ],
)
def test_impossible_scaling_is_refused_and_changes_nothing(
    tmp_path: Path, counts: Mapping[str, int], why: str
) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    with pytest.raises(UserMistake, match=why):
        fleet.scale(counts)
    assert fleet._requests.desired == {A, B}


def test_stop_is_sent_once_and_no_request_is_accepted_after_it(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def stops() -> View:
        fleet.stop("Ctrl-C")
        fleet.stop("SIGTERM")
        with pytest.raises(UserMistake, match="is ending: Ctrl-C"):
            fleet.scale({"eu": 1})
        return seen(eu_0="live", eu_1="live")()

    stopping = seen(phase=Phase.STOPPING, eu_0="live", eu_1="live")
    running = seen(eu_0="live", eu_1="live")  # the syncer has not begun to stop yet
    cluster.script = [seen(), seen(), stops, running, running, stopping, FINISHED]
    fleet.keep()
    assert cluster.heard("stop") == [(SYNCER, ("Ctrl-C",))]
    assert fleet.outcome is not None
    assert fleet.outcome.asked == "Ctrl-C"


def test_each_planned_fault_is_counted_recorded_and_done_once(tmp_path: Path) -> None:
    plan = [
        {"kind": "kill", "island": "eu-0", "at_step": 3},
        {"kind": "slow", "island": "eu-1", "at_step": 3, "factor": 4.0, "for_s": 2.0},
        {"kind": "disk", "island": "shard-0", "at_step": 4, "for_s": 1.0},
        {"kind": "drain", "island": "eu-1", "at_step": 5},
    ]
    cluster = FakeCluster(config_of(3, faults={"plan": plan}))
    looks = [seen(t=t, eu_0="live", eu_1="live", eu_2="live") for t in (2, 3, 3, 4, 5, 5)]
    gone = seen(t=5, eu_0="live", eu_1="left", eu_2="live")
    cluster.script = [seen(), seen(), *looks, gone, FINISHED]
    assert run(cluster.config, cluster, tmp_path / "run").error is None
    assert cluster.heard("kill") == [("island eu-0", ())]
    assert cluster.heard("slow") == [("island eu-1", (4.0, 2.0))]
    assert cluster.heard("fill") == [("shard-0", (1.0,))]
    assert [island for _, (island, _) in cluster.heard("drain")] == [B]
    counted = [arguments[0] for _, arguments in cluster.heard("fault")]
    assert counted == ["eu-0", "eu-1", "shard-0", "eu-1"], "by the syncer, before it is done"
    lasting = {each["island"]: each["for_s"] for each in events_of(tmp_path / "run", "fault")[:3]}
    assert lasting == {"eu-0": None, "eu-1": 2.0, "shard-0": 1.0}


def test_harm_to_an_absent_process_is_refused(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(1))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    with pytest.raises(UserMistake, match="names no island"):
        fleet.harm(Harm.model_validate({"kind": "kill", "island": "eu-0"}))
    with pytest.raises(UserMistake, match="is not there at present"):
        fleet.harm(Harm.model_validate({"kind": "kill", "island": "syncer"}))
    fleet._keeper._core.start(1)
    cluster.away = 1
    with pytest.raises(Unreachable, match="which counts faults, does not answer at present"):
        fleet.harm(Harm.model_validate({"kind": "kill", "island": "syncer"}))


class Killed(BaseException):
    """The death of the fleet's process by SIGKILL."""


def killed() -> View:
    raise Killed


def test_next_process_takes_over_from_a_killed_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(config_of(2))
    first = fleet_of(cluster.config, cluster, tmp_path / "run")

    def scaled() -> View:
        first.scale({"eu": 3})
        return seen(eu_0="live", eu_1="live")()

    cluster.script = [seen(), scaled, seen(), seen(), killed]
    monkeypatch.setattr(first._keeper, "_let_go", lambda outcome: None)
    first.keep()
    assert first._keeper._own is not None
    first._keeper._own.leave(begun="no file of this name")
    before = dict(cluster.actors)
    assert "island eu-2" in before
    asked = len(cluster.said)
    second = fleet_of(cluster.config, cluster, tmp_path / "run")
    cluster.script = [seen(eu_0="live", eu_1="live", eu_2="live"), FINISHED]
    second.keep()
    assert second.outcome is not None
    assert second.outcome.error is None
    later = cluster.said[asked:]
    assert not [name for _, name, _ in later if name in ("layout", "initial", "seed", "open")]
    leaving = [who for who, name, _ in later if name == "leave"]
    assert leaving == ["island eu-0", "island eu-1", "island eu-2"], "three, as was wished for"
    assert (cluster.actors, cluster.places) == ({}, {})


def test_fleet_of_a_finished_run_only_reports_the_outcome(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(1), [seen(), seen(), FINISHED])
    first = run(cluster.config, cluster, tmp_path / "run")
    said = len(cluster.said)
    again = run(cluster.config, cluster, tmp_path / "run")
    assert again == replace(first, summary=json.loads(json.dumps(first.summary)))
    assert cluster.said[said:] == [], "no actor is started or called again"


SEED = random.randrange(2**32)
STATES: tuple[IslandState, ...] = ("joining", "live", "lost", "quarantined", "left", "draining")


@pytest.mark.parametrize("number", range(40))
def test_random_events_end_with_nothing_left(tmp_path: Path, number: int) -> None:
    """Play random events; the run must end, and nothing of it may be left.

    Learners come and go, processes break, people scale, drain, stop and inject faults, the syncer
    is away, and devices are short.
    """
    print(f"seed {SEED}/{number}")
    dice = random.Random(f"{SEED}/{number}")
    spares = dice.choice((0, 0, 1, 2))
    policy = {"exceptions": dice.randint(1, 4), "deaths": dice.randint(1, 5)}
    policy |= {"first_delay_s": 0.001, "hang_s": dice.choice((0.01, 300.0)), "drain_s": 0.01}
    islands = {"spares": spares, "opportunistic": True}
    cluster = FakeCluster(config_of(dice.randint(1, 4), islands=islands, faults={"policy": policy}))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    looks = dice.randint(3, 40)

    def look() -> View:
        cluster.room, cluster.away = dice.random() < 0.7, int(dice.random() < 0.1)
        seats = [*cluster.places]
        for seat in dice.sample(seats, min(len(seats), dice.randint(0, 2))):
            match dice.randrange(4):
                case 0:
                    assert fleet.starting(seat) >= 0
                case 1:
                    fleet.broke(seat, "Traceback:\nValueError: by chance")
                case _:
                    fleet.role(seat, warm=dice.random() < 0.7)
        try:
            match dice.randrange(8):
                case 0:
                    fleet.scale({"eu": dice.randint(0, 6)})
                case 1:
                    fleet.drain(Island(f"eu-{dice.randrange(6)}"))
                case 2:
                    kind = dice.choice(("kill", "stop", "nan", "slow", "drain", "disk"))
                    whom = dice.choice(("eu-0", "eu-1", "syncer", "shard-0", "evaluator"))
                    fleet.harm(Harm.model_validate({"kind": kind, "island": whom}))
                case 3 if dice.random() < 0.1:
                    fleet.stop("by chance")
                case _:
                    pass
        except (UserMistake, Unreachable):
            pass  # the caller gets this answer
        learners = {
            Island(f"eu-{n}"): IslandView(dice.choice(STATES), dice.randrange(9), dice.randrange(9))
            for n in range(6)
        }
        over = cluster.looks > looks
        return View(cluster.looks, Phase.FINISHED if over else Phase.RUNNING, learners)

    cluster.script = [look]
    fleet.keep()
    assert fleet.outcome is not None
    if fleet.outcome.error is not None:
        assert "without a contribution between" in fleet.outcome.error
    assert (cluster.actors, cluster.places) == ({}, {})
    kept = fleet_file.load_fleet_memory(fleet._keeper._depot)
    assert kept is not None
    assert kept["outcome"] is not None


def test_unanswered_call_ends_the_run(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(1))

    def fails() -> View:
        raise RunFailed("an actor of the run has not answered for 120 s")

    cluster.script = [seen(), fails]
    outcome = run(cluster.config, cluster, tmp_path / "run")
    assert (outcome.summary, outcome.mistake) == ({}, False)
    assert "has not answered" in str(outcome.error)
    assert (cluster.actors, cluster.places) == ({}, {})


def test_status_is_answered_while_the_depot_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "KEPT_TIMEOUT_S", 60.0)
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    writing, go, was = threading.Event(), threading.Event(), fleet_file.save_fleet_memory

    def keep(depot: Any, kept: Any) -> None:
        if kept["stopping"] is not None and kept["outcome"] is None:
            writing.set()
            assert go.wait(60)
        was(depot, kept)

    monkeypatch.setattr(fleet_file, "save_fleet_memory", keep)

    def goes_on() -> View:
        over = FINISHED if go.is_set() else seen(eu_0="live", eu_1="live")
        return over()

    cluster.script = [goes_on]
    with ThreadPoolExecutor(3) as pool:
        keeping = pool.submit(fleet.keep)
        stopping = pool.submit(fleet.stop, "Ctrl-C")
        assert writing.wait(60)
        assert fleet.status()["run"] == "run"
        assert fleet.starting(Seat("eu-0")) >= 0
        assert not stopping.done(), "that it is to stop is not written down yet"
        go.set()
        stopping.result(60)
        keeping.result(60)
    assert fleet.outcome is not None
    assert fleet.outcome.asked == "Ctrl-C"
