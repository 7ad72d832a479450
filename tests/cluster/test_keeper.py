"""Tests of the fleet's keeper under late requests, full disks, defects and silent processes."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError
from safetensors.numpy import load_file

from cluster.config.schema import Config
from cluster.fleet import error_budget, reconcile_loop
from cluster.fleet import shutdown as ending
from cluster.fleet.controller import Fleet
from cluster.fleet.evaluation import Pending
from cluster.names import SYNCER, Seat
from cluster.storage import files, fleet_file, model_file, ownership, runs
from cluster.storage.files import write
from cluster.storage.folder import Folder
from cluster.storage.model_file import NAME
from cluster.view import View
from coordinator.errors import UserMistake
from coordinator.protocol import Island
from tests.cluster.test_controller import (
    FINISHED,
    STEADY,
    A,
    FakeCluster,
    at_once,
    config_of,
    dying,
    fleet_of,
    seen,
)

assert at_once, "a fixture that is used by its name alone"
LIVE = seen(eu_0="live", eu_1="live")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "AGAIN_S", 0.0)
    monkeypatch.setattr(error_budget, "FIRST_S", 0.0)


def error_of(fleet: Fleet) -> str | None:
    assert fleet.outcome is not None
    return fleet.outcome.error


def kept_of(run_dir: Path) -> fleet_file.FleetMemory:
    kept = fleet_file.load_fleet_memory(Folder(run_dir))
    assert kept is not None
    return kept


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
    """A disk on which the folders in `full` refuse every write."""

    full: set[Path] = field(default_factory=set)

    def check(self, path: Path) -> None:
        if any(path.is_relative_to(folder) for folder in self.full):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk, aside_of = Disk(), files.aside_of

    def checked(path: Path, *number: int) -> Path:
        disk.check(path)
        return aside_of(path, *number)

    for module in (files, model_file):
        monkeypatch.setattr(module, "aside_of", checked)
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


def test_fleet_comes_back_although_the_disk_is_full(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    monitor = {"refresh_s": 0.001, "evaluate_every_s": 1000.0, "targets": str(tmp_path / "targets")}
    cluster = FakeCluster(config_of(2, monitor=monitor))
    first = fleet_of(cluster.config, cluster, run_dir)

    def dies() -> View:
        disk.full |= {run_dir, tmp_path / "targets"}
        raise Killed

    cluster.script = [seen(), seen(), LIVE, dies]
    monkeypatch.setattr(first._keeper, "_let_go", lambda outcome: None)
    first.keep()
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
    assert (cluster.actors, cluster.places) == ({}, {})


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
