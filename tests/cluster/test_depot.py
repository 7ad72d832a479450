"""Where a run keeps what it comes back from: elsewhere than its directory, and found again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cluster import runs
from cluster.actors import ShardActor
from cluster.comeback import come_back
from cluster.config import Config, load
from cluster.depot import Depot, Folder, depot_of
from cluster.measures import Measures
from cluster.replay import replay
from cluster.store import STATE
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.protocol import Fragment
from tests.cluster.played import LAYOUT, Played
from tests.cluster.test_runs import FILE, NOW, config


@pytest.fixture
def depot(tmp_path: Path) -> Depot:
    return Folder(tmp_path / "depot")


def test_what_was_written_is_there_as_a_whole_and_by_name(depot: Depot) -> None:
    assert depot.names() == []
    depot.write("state.json", b"old")
    depot.write("state.json", b"new")
    depot.write("fragments/f0", b"\0" * 1000)
    assert depot.read("state.json") == b"new"
    assert sorted(depot.names()) == ["fragments", "state.json"]
    assert depot.names("fragments") == ["f0"]
    assert (depot.has("fragments/f0"), depot.has("fragments/f1")) == (True, False)
    depot.remove("fragments/f0")
    assert depot.names("fragments") == []
    with pytest.raises(FileNotFoundError):
        depot.read("fragments/f0")
    with pytest.raises(FileNotFoundError):
        depot.remove("fragments/f0")


def test_what_grows_has_one_beginning(depot: Depot) -> None:
    growing = depot.grow("tape-0.arrow")
    growing.write(b"once ")
    growing.write(b"upon a time")
    assert depot.grown("tape-0.arrow") == (b"once upon a time", None)
    growing.close()
    assert depot.has("tape-0.arrow")
    assert "tape-0.arrow" in depot.names()
    with pytest.raises(FileExistsError):
        depot.grow("tape-0.arrow")
    with pytest.raises(FileNotFoundError):
        depot.grown("tape-1.arrow")


def test_lines_go_on_where_those_before_them_ended(depot: Depot) -> None:
    for word in ("one", "two"):
        lines = depot.lines("notes.jsonl")
        lines.write(word)
        length = lines.length
        lines.close()
    assert depot.grown("notes.jsonl").content == b"one\ntwo\n"
    assert length == len(b"one\ntwo\n")


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    Folder(tmp_path / "run").probe()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        Folder(tmp_path / "not mounted" / "run").probe()
    assert list(tmp_path.iterdir()) == []


# --- elsewhere than the run directory -------------------------------------------------------------


def durable(there: Path, *overrides: str) -> Config:
    return config(f"durability.dir={there}", *overrides)


def test_it_is_the_run_directory_unless_there_is_a_place_for_runs(tmp_path: Path) -> None:
    assert depot_of(config(), Path("runs/mine")) == Folder(Path("runs/mine"))
    assert depot_of(durable(tmp_path), Path("runs/mine")) == Folder(tmp_path / "mine")


def test_two_runs_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = durable(tmp_path, "run.name=mine")
    assert runs.choose(mine, FILE, None, NOW) == Path("runs/mine")
    runs.leave(depot_of(mine, Path("mine")), Path("elsewhere/mine"), runs.CONFIG, b"")
    with pytest.raises(UserMistake, match=r"durability.dir: .*/mine holds a run already; give"):
        runs.choose(mine, FILE, None, NOW)
    assert runs.choose(durable(tmp_path, "run.name=other"), FILE, None, NOW) == Path("runs/other")


@pytest.fixture
def moved(tmp_path: Path) -> Played:
    """A run that has lived on another node: nothing of it is here but its depot."""
    run = Played(tmp_path / "depots" / "mine")
    path = run.run_dir / "config.toml"
    durability = f'[durability]\ndir = "{tmp_path / "depots"}"'
    path.write_text(path.read_text().replace("[durability]", durability))
    run.to_the_end(24)
    return run


def test_syncer_and_shard_come_back_where_the_run_directory_is_empty(
    moved: Played, tmp_path: Path
) -> None:
    plain, here = load(moved.run_dir / "config.toml"), tmp_path / "runs" / "mine"
    wanted = {Fragment(p): each.version for p, each in enumerate(moved.state.fragments)}
    shard = ShardActor(plain.model_dump_json(), "nowhere", str(here))
    assert asyncio.run(shard.recover(wanted, 1)) == wanted
    depot = depot_of(plain, here)
    depot.remove(STATE)
    measures = Measures("mine", {}, LAYOUT.sizes, Wire.BF16, now_s=0.0)
    back = come_back(depot, moved.rule, measures)
    assert back is not None
    assert back.state == moved.state
    assert not here.exists()


def test_a_run_goes_on_from_its_depot_alone(
    moved: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = load(moved.run_dir / "config.toml")
    here = Path("runs/mine")
    with pytest.raises(UserMistake, match=r"has ended; see summary.json in .*/depots/mine"):
        runs.resume(plain, here)
    (moved.run_dir / "summary.json").unlink()
    assert runs.resume(plain, here) == here
    with pytest.raises(UserMistake, match=r"depots/other is not the directory of a run"):
        runs.resume(plain, Path("runs/other"))
    kept = {"desired": ["local-0"], "outcome": {"error": "the node is gone"}}
    Folder(moved.run_dir).write(runs.KEPT, json.dumps(kept).encode())
    runs.reopen(here, plain)
    again = runs.kept_of(depot_of(plain, here))
    assert again is not None
    assert (again["desired"], again["outcome"]) == (["local-0"], None)
    assert load(here / "config.toml") == plain, "for people, who look here"


def test_it_is_replayed_from_its_depot(moved: Played, tmp_path: Path) -> None:
    here = tmp_path / "runs" / "mine"
    for name in ("config.toml", "summary.json"):
        runs.write(here / name, (moved.run_dir / name).read_bytes())
    told = replay(here)
    assert (told["exact"], told["compared"]) == (
        True,
        {"effects": True, "fragments": True, "state": True},
    )
    assert replay(moved.run_dir) == told
