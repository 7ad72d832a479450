"""Tests of the fleet's keeper under late requests, full disks, defects and silent processes."""

from __future__ import annotations

import errno
import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError
from safetensors.numpy import load_file

from cluster.config.schema import Config
from cluster.fleet import depot_reads, error_budget, fleet_memory, reconcile_loop
from cluster.fleet import shutdown as ending
from cluster.fleet.backend import StorageSilent, Unavailable
from cluster.fleet.controller import Fleet
from cluster.fleet.evaluation import Evaluating, Pending
from cluster.fleet.requests import Requests
from cluster.fleet.syncer_outage import SyncerOutage
from cluster.fleet.trouble_events import open_troubles
from cluster.names import SYNCER, Seat
from cluster.storage import (
    files,
    fleet_file,
    folder,
    limited_calls,
    model_file,
    ownership,
    runs,
)
from cluster.storage.files import write
from cluster.storage.folder import Folder
from cluster.storage.metrics_log import EVENTS, LOOKS
from cluster.storage.model_file import NAME
from cluster.view import View
from coordinator.errors import RunFailed, UserMistake
from coordinator.protocol import Island
from tests.cluster.test_controller import (
    FINISHED,
    STEADY,
    A,
    FakeCluster,
    FakeEvaluator,
    at_once,
    config_of,
    dying,
    fleet_of,
    seen,
)
from tests.cluster.test_metrics import scraped

assert at_once, "a fixture that is used by its name alone"
LIVE = seen(eu_0="live", eu_1="live")
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (ending, "AGAIN_S"), (error_budget, "FIRST_S"), (depot_reads, "PATIENCE_S"),
        (fleet_memory, "RETRY_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.0)


def error_of(fleet: Fleet) -> str | None:
    assert fleet.outcome is not None
    return fleet.outcome.error


def kept_of(run_dir: Path) -> fleet_file.FleetMemory:
    kept = fleet_file.load_fleet_memory(Folder(run_dir))
    assert kept is not None
    return kept


def events_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / EVENTS).read_text().splitlines()]


# --- late requests --------------------------------------------------------------------------------


def test_request_during_the_shutdown_does_not_erase_the_outcome(tmp_path: Path) -> None:
    class Ending(FakeCluster):
        """A cluster in which a user presses Ctrl-C and a process begins while actors are ended."""

        def end(self, actor: str) -> None:
            super().end(actor)
            fleet.stop("Ctrl-C")
            fleet.starting(Seat("eu-0"))
            with pytest.raises(UserMistake, match=r"is ending|is over"):
                fleet.scale({"eu": 1})

    cluster = Ending(config_of(2), [seen(), LIVE, FINISHED])
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    fleet.keep()
    assert error_of(fleet) is None
    kept = kept_of(tmp_path / "run")
    assert kept["outcome"] is not None
    assert kept["stopping"] is None


def test_late_request_does_not_overwrite_the_memory_of_the_next_owner(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    cluster = FakeCluster(config_of(2), [seen(), LIVE, FINISHED])
    fleet = fleet_of(cluster.config, cluster, run_dir)
    fleet.keep()
    ownership.take(Folder(run_dir), "run", ownership.me("another"))
    mine = kept_of(run_dir)
    mine["outcome"], mine["desired"] = None, [Island("eu-0"), Island("eu-1")]
    fleet_file.save_fleet_memory(Folder(run_dir), mine)
    fleet.stop("late Ctrl-C")
    assert kept_of(run_dir) == mine


def test_scale_between_decision_and_action_does_not_change_the_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An island fails for the last time and is drained; then a scale pardons those set aside."""
    cluster = FakeCluster(config_of(3))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    decide, wished = reconcile_loop.reconcile, list[str]()

    def between(*arguments: Any) -> Any:
        actions = decide(*arguments)
        for action in actions:
            if action.island == A and action.kind == "set aside":
                wished.append("drain")
                fleet.drain(A)
            if action.island == A and action.kind == "give back":
                wished.append("scale")
                fleet.scale({"eu": 2})
        return actions

    monkeypatch.setattr(reconcile_loop, "reconcile", between)
    cluster.script = [seen(), seen(), *[dying(fleet, "eu-0")] * 3, seen(), seen(), FINISHED]
    fleet.keep()
    assert wished[0] == "drain"
    assert error_of(fleet) is None
    assert (cluster.actors, cluster.places) == ({}, {})


def test_restart_during_a_release_leaves_the_spare_alone(tmp_path: Path) -> None:
    once = list[float]()

    class Beginning(FakeCluster):
        """A cluster in which Ray restarts the process of eu-0 while it is being ended."""

        def end(self, actor: str) -> None:
            if actor == "island eu-0" and not once:
                once.append(fleet.starting(Seat("eu-0")))
            super().end(actor)

    cluster = Beginning(config_of(2, islands={"spares": 1}))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def warm() -> View:
        fleet.role(Seat("eu+0"), warm=True)
        fleet.starting(Seat("eu-0"))
        return seen(eu_0=("live", 1, 0), eu_1=("live", 1, 0))()

    def drained() -> View:
        fleet.role(Seat("eu+0"), warm=True)
        fleet.drain(A)
        return seen(eu_0=("lost", 1, 0), eu_1=("live", 1, 0))()

    def after() -> View:
        assert Seat("eu+0") in cluster.places, "the spare has its devices"
        assert Seat("eu-0") not in cluster.places
        assert "island eu+0" in cluster.actors
        return FINISHED()

    cluster.script = [seen(), seen(), seen(), warm, drained, after]
    fleet.keep()
    assert once
    assert error_of(fleet) is None
    assert (cluster.actors, cluster.places) == ({}, {})


def test_restarting_process_is_replaced_by_a_warm_spare(tmp_path: Path) -> None:
    """The spare takes over before the syncer has noticed the loss, but not after a rejoin."""
    cluster = FakeCluster(config_of(1, islands={"spares": 1}))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def warm() -> View:
        fleet.role(Seat("eu+0"), warm=True)
        fleet.starting(Seat("eu-0"))
        return seen()()

    def joins() -> View:
        assert fleet.role(Seat("eu-0"), warm=False) == A, "it only begins: nothing is lost yet"
        return seen(eu_0=("live", 1, 1))()

    def begins() -> View:
        assert fleet.role(Seat("eu-0"), warm=False) == A
        fleet.role(Seat("eu+0"), warm=True)
        fleet.starting(Seat("eu-0"))
        return seen(eu_0=("live", 1, 1))()

    def swapped() -> View:
        assert fleet.role(Seat("eu+0"), warm=True) == A
        assert fleet.role(Seat("eu-0"), warm=False) is None
        return FINISHED()

    cluster.script = [seen(), seen(), seen(), warm, joins, begins, swapped]
    fleet.keep()
    assert error_of(fleet) is None


# --- disks ----------------------------------------------------------------------------------------


@dataclass
class Disk:
    """A disk that refuses some calls.

    `full`: folders that refuse every write. `frozen`: folders whose files cannot be removed.
    `away`: how many of the next reads of a file fail, by its name; `refused` is called before each.
    `hung`: files by name whose writes wait for an event.
    """

    full: set[Path] = field(default_factory=set)
    frozen: set[Path] = field(default_factory=set)
    away: dict[str, int] = field(default_factory=dict)
    refused: Callable[[], None] = lambda: None
    replaced: Counter[str] = field(default_factory=Counter)
    """Replacements of each file, by its name."""
    hung: dict[str, threading.Event] = field(default_factory=dict)

    def check(self, path: Path) -> None:
        self.replaced[path.name] += 1
        if (answers := self.hung.get(path.name)) is not None:
            assert answers.wait(WAIT_S)
        if any(path.is_relative_to(folder) for folder in self.full):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def check_read(self, path: Path) -> None:
        if self.away.get(path.name, 0) > 0:
            self.away[path.name] -= 1
            self.refused()
            raise OSError(errno.EIO, "Input/output error", str(path))

    def check_removal(self, path: Path) -> None:
        if any(path.is_relative_to(folder) for folder in self.frozen):
            raise OSError(errno.EROFS, "Read-only file system", str(path))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Disk:
    """Return the disk under a fleet; the parameter is the fleet's timeout for it, in seconds."""
    disk, aside_of, read_from, unlink = Disk(), files.aside_of, folder.read_from, Path.unlink

    def checked(path: Path, *number: int) -> Path:
        disk.check(path)
        return aside_of(path, *number)

    def read(path: Path, *start: int) -> bytes:
        disk.check_read(path)
        return read_from(path, *start)

    def removed(path: Path, *, missing_ok: bool = False) -> None:
        disk.check_removal(path)
        unlink(path, missing_ok=missing_ok)

    for place, name, call in (
        (files, "aside_of", checked), (model_file, "aside_of", checked),
        (folder, "read_from", read), (Path, "unlink", removed),
        (limited_calls, "SILENCE_S", getattr(request, "param", limited_calls.SILENCE_S)),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, call)
    return disk


def filled_at_the_end(
    cluster: FakeCluster, disk: Disk, folders: set[Path], then: Callable[[int], None]
) -> None:
    """Fill the folders when training ends, and call `then` with the number of each later look."""
    looks = list[int]()

    def ends() -> View:
        disk.full |= folders if not looks else set()
        then(len(looks))
        looks.append(1)
        return FINISHED()

    cluster.script = [seen(), seen(), LIVE, ends]


def test_full_disk_at_the_end_is_waited_for_while_the_shards_live(
    tmp_path: Path, disk: Disk
) -> None:
    run_dir = tmp_path / "run"
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, run_dir)
    alerts = list[str]()

    def then(look: int) -> None:
        assert {SYNCER, "shard-0"} <= cluster.actors.keys()
        alerts.extend(fleet.status().get("alerts", ()))
        if look == 5:
            disk.full.clear()

    filled_at_the_end(cluster, disk, {run_dir}, then)
    fleet.keep()
    assert error_of(fleet) is None
    assert any("there is no room; make room there" in alert for alert in alerts), alerts
    assert any("archipelago save run PATH" in alert for alert in alerts)
    assert load_file(run_dir / f"{NAME}.safetensors").keys() == {"w"}
    assert json.loads((run_dir / runs.SUMMARY).read_text())["heldout_loss"] == 1.5
    assert len(cluster.heard("close")) == 1, "the figures are those of the first attempt"
    assert fleet.status().get("alerts") == []
    events = events_of(run_dir)
    assert [each["kind"] for each in events if "no room" in each["why"]] == ["alert", "alert over"]
    assert fleet.status().get("events", [])[-1:] == events[-1:]
    assert not open_troubles(events)
    assert json.loads((run_dir / LOOKS).read_text().splitlines()[-1])["alerts"] == []


def test_model_goes_to_the_depot_if_the_run_directory_is_full(tmp_path: Path, disk: Disk) -> None:
    run_dir, depots = tmp_path / "run", tmp_path / "depots"
    depots.mkdir()
    cluster = FakeCluster(config_of(2, durability={"dir": str(depots)}))
    fleet = fleet_of(cluster.config, cluster, run_dir)
    cluster.run_dir = depots / "run"
    filled_at_the_end(cluster, disk, {run_dir}, lambda look: None)
    fleet.keep()
    assert error_of(fleet) is None
    assert load_file(depots / "run" / f"{NAME}.safetensors").keys() == {"w"}
    assert json.loads((depots / "run" / runs.SUMMARY).read_text())["merges"] == 1
    assert fleet.outcome is not None
    assert f"it is in {depots / 'run'}" in str(fleet.outcome.missing)


@pytest.mark.parametrize("name", ["elsewhere", "elsewhere/mine.safetensors"])
def test_model_without_a_place_can_be_saved_elsewhere_and_the_run_ends(
    tmp_path: Path, disk: Disk, name: str
) -> None:
    run_dir, there = tmp_path / "run", tmp_path / name
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, run_dir)

    def then(look: int) -> None:
        assert look < 5, "the run ends once its model is saved"
        if look == 2:
            with pytest.raises(UserMistake, match="does not take the model"):
                fleet.save(run_dir / "again")
        if look == 3:
            assert fleet.save(there) == str(there)

    filled_at_the_end(cluster, disk, {run_dir}, then)
    fleet.keep()
    assert error_of(fleet) is None
    (saved,) = (tmp_path / "elsewhere").glob("*.safetensors")
    assert load_file(saved).keys() == {"w"}
    assert fleet.outcome is not None
    assert fleet.outcome.summary["heldout_loss"] == 1.5
    assert str(there) in str(fleet.outcome.missing)


def test_model_of_a_live_run_can_be_saved(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    with pytest.raises(UserMistake, match="is starting: it has no model yet"):
        fleet.save(tmp_path / "early")

    def saves() -> View:
        fleet.save(tmp_path / "now")
        return LIVE()

    cluster.script = [seen(), seen(), saves, LIVE, FINISHED]
    fleet.keep()
    assert error_of(fleet) is None
    assert load_file(tmp_path / "now" / f"{NAME}.safetensors").keys() == {"w"}
    assert (tmp_path / "run" / f"{NAME}.safetensors").exists()


class Killed(BaseException):
    """The death of the fleet's process by SIGKILL."""


@pytest.fixture
def left_by_a_killed_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[FakeCluster, Path, Callable[[Fleet], None]], None]:
    """Return a function that runs a fleet, calls the last argument with it, and kills it."""

    def leave(cluster: FakeCluster, run_dir: Path, then: Callable[[Fleet], None]) -> None:
        fleet = fleet_of(cluster.config, cluster, run_dir)

        def dies() -> View:
            then(fleet)
            raise Killed

        cluster.script = [seen(), seen(), *cluster.script, LIVE, dies]
        monkeypatch.setattr(fleet._keeper, "_let_go", lambda outcome: None)
        fleet.keep()

    return leave


LeftByAKilledFleet = Callable[[FakeCluster, Path, Callable[[Fleet], None]], None]


def test_fleet_comes_back_although_the_disk_is_full(
    tmp_path: Path, disk: Disk, left_by_a_killed_fleet: LeftByAKilledFleet
) -> None:
    run_dir = tmp_path / "run"
    monitor = {"refresh_s": 0.001, "evaluate_every_s": 1000.0, "targets": str(tmp_path / "targets")}
    cluster = FakeCluster(config_of(2, monitor=monitor))
    full_folders = {run_dir, tmp_path / "targets"}
    left_by_a_killed_fleet(cluster, run_dir, lambda _: disk.full.update(full_folders))
    second, alerts = fleet_of(cluster.config, cluster, run_dir), list[str]()

    def full() -> View:
        alerts.extend(second.status().get("alerts", ()))
        return LIVE()

    def room() -> View:
        disk.full.clear()
        return LIVE()

    cluster.script = [full, full, full, room, LIVE, FINISHED]
    second.keep()
    assert error_of(second) is None
    assert any("cannot find the run" in alert for alert in alerts), alerts
    assert [who for who, _ in cluster.heard("leave")] == ["island eu-0", "island eu-1"]
    assert load_file(run_dir / f"{NAME}.safetensors").keys() == {"w"}
    assert (cluster.actors, cluster.places) == ({}, {})


@pytest.mark.parametrize("disk", [1.0], indirect=True)
def test_fleet_continues_while_its_storage_hangs(tmp_path: Path, disk: Disk) -> None:
    """One preemption during a hang once froze figures and watchdog, and a stop had no effect."""
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    answers, alerts = threading.Event(), list[str]()

    def hangs() -> View:
        disk.hung[fleet_file.FLEET_FILE] = answers
        fleet.scale({"eu": 1})
        return LIVE()

    def drained() -> View:
        alerts.extend(fleet.status().get("alerts", ()))
        assert cluster.heard("drain") == [("syncer", (Island("eu-1"), "no longer wanted"))]
        fleet.stop("Ctrl-C")
        return LIVE()

    def stopped() -> View:
        assert [actor for actor, _ in cluster.heard("stop")] == ["syncer"]
        answers.set()
        return LIVE()

    def written() -> View:
        if fleet.status().get("alerts"):
            cluster.script.insert(0, written)  # the next look retries
        return LIVE()

    cluster.script = [seen(), seen(), LIVE, hangs, LIVE, drained, LIVE, stopped, written, FINISHED]
    fleet.keep()
    assert error_of(fleet) is None
    assert any("fleet.json cannot be written" in alert for alert in alerts), alerts
    assert any("the storage has not answered since 20" in alert for alert in alerts)
    kept = kept_of(tmp_path / "run")
    assert (kept["desired"], kept["stopping"]) == ([Island("eu-0")], "Ctrl-C")


@pytest.mark.parametrize("name", [LOOKS, EVENTS])
def test_fleet_comes_back_although_a_record_cannot_be_opened(
    tmp_path: Path, left_by_a_killed_fleet: LeftByAKilledFleet, name: str
) -> None:
    """A run directory that is read-only on the fleet's new node once ended the run."""
    run_dir = tmp_path / "run"
    cluster = FakeCluster(config_of(2))

    def harm(_: Fleet) -> None:
        (run_dir / name).rename(tmp_path / name)
        (run_dir / name).mkdir()  # a folder cannot be opened as a file

    left_by_a_killed_fleet(cluster, run_dir, harm)
    second, alerts = fleet_of(cluster.config, cluster, run_dir), list[str]()

    def looks() -> View:
        alerts.extend(second.status().get("alerts", ()))
        return LIVE()

    def mended() -> View:
        looks()
        (run_dir / name).rmdir()
        return LIVE()

    cluster.script = [looks, looks, looks, mended, LIVE, FINISHED]
    second.keep()
    assert error_of(second) is None
    assert any(f"miss lines: [Errno 21] Is a directory: '{run_dir}" in each for each in alerts)
    assert second.status().get("alerts") == []
    assert (run_dir / LOOKS).read_text().endswith("\n")
    assert [who for who, _ in cluster.heard("leave")] == ["island eu-0", "island eu-1"]


@pytest.mark.parametrize("name", ["owner-1.json", fleet_file.FLEET_FILE, "layout.json"])
def test_fleet_waits_for_a_depot_that_does_not_answer(
    tmp_path: Path, disk: Disk, left_by_a_killed_fleet: LeftByAKilledFleet, name: str
) -> None:
    """A depot that was away for a minute while the fleet restarted once ended the run."""
    run_dir, alerts = tmp_path / "run", list[str]()
    cluster = FakeCluster(config_of(2))
    left_by_a_killed_fleet(cluster, run_dir, lambda _: disk.away.update({name: 50}))
    second = fleet_of(cluster.config, cluster, run_dir)

    def observed() -> None:
        alerts.extend(second.status().get("alerts", ()))
        assert {"syncer", "shard-0", "island eu-0", "island eu-1"} <= cluster.actors.keys()

    disk.refused = observed
    cluster.script = [LIVE, FINISHED]
    second.keep()
    assert error_of(second) is None
    assert disk.away == {name: 0}
    assert any("cannot read its depot: [Errno 5]" in alert for alert in alerts), alerts
    assert second.status().get("alerts") == []
    assert [who for who, _ in cluster.heard("leave")] == ["island eu-0", "island eu-1"]
    assert (cluster.actors, cluster.places) == ({}, {})


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [damage, Path.unlink], ids=["damaged", "missing"])
def test_fleet_without_its_memory_finds_the_islands_by_name(
    tmp_path: Path, left_by_a_killed_fleet: LeftByAKilledFleet, harm: Callable[[Path], None]
) -> None:
    """One damaged byte once ended the run, and left its islands behind."""
    run_dir, alerts = tmp_path / "run", list[str]()
    plan = [{"kind": "kill", "island": "eu-0", "at_step": 1}]
    cluster = FakeCluster(config_of(2, islands={"spares": 1}, faults={"plan": plan}))
    left_by_a_killed_fleet(cluster, run_dir, lambda _: harm(run_dir / fleet_file.FLEET_FILE))
    islands = {name for name in cluster.actors if name.startswith("island ")}
    assert islands == {"island eu-0", "island eu-1", "island eu+0"}
    second, said = fleet_of(cluster.config, cluster, run_dir), len(cluster.said)

    def looks() -> View:
        alerts.extend(second.status().get("alerts", ()))
        assert islands <= cluster.actors.keys()
        assert cluster.started.count("island eu-0") == 1
        return LIVE()

    cluster.script = [looks, looks, FINISHED]
    second.keep()
    assert error_of(second) is None
    assert any("the fleet continues with 2 islands" in alert for alert in alerts), alerts
    later = {name for _, name, _ in cluster.said[said:]}
    assert not later & {"layout", "seed", "open", "kill"}, "nothing begins or strikes once more"
    assert (run_dir / f"{fleet_file.FLEET_FILE}.damaged").exists() is (harm is damage)
    assert kept_of(run_dir)["outcome"] is not None
    assert (cluster.actors, cluster.places) == ({}, {})


@pytest.mark.parametrize("harm", [damage, Path.unlink], ids=["damaged", "missing"])
def test_fleet_mends_the_layout_from_its_copy(
    tmp_path: Path, left_by_a_killed_fleet: LeftByAKilledFleet, harm: Callable[[Path], None]
) -> None:
    """One damaged byte once ended the run, and left its islands behind."""
    run_dir, cluster = tmp_path / "run", FakeCluster(config_of(2))
    left_by_a_killed_fleet(cluster, run_dir, lambda _: harm(run_dir / "layout.json"))
    second = fleet_of(cluster.config, cluster, run_dir)
    cluster.script = [LIVE, FINISHED]
    second.keep()
    assert error_of(second) is None
    assert (run_dir / "layout.json").read_bytes() == (run_dir / "layout-copy.json").read_bytes()
    assert (cluster.actors, cluster.places) == ({}, {})


def test_restarted_fleet_leaves_withheld_islands_to_other_runs(
    tmp_path: Path, left_by_a_killed_fleet: LeftByAKilledFleet
) -> None:
    run_dir, why = tmp_path / "run", "taken by the queue: run big needs the machines"
    cluster = FakeCluster(config_of(2, islands={"opportunistic": True}))
    left_by_a_killed_fleet(cluster, run_dir, lambda fleet: fleet.withhold({Island("eu-1"): why}))
    kept = kept_of(run_dir)
    assert kept["withheld"] == {"eu-1": why}
    del kept["held"][Island("eu-1")]  # it had left before the fleet was killed
    fleet_file.save_fleet_memory(Folder(run_dir), kept)
    cluster.end("island eu-1")
    cluster.places[Seat("eu-1")].give_back()
    second, reports = fleet_of(cluster.config, cluster, run_dir), list[str | None]()

    def report() -> View:
        reports.extend(each["withheld"] for each in second.queue_report()["islands"])
        return seen(eu_0="live", eu_1="left")()

    def grant() -> View:
        second.withhold({})
        return seen(eu_0="live", eu_1="left")()

    placed = cluster.reserved_once.count
    counts: list[int] = []

    def count() -> View:
        counts.append(placed(Seat("eu-1")))
        return LIVE()

    left = seen(eu_0="live", eu_1="left")
    cluster.script = [left, left, left, report, count, grant, LIVE, LIVE, count, FINISHED]
    second.keep()
    assert error_of(second) is None
    assert reports == [None, why]
    assert counts == [1, 2], "it is placed only once the queue grants it"
    assert kept_of(run_dir)["withheld"] == {}


def test_fleet_finds_an_island_that_was_not_written_down(
    tmp_path: Path, left_by_a_killed_fleet: LeftByAKilledFleet
) -> None:
    """A fleet that cannot write `fleet.json` places islands, and dies.

    Ray refuses devices of the same name, so the next process could never place such an island.
    """
    run_dir = tmp_path / "run"
    cluster = FakeCluster(config_of(2))

    def missed(_: Fleet) -> None:
        kept = fleet_file.load_fleet_memory(Folder(run_dir))
        assert kept is not None
        del kept["held"][Island("eu-1")]
        fleet_file.save_fleet_memory(Folder(run_dir), kept)
        group = cluster.config.islands[0]
        for seat in (Seat("eu-4"), Seat("eu-5")):  # requested, but not written down
            cluster.start_island(group, seat, cluster.reserve(group, seat))

    left_by_a_killed_fleet(cluster, run_dir, missed)
    second = fleet_of(cluster.config, cluster, run_dir)
    live = seen(eu_0="live", eu_1="live", eu_4="live", eu_5="live")
    cluster.script = [live, live, FINISHED]
    second.keep()
    assert error_of(second) is None
    assert cluster.started.count("island eu-1") == 1
    assert {arguments[0] for _, arguments in cluster.heard("drain")} == {"eu-4", "eu-5"}
    assert (cluster.actors, cluster.places) == ({}, {})


def test_islands_of_one_look_are_written_down_at_once(tmp_path: Path, disk: Disk) -> None:
    """Writing after each island takes a minute for a thousand of them, with a bucket."""
    cluster = FakeCluster(config_of(40, islands={"resources": {"CPU": 0.1}}))
    cluster.script = [seen(), seen(), FINISHED]
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    fleet.keep()
    assert error_of(fleet) is None
    assert len(cluster.reserved_once) >= 40
    assert 1 <= disk.replaced["fleet.json"] < 10


def test_islands_are_ended_if_the_memory_of_a_run_that_is_over_is_damaged(
    tmp_path: Path, left_by_a_killed_fleet: LeftByAKilledFleet
) -> None:
    run_dir = tmp_path / "run"
    cluster = FakeCluster(config_of(2))

    def harm(_: Fleet) -> None:
        damage(run_dir / fleet_file.FLEET_FILE)
        for name in ("syncer", "shard-0", "evaluator"):
            cluster.end(name)

    left_by_a_killed_fleet(cluster, run_dir, harm)
    second = fleet_of(cluster.config, cluster, run_dir)
    second.keep()
    assert "fleet.json" in str(error_of(second))
    assert (cluster.actors, cluster.places) == ({}, {})


def test_files_that_cannot_be_removed_keep_no_process(tmp_path: Path, disk: Disk) -> None:
    run_dir = tmp_path / "run"
    monitor = {"refresh_s": 0.001, "evaluate_every_s": 1000.0, "targets": str(tmp_path / "targets")}
    cluster = FakeCluster(config_of(2, monitor=monitor))

    def ends() -> View:
        disk.frozen.add(tmp_path)
        return FINISHED()

    cluster.script = [seen(), seen(), LIVE, ends]
    fleet = fleet_of(cluster.config, cluster, run_dir)
    fleet.keep()
    assert error_of(fleet) is None
    assert (cluster.actors, cluster.places) == ({}, {})
    assert (run_dir / runs.LIVE).exists()
    assert json.loads((run_dir / "owner-1.json").read_text())["left"]


def test_process_that_cannot_be_ended_keeps_no_other(tmp_path: Path) -> None:
    class Stubborn(FakeCluster):
        """A cluster that does not end some actors."""

        def end(self, actor: str) -> None:
            if actor in ("island eu-0", "syncer"):
                raise RuntimeError("the head does not answer")
            super().end(actor)

    cluster = Stubborn(config_of(2), [seen(), seen(), LIVE, FINISHED])
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    fleet.keep()
    assert error_of(fleet) is None
    assert (cluster.actors.keys(), cluster.places) == ({"island eu-0", "syncer"}, {})


# --- a syncer without its storage -----------------------------------------------------------------


def silent() -> View:
    raise StorageSilent("the syncer cannot come back yet: EIO")


def test_run_waits_for_the_storage_of_its_syncer_with_an_alert(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    alerts = list[str]()

    def stops() -> View:
        alerts.extend(fleet.status().get("alerts", ()))
        fleet.stop("enough")
        return silent()

    def back() -> View:
        alerts.extend(fleet.status().get("alerts", ()))
        assert {SYNCER, "shard-0", "island eu-0"} <= cluster.actors.keys()
        return LIVE()

    cluster.script = [seen(), seen(), *[silent] * 30, stops, *[silent] * 30, back, LIVE, FINISHED]
    fleet.keep()
    assert error_of(fleet) is None
    assert "the syncer cannot come back yet: EIO; the islands train on" in alerts[0]
    assert "the run stops when it answers, or once `archipelago save run PATH`" in alerts[1]
    assert cluster.heard("stop") == [(SYNCER, ("enough",))]
    assert fleet.status().get("alerts") == []
    events = events_of(tmp_path / "run")
    mine = [each for each in events if "the syncer cannot come back yet: EIO" in each["why"]]
    # the second text, with the way in which the run stops, replaces the first
    assert [each["kind"] for each in mine] == ["alert", "alert", "alert over", "alert over"]
    rows = (tmp_path / "run" / LOOKS).read_text().splitlines()
    assert len(rows) < 10, "no row repeats an old status"


@pytest.mark.parametrize(
    ("before", "after"),
    [([silent] * 2, []), ([silent] * 2, [silent] * 2), ([], [silent] * 2)],
    ids=["over at the restart", "over after it", "began after it"],
)
def test_alert_of_an_outage_ends_although_the_fleet_restarts(
    tmp_path: Path,
    left_by_a_killed_fleet: LeftByAKilledFleet,
    before: list[Callable[[], View]],
    after: list[Callable[[], View]],
) -> None:
    """The last row of metrics.jsonl is older than the outage and has no alert."""

    def dies() -> View:
        raise Killed

    cluster = FakeCluster(config_of(2), [LIVE, *before, dies])
    left_by_a_killed_fleet(cluster, tmp_path / "run", lambda _: None)
    second = fleet_of(cluster.config, cluster, tmp_path / "run")
    cluster.script = [*after, LIVE, FINISHED]
    second.keep()
    assert error_of(second) is None
    events = events_of(tmp_path / "run")
    mine = [each["kind"] for each in events if "cannot come back yet: EIO" in each["why"]]
    assert mine == ["alert", "alert over"]
    texts = [each["text"] for each in events]
    assert len(texts) == len({*texts}), "no other event is repeated"


def test_restarted_fleet_exports_its_alerts_before_the_syncer_is_back(
    tmp_path: Path, left_by_a_killed_fleet: LeftByAKilledFleet
) -> None:
    monitor = {"refresh_s": 0.001, "evaluate_every_s": 1000.0, "targets": str(tmp_path / "targets")}
    cluster, run_dir = FakeCluster(config_of(2, monitor=monitor)), tmp_path / "run"
    left_by_a_killed_fleet(cluster, run_dir, lambda _: None)
    found = dict[str, Any]()

    def looks() -> View:
        found.update(scraped(run_dir))
        return silent()

    cluster.script = [silent, looks, LIVE, FINISHED]
    second = fleet_of(cluster.config, cluster, run_dir)
    second.keep()
    assert error_of(second) is None
    assert found == {"archipelago_alerts": [({"run": "run"}, 1.0)]}


def test_run_without_its_storage_stops_once_its_model_is_saved(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def saves() -> View:
        fleet.save(tmp_path / "elsewhere")
        return silent()

    def stops() -> View:
        fleet.stop("enough")
        return silent()

    cluster.script = [seen(), saves, LIVE, silent, stops, silent, saves, silent, FINISHED]
    fleet.keep()
    assert "stopped (enough)" in str(error_of(fleet))
    assert f"its model is in {tmp_path / 'elsewhere'}" in str(error_of(fleet))
    assert "--resume" in str(error_of(fleet))
    assert len(cluster.heard("whole")) == 2, "the first model was older than the outage"
    assert (cluster.actors, cluster.places) == ({}, {})


@pytest.mark.parametrize("has_model", [False, True])
def test_run_without_storage_or_model_stops_after_a_while(tmp_path: Path, has_model: bool) -> None:
    class Shards(FakeCluster):
        """A cluster whose shards were restarted."""

        def ask(self, actor: str, method: str, *arguments: object, meanwhile: Any = None) -> Any:
            found = super().ask(actor, method, *arguments)
            return found if has_model else None

    cluster = Shards(config_of(2), actors={"shard-0": "shard-0"})
    requests = Requests("run", cluster.config, cluster.nodes)
    now_s = [0.0]
    outage = SyncerOutage(cluster.config, "run", requests, cluster, lambda: now_s[0])
    outage.note(StorageSilent("EIO"))
    now_s[0] = 1e6
    outage.note(StorageSilent("EIO"))
    assert cluster.said == [], "only a stop ends the run"
    requests.stop("enough")
    with nullcontext() if has_model else pytest.raises(RunFailed, match="no shard holds a model"):
        outage.note(StorageSilent("EIO"))
    outage.over()
    outage.note(StorageSilent("EIO"))
    assert outage.trouble is not None


def test_outage_of_the_syncer_is_an_alert_after_half_a_minute() -> None:
    """A syncer that never came back once left figures of a healthy run, and no alert."""
    cluster, now_s = FakeCluster(config_of(2)), [0.0]
    requests = Requests("run", cluster.config, cluster.nodes)
    outage = SyncerOutage(cluster.config, "run", requests, cluster, lambda: now_s[0])

    def away() -> View:
        now_s[0] += 20.0
        raise Unavailable("ActorUnavailableError")

    assert outage.watch(away) is None
    assert outage.trouble is None, "most restarts are shorter"
    assert outage.watch(away) is None
    alert = str(outage.trouble)
    assert "the syncer has not answered for 30 s (ActorUnavailableError)" in alert
    outage.watch(away)
    assert outage.trouble == alert
    assert outage.watch(LIVE) == LIVE()
    assert outage.trouble is None
    outage.watch(away)
    assert outage.trouble is None, "an outage of its own"


def test_evaluator_that_always_fails_is_an_alert(tmp_path: Path) -> None:
    """Rare evaluations are too few in the window of the Prometheus alert."""

    class Failing(FakeEvaluator):
        def ask(self, method: str, *arguments: object) -> Pending:
            def fails(wait_s: float) -> object:
                raise ActorDiedError

            return fails if method == "judge" else super().ask(method, *arguments)

    class Blind(FakeCluster):
        def evaluating(self, evaluator: str) -> Evaluating:
            return Failing()

    monitor = {"refresh_s": 0.001, "metrics": False, "evaluate_every_s": 0.001}
    cluster, alerts = Blind(config_of(2, monitor=monitor)), list[str]()
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def looks() -> View:
        alerts.extend(fleet.status().get("alerts", ()))
        return LIVE()

    cluster.script = [seen(), seen(), *[looks] * 20, FINISHED]
    fleet.keep()
    assert error_of(fleet) is None
    assert alerts
    assert "the held-out loss is old, its evaluation died (3 times in a row)" in alerts[0]


# --- defects and silence --------------------------------------------------------------------------


def broken() -> View:
    raise KeyError("eu-0")


def test_defect_in_a_look_is_counted_and_does_not_end_the_run(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2))
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    alerts = list[str]()

    def told() -> View:
        alerts.extend(fleet.status().get("alerts", ()))
        return LIVE()

    STEADY.clear()
    rows = [broken] * (error_budget.MOST - 1)
    cluster.script = [seen(), seen(), *rows, told, *rows, LIVE, FINISHED]
    fleet.keep()
    assert error_of(fleet) is None
    assert "the keeper of the fleet broke 9 times in a row" in alerts[0]
    assert "KeyError: 'eu-0'" in alerts[0]
    assert fleet.status().get("alerts") == []
    assert (cluster.actors, cluster.places) == ({}, {})


def test_repeated_defect_ends_the_run_with_its_message(tmp_path: Path) -> None:
    cluster = FakeCluster(config_of(2), [seen(), seen(), broken])
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    STEADY.clear()
    fleet.keep()
    assert error_of(fleet) == "KeyError: 'eu-0'"
    last = events_of(tmp_path / "run")[-1]
    assert (last["kind"], last["why"]) == ("alert", "the run has failed: KeyError: 'eu-0'")
    row = json.loads((tmp_path / "run" / LOOKS).read_text().splitlines()[-1])
    assert last["why"] in row["alerts"], "`archipelago status` prints it"
    assert (cluster.actors, cluster.places) == ({}, {})


def test_fleet_whose_run_was_taken_over_records_no_failure(tmp_path: Path) -> None:
    """The records belong to the fleet that has taken the run over."""
    run_dir = tmp_path / "run"

    def ends() -> View:
        Folder(run_dir).write("owner-2.json", b"{}")
        return FINISHED()

    cluster = FakeCluster(config_of(2), [seen(), seen(), LIVE, ends])
    fleet = fleet_of(cluster.config, cluster, run_dir)
    fleet.keep()
    assert "the run has been taken over by another process" in str(error_of(fleet))
    assert "alert" not in {each["kind"] for each in events_of(run_dir)}


@dataclass
class Stopping(FakeCluster):
    """A cluster whose syncer gives no sign while `stands` is set, until it is restarted."""

    stands: bool = False

    def sign(self, actor: str) -> Pending:
        def pending(wait_s: float) -> object:
            if actor == SYNCER and self.stands:
                raise GetTimeoutError
            return None

        return pending

    def restart(self, actor: str) -> None:
        super().restart(actor)
        self.stands = False

    def ask(
        self,
        actor: str,
        method: str,
        *arguments: object,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        while actor == SYNCER and self.stands:
            meanwhile()
        return super().ask(actor, method, *arguments, meanwhile=meanwhile)


def hanging(hang_s: float) -> Config:
    return config_of(2, durability={"hang_s": hang_s})


def test_syncer_that_hangs_is_restarted_and_the_run_continues(tmp_path: Path) -> None:
    cluster = Stopping(hanging(0.05))

    def stops() -> View:
        cluster.stands = True
        return LIVE()

    cluster.script = [seen(), seen(), LIVE, stops, LIVE, FINISHED]
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    fleet.keep()
    assert error_of(fleet) is None
    assert cluster.restarted == [SYNCER]


def test_refused_write_leaves_no_file(tmp_path: Path, disk: Disk) -> None:
    """The disk of these tests behaves like a real one."""
    disk.full.add(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "file", b"content")
    assert not [*tmp_path.iterdir()]
