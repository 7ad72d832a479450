"""Tests of run directories: which one a run takes, and how another terminal finds it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from cluster.config.load import load, parse
from cluster.config.schema import Config
from cluster.names import Seat
from cluster.storage import fleet_file, runs
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.ownership import me, take
from cluster.storage.pids import born
from cluster.storage.runs import Live
from coordinator.errors import UserMistake
from coordinator.protocol import Island

NOW = datetime(2026, 4, 5, 6, 7, 8, tzinfo=UTC)
FILE = Path("somewhere/demo.toml")


def config(*overrides: str) -> Config:
    sound = '[task]\npreset = "byte-tiny"\n[[islands]]\ncount = 1\n'
    return parse(tomllib.loads(sound), overrides=overrides)


def begun(folder: Path, *, pid: int | None = None, mtime_s: float = 1e9) -> Path:
    """Make a run's directory; the run is live if a process is given."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    os.utime(folder / "config.toml", (mtime_s, mtime_s))
    if pid is not None:
        runs.announce(folder, Live(folder.name, f"archipelago-{folder.name}", "1.2.3.4:5", pid))
    return folder


@pytest.fixture
def gone() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder of the test's own, so that nothing outside it is found or written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- choosing a directory -------------------------------------------------------------------------


def test_run_is_named_after_its_file_and_the_time() -> None:
    assert runs.choose(config(), FILE, None, NOW) == Path("runs/demo-20260405-060708")


def test_run_may_be_named() -> None:
    named = config("run.name=first", "run.dir=elsewhere")
    assert runs.choose(named, FILE, None, NOW) == Path("elsewhere/first")
    assert runs.choose(named, FILE, Path("here"), NOW) == Path("here")


def test_empty_folder_is_accepted(elsewhere: Path) -> None:
    (elsewhere / "here").mkdir()
    assert runs.choose(config(), FILE, Path("here"), NOW) == Path("here")
    assert list(elsewhere.rglob("*")) == [elsewhere / "here"], "choosing makes nothing"


def test_name_in_use_is_refused_with_a_remedy(elsewhere: Path) -> None:
    begun(elsewhere / "runs" / "first")
    with pytest.raises(UserMistake, match=r"runs/first holds a run already; .*run\.name=NAME"):
        runs.choose(config("run.name=first"), FILE, None, NOW)


def test_folder_with_other_files_is_refused(elsewhere: Path) -> None:
    (elsewhere / "here").mkdir()
    (elsewhere / "here" / "letters").write_text("dear ...")
    (elsewhere / "file").write_text("")
    for taken in ("here", "file"):
        with pytest.raises(UserMistake, match=f"{taken} is not empty"):
            runs.choose(config(), FILE, Path(taken), NOW)


# --- finding a run --------------------------------------------------------------------------------


def test_run_is_found_by_path_and_by_name(elsewhere: Path) -> None:
    begun(elsewhere / "runs" / "first")
    begun(elsewhere / "far" / "away")
    assert runs.find("first") == Path("runs/first")
    assert runs.find("runs/first") == Path("runs/first")
    assert runs.find("far/away") == Path("far/away")
    with pytest.raises(UserMistake, match=r"no config\.toml in away or runs/away;"):
        runs.find("away")


def test_default_run_is_the_newest_live_one_or_else_the_newest(elsewhere: Path, gone: int) -> None:
    with pytest.raises(UserMistake, match="there is no run in runs/"):
        runs.find(None)
    begun(elsewhere / "runs" / "old", mtime_s=1e9)
    begun(elsewhere / "runs" / "crashed", mtime_s=4e9, pid=gone)
    assert runs.find(None) == Path("runs/crashed")
    begun(elsewhere / "runs" / "live", mtime_s=2e9, pid=os.getpid())
    begun(elsewhere / "runs" / "liver", mtime_s=3e9, pid=os.getpid())
    assert runs.find(None) == Path("runs/liver")


def test_ended_submitted_run_is_found_beside_its_cluster(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    run_dir = elsewhere / "archipelago" / "runs" / "shared"
    begun(run_dir)
    assert runs.submitted_dir("shared") == run_dir
    assert runs.submitted_dir("other") is None
    live = runs.reach("shared", None)
    assert isinstance(live, runs.Live), "it may be live on another node"
    assert (live.address, live.pid) == ("head:6379", 0)
    (run_dir / runs.SUMMARY).write_text("{}")
    assert runs.reach("shared", None) == run_dir
    assert isinstance(runs.reach("shared", "other:6379"), runs.Live), "that cluster was named"


def test_named_cluster_comes_before_a_folder_of_that_name(elsewhere: Path) -> None:
    begun(elsewhere / "shared")
    live = runs.reach("shared", "other:6379")
    assert isinstance(live, runs.Live), "the cluster was named, and the run by its name"
    assert (live.run, live.address) == ("shared", "other:6379")
    assert runs.reach("./shared", "other:6379") == Path("shared"), "a path is a directory"
    with pytest.raises(UserMistake, match=r"no config\.toml in gone .* its name, and --addr"):
        runs.reach("./gone", "other:6379")


def test_cluster_of_the_environment_comes_after_a_run_directory(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    begun(elsewhere / "first")
    (elsewhere / "shared").mkdir()
    assert runs.reach("first", None) == Path("first")
    live = runs.reach("shared", None)
    assert isinstance(live, runs.Live), "a folder that is no run directory does not matter"
    assert live.address == "head:6379"


# --- liveness -------------------------------------------------------------------------------------


def test_run_is_live_from_its_announcement_to_its_retirement(elsewhere: Path) -> None:
    run_dir = begun(elsewhere / "runs" / "first")
    assert runs.live_of(run_dir) is None
    live = Live("first", runs.namespace_of("first"), "1.2.3.4:5", os.getpid())
    runs.announce(run_dir, live)
    assert runs.live_of(run_dir) == live
    runs.retire(run_dir)
    assert runs.live_of(run_dir) is None
    runs.retire(run_dir)


def test_run_of_an_ended_process_is_not_live(elsewhere: Path, gone: int) -> None:
    assert runs.live_of(begun(elsewhere / "first", pid=gone)) is None


def test_other_process_with_the_same_number_is_not_the_run() -> None:
    folder, me = begun(Path("runs/mine")), os.getpid()
    live = Live("mine", runs.namespace_of("mine"), "1.2.3.4:5", me, born=born(me))
    runs.announce(folder, live)
    assert runs.live_of(folder) == live
    assert live.born is not None
    runs.announce(folder, replace(live, born=live.born + 1))
    assert runs.live_of(folder) is None


def test_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    folder = begun(Path("runs/mine"), pid=process.pid)
    assert runs.live_of(folder) is None
    process.wait()


# --- resuming a run -------------------------------------------------------------------------------


def died(folder: Path, *overrides: str) -> Path:
    """Make the directory of a run with this configuration, whose fleet has gone."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config(*overrides).toml())
    kept = fleet_file.FleetMemory(
        desired=[Island("local-0"), Island("local-3")],
        held={Island("local-0"): Seat("local+0")},
        spares={Seat("local-0"): "local"},
        withheld={Island("local-3"): "taken by the queue: run big needs the machines"},
        stopping=None,
        faults=[0],
        began=1e9,
        outcome={"error": "the disk is full"},
    )
    fleet_file.save_fleet_memory(Folder(folder), kept)
    return folder


def test_dead_run_resumes_by_directory_or_name() -> None:
    folder = died(Path("runs/mine"))
    assert runs.resume(config(), folder) == folder
    assert runs.resume(config("run.name=mine"), None) == folder
    with pytest.raises(UserMistake, match="say which run"):
        runs.resume(config(), None)
    with pytest.raises(UserMistake, match="is not the directory of a run"):
        runs.resume(config(), Path("runs/other"))


def test_finished_or_live_run_is_not_resumed() -> None:
    folder = died(Path("runs/mine"))
    runs.announce(folder, Live("mine", "archipelago-mine", "1.2.3.4:5", os.getpid()))
    with pytest.raises(UserMistake, match=f"is live, as process {os.getpid()}"):
        runs.resume(config(), folder)
    runs.retire(folder)
    took = take(Folder(folder), "mine", me("a fleet's"))
    with pytest.raises(UserMistake, match=f"is live, as process {os.getpid()} on "):
        runs.resume(config(), folder)
    took.leave(begun=runs.CONFIG)
    assert runs.resume(config(), folder) == folder
    (folder / "summary.json").touch()
    with pytest.raises(UserMistake, match="has ended"):
        runs.resume(config(), folder)


def test_resume_refuses_changes_of_the_training() -> None:
    folder = died(Path("runs/mine"))
    with pytest.raises(UserMistake, match=r"sync.every was 8, is 4; .*sync.overlap was auto, is 1"):
        runs.resume(config("sync.every=4", "sync.overlap=1", "sync.fragments=4"), folder)
    assert runs.resume(config("monitor.refresh_s=3.0", "islands.0.count=3"), folder) == folder
    assert runs.resume(config("run.budget={device_hours=9.0}"), folder) == folder


def test_resume_keeps_each_group_and_its_batch() -> None:
    folder = died(Path("runs/mine"))
    (group,) = (each.group for each in config().islands)
    with pytest.raises(UserMistake, match=f"the batch_size of group {group} was 8, is 16"):
        runs.resume(config("islands.0.batch_size=16"), folder)
    with pytest.raises(UserMistake, match=f"group {group} was there, is not there"):
        runs.resume(config("islands=[{group='other'}]"), folder)
    more = config(f"islands=[{{group='new', batch_size=2}}, {{group='{group}'}}]")
    assert runs.resume(more, folder) == folder


REGIONS = (
    "islands=[{group='eu', region='eu'}, {group='us', region='us'}]",
    "regions={eu={data='/corpus/eu'}, us={data='/corpus/us'}}",
)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ((REGIONS[0], "regions={eu={data='/corpus/eu'}}"),
         r"regions\.us was \{'data': '/corpus/us'.*, is not there"),
        ((f"{REGIONS[0][:-1]}, {{group='asia', region='asia'}}]",
          f"{REGIONS[1][:-1]}, asia={{data='/corpus/asia'}}}}"),
         r"regions\.asia was not there, is \{'data': '/corpus/asia'"),
        ((REGIONS[0].replace("region='us'}", "region='eu'}, {group='b', region='us'}"), REGIONS[1]),
         "the region of group us was us, is eu"),
        ((REGIONS[0], REGIONS[1].replace("/corpus/us", "/corpus/asia")),
         "regions.us was .*/corpus/us.*, is .*/corpus/asia"),
    ],
    ids=["removed", "added", "moved", "other data"],
)  # fmt: skip
def test_resume_refuses_other_regions(changed: Sequence[str], why: str) -> None:
    """The leases of an island are pieces of the corpus of its region."""
    folder = died(Path("runs/mine"), *REGIONS)
    assert runs.resume(config(*REGIONS), folder) == folder
    with pytest.raises(UserMistake, match=f"configured otherwise.*: {why}"):
        runs.resume(config(*changed), folder)
    silent = REGIONS[1].replace("/corpus/us'", "/corpus/us', evaluate=false")
    assert runs.resume(config(REGIONS[0], silent), folder) == folder
    more = f"{REGIONS[0][:-1]}, {{group='c', region='eu', count=2}}]"
    assert runs.resume(config(more, REGIONS[1]), folder) == folder


def test_reopened_run_keeps_its_islands_unless_others_are_configured() -> None:
    folder = died(Path("runs/mine"))
    runs.reopen(folder, config())
    kept = fleet_file.load_fleet_memory(Folder(folder))
    assert kept is not None
    assert (kept["desired"], kept["outcome"]) == (["local-0", "local-3"], None)
    runs.reopen(folder, config("islands.0.count=2"))
    kept = fleet_file.load_fleet_memory(Folder(folder))
    assert kept is not None
    assert kept["desired"] == ["local-0", "local-1"]
    assert kept["faults"] == [0]
    assert kept["withheld"] == {}, "the queue decides about each start"
    assert load(folder / "config.toml").islands[0].count == 2


def a_memory() -> fleet_file.FleetMemory:
    return fleet_file.FleetMemory(
        desired=[Island("local-0")],
        held={},
        spares={},
        withheld={Island("local-1"): "taken by the queue: run big needs the machines"},
        stopping=None,
        faults=[2],
        began=1.5,
        outcome={"summary": {"loss": float("nan")}},
    )


def test_fleet_memory_is_read_back_or_refused(elsewhere: Path) -> None:
    """The memory has a figure that is not finite. Earlier versions wrote no checksum."""
    depot = Folder(elsewhere)
    assert fleet_file.load_fleet_memory(depot) is None
    fleet_file.save_fleet_memory(depot, a_memory())
    path = elsewhere / fleet_file.FLEET_FILE
    kept, whole = fleet_file.load_fleet_memory(depot), path.read_text()
    assert kept is not None
    assert (kept["faults"], kept["began"]) == ([2], 1.5)
    path.write_text(whole.replace("local-0", "local-1"))
    with pytest.raises(Damaged, match=r"fleet.json in .* cannot be used: it is not as it was"):
        fleet_file.load_fleet_memory(depot)
    lines = [line for line in whole.splitlines() if "sha256" not in line]
    path.write_text("\n".join(lines).replace("],\n}", "]\n}"))
    assert fleet_file.load_fleet_memory(depot) == kept
    for content in ("", "[]", "7", "{}", whole[:-9]):
        path.write_text(content)
        with pytest.raises(Damaged, match=r"`archipelago run CONFIG.toml --resume .* without it"):
            fleet_file.load_fleet_memory(depot)


def test_fleet_memory_of_an_earlier_version_has_no_withheld_islands(elsewhere: Path) -> None:
    depot = Folder(elsewhere)
    old = {key: value for key, value in a_memory().items() if key != "withheld"}
    fleet_file.save_fleet_memory(depot, cast("fleet_file.FleetMemory", old))
    kept = fleet_file.load_fleet_memory(depot)
    assert kept is not None
    assert (kept["withheld"], kept["faults"]) == ({}, [2])


def test_resume_continues_without_a_damaged_fleet_memory(elsewhere: Path) -> None:
    (elsewhere / fleet_file.FLEET_FILE).write_text("{")
    runs.reopen(elsewhere, config())
    assert fleet_file.load_fleet_memory(Folder(elsewhere)) is None
    assert (elsewhere / "fleet.json.damaged").read_text() == "{", "for people to look at"


def test_only_the_requesting_owner_resumes_from_what_is_stored(elsewhere: Path) -> None:
    depot = Folder(elsewhere)
    assert not runs.asked_for_stored(depot, 3)
    runs.reopen(elsewhere, config(), 3, from_stored=True)
    assert [runs.asked_for_stored(depot, owner) for owner in (2, 3, 4)] == [False, True, False]
    (elsewhere / runs.FROM_STORED).write_text("{")
    assert not runs.asked_for_stored(depot, 3)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": 1}'])
def test_damaged_live_file_is_skipped(elsewhere: Path, content: str) -> None:
    folder = begun(elsewhere / "first")
    (folder / runs.LIVE).write_text(content)
    assert runs.live_of(folder) is None


@pytest.mark.parametrize("content", [b"[task", b"\xff\xfe", b"[task]\npreset = 3\n"])
def test_unreadable_configuration_is_refused_without_a_traceback(
    elsewhere: Path, content: bytes
) -> None:
    folder = begun(elsewhere / "first")
    (folder / "config.toml").write_bytes(content)
    with pytest.raises(UserMistake, match=r"config\.toml in "):
        runs.resume(config(), folder)
