"""Tests of the depot, the store that a run comes back from, also outside the run directory."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from archipelago.lab.checks.replay import replay
from cluster.actors.shard.actor import ShardActor
from cluster.config.load import load
from cluster.config.schema import Config
from cluster.storage import fleet_file, runs
from cluster.storage.bucket import PART_BYTES, Bucket
from cluster.storage.depot import Depot
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import FragmentStore
from cluster.storage.open_depot import depot_of
from cluster.storage.playback import read_tape
from cluster.storage.snapshots import STATE, load_snapshot, save_snapshot
from cluster.storage.tape import Tape
from cluster.syncer.measures import Measures
from cluster.syncer.restore import come_back
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.protocol import Event, Fragment, Island
from tests.cluster.played import LAYOUT, Played
from tests.cluster.s3 import BUCKET, served
from tests.cluster.test_runs import FILE, NOW, config
from tests.cluster.test_store import F0, MODEL, OF_EVERY_KIND, arrays, same, snapshot
from tests.live.cli import until

WAIT_S = 30.0


@pytest.fixture(scope="module")
def s3() -> Generator[str]:
    with served() as uri:
        yield uri


NUMBERS = itertools.count()


@pytest.fixture
def bucket(s3: str) -> Bucket:
    return Bucket(s3, f"run-{next(NUMBERS)}")


@pytest.fixture(params=["folder", "bucket"])
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Depot:
    """Return an empty depot."""
    if request.param == "folder":
        return Folder(tmp_path / "depot")
    return request.getfixturevalue("bucket")


def test_tidy_removes_only_unfinished_files_of_a_killed_writer(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("fragments/f0000-a", b"whole")
    folder.write("fragments/f0001-a", b"whole")
    for name in ("f0000-b", "f0001-b"):
        dying = (
            "import os, signal; from pathlib import Path; from cluster.storage.files import write\n"
            "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
            f"write(Path({str(tmp_path / 'fragments' / name)!r}), b'half')"
        )
        assert subprocess.run([sys.executable, "-c", dying], check=False).returncode == -9
    assert len(folder.names("fragments")) == 4
    folder.tidy("fragments/f0000-")
    left = sorted(folder.names("fragments"))
    assert left[1:] == ["f0000-a", "f0001-a"]
    assert left[0].startswith(".f0001-b.")
    folder.tidy("nowhere/f")


def test_depot_writes_whole_files_by_name(depot: Depot) -> None:
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
    depot.tidy("state")
    assert depot.read("state.json") == b"new"


@pytest.mark.parametrize("nbytes", [1, 11_000_000])
def test_copies_a_local_file_into_the_depot(depot: Depot, tmp_path: Path, nbytes: int) -> None:
    (path := tmp_path / "model.safetensors").write_bytes(b"m" * nbytes)
    depot.copy(path)
    assert depot.read("model.safetensors") == path.read_bytes()
    with pytest.raises(FileNotFoundError):
        depot.copy(tmp_path / "another")


def test_growing_file_is_created_only_once(depot: Depot) -> None:
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


def test_lines_continue_after_earlier_lines(depot: Depot) -> None:
    for word in ("one", "two"):
        lines = depot.lines("notes.jsonl")
        lines.write(word)
        length = lines.length
        lines.close()
    assert depot.grown("notes.jsonl").content == b"one\ntwo\n"
    assert length == len(b"one\ntwo\n")


def test_probe_leaves_no_files(tmp_path: Path) -> None:
    Folder(tmp_path / "run").probe()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        Folder(tmp_path / "not mounted" / "run").probe()
    assert list(tmp_path.iterdir()) == []


# --- in a bucket ----------------------------------------------------------------------------------


def events(depot: Depot) -> list[Event]:
    return [row.event for row in read_tape(depot, LAYOUT.fingerprint).events]


def taped(depot: Depot, told: Sequence[Event], generation: int = 0, first_seq: int = 0) -> Tape:
    """Append events to a new tape, and flush it after each one."""
    tape = Tape(depot, generation, LAYOUT.fingerprint, first_seq=first_seq)
    for event in told:
        tape.append(1.0, event, ())
        flushed = tape.flush()
        assert flushed is not None
        flushed.result(WAIT_S)
    return tape


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every flush a part of its own."""
    monkeypatch.setattr("cluster.storage.bucket.PART_BYTES", 1)


def test_flushed_tape_is_durable_and_continues_in_the_next_generation(
    depot: Depot,
) -> None:
    killed = taped(depot, OF_EVERY_KIND[:4])
    assert events(depot) == [*OF_EVERY_KIND[:4]]
    taped(depot, OF_EVERY_KIND[4:], 1, 4).close()
    assert events(depot) == [*OF_EVERY_KIND]
    killed.close()


def test_many_additions_make_few_objects_of_bounded_size(bucket: Bucket) -> None:
    growing, content = bucket.grow("tape-0.arrow"), b""
    for number in range(40):
        part = bytes([number]) * (PART_BYTES // 10)
        growing.write(part)
        content += part
    sizes = bucket.sizes("tape-0.arrow").values()
    assert len(sizes) == 4
    assert max(sizes) < 1.2 * PART_BYTES
    assert bucket.grown("tape-0.arrow") == (content, None)


def test_tape_ends_before_a_damaged_or_missing_part(bucket: Bucket, small: None) -> None:
    taped(bucket, OF_EVERY_KIND).close()
    name = f"tape-0.arrow/{len(OF_EVERY_KIND) - 3:08}"
    content = bucket.read(name)
    for harm in (content[:-20], content[:-64] + b"?" * 64, None):
        if harm is None:
            bucket.remove(name)
        else:
            bucket.write(name, harm)
        recording = read_tape(bucket, LAYOUT.fingerprint)
        told = [row.event for row in recording.events]
        assert told == [*OF_EVERY_KIND[: len(told)]]
        assert 0 < len(told) < len(OF_EVERY_KIND)
        assert recording.damage is not None
    assert "part 10 is not there" in recording.damage


def test_last_part_may_be_missing(bucket: Bucket, small: None) -> None:
    """A crash may lose the last part; a snapshot that is ahead of the tape is then not used."""
    taped(bucket, OF_EVERY_KIND)
    bucket.remove(f"tape-0.arrow/{len(OF_EVERY_KIND):08}")
    assert events(bucket) == [*OF_EVERY_KIND[:-1]]
    taped(bucket, OF_EVERY_KIND[:2], 1, len(OF_EVERY_KIND) - 1).close()
    assert events(bucket) == [*OF_EVERY_KIND[:-1], *OF_EVERY_KIND[:2]]


def test_skips_damaged_objects_for_the_newest_good_one(bucket: Bucket) -> None:
    store = FragmentStore(bucket, MODEL, keep=3)
    for number in range(6):
        store.save(F0, arrays(number), first=number == 0)
    names = sorted(bucket.names("fragments"))
    assert [name[-15:-12] for name in names] == ["000", "003", "004", "005"]
    for name, expected in ((names[-1], 4), (names[-2], 3)):
        content = bucket.read(f"fragments/{name}")
        bucket.write(f"fragments/{name}", content[:-3] + b"???")
        assert same(store.newest(F0), arrays(expected))
    save_snapshot(bucket, snapshot(), "l")
    assert load_snapshot(bucket, "l") == snapshot()
    bucket.write(STATE, bucket.read(STATE)[:-9])
    with pytest.raises(Damaged):
        load_snapshot(bucket, "l")


def test_lines_of_a_bucket_wait_for_a_flush(bucket: Bucket) -> None:
    first = bucket.lines("notes.jsonl")
    first.write("one")
    assert not bucket.has("notes.jsonl")
    first.flush()
    first.write("lost with its process")
    second = bucket.lines("notes.jsonl")
    second.write("two")
    assert second.length == len(b"one\ntwo\n")
    second.close()
    assert bucket.grown("notes.jsonl") == (b"one\ntwo\n", None)


def test_unavailable_bucket_delays_a_tape_without_blocking(bucket: Bucket) -> None:
    """Write everything pending in order once the bucket is back; no caller waits meanwhile."""
    tape = taped(bucket, OF_EVERY_KIND[:2])
    growing: Any = tape._file
    growing._bucket = Bucket("s3://there-is-none?" + bucket._uri.partition("?")[2], "run")
    tape.append(1.0, OF_EVERY_KIND[2], ())
    flushed = tape.flush()
    assert flushed is not None
    flushed.result(WAIT_S)
    assert "NO_SUCH_BUCKET" in str(tape.trouble)
    tape.append(1.0, OF_EVERY_KIND[3], ())
    assert tape.flush() is None
    assert events(bucket) == [*OF_EVERY_KIND[:2]]
    growing._bucket = bucket
    until(lambda: tape.flush() is not None)
    tape.append(1.0, OF_EVERY_KIND[4], ())
    tape.close()
    assert tape.trouble is None
    assert events(bucket) == [*OF_EVERY_KIND[:5]]


def test_does_not_wait_for_a_bucket_that_hangs(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape, answered = taped(bucket, OF_EVERY_KIND[:2]), threading.Event()
    write = bucket.write

    def hangs(name: str, content: bytes) -> None:
        assert answered.wait(WAIT_S)
        write(name, content)

    monkeypatch.setattr("cluster.storage.tape.SILENCE_S", 0.05)
    monkeypatch.setattr(bucket, "write", hangs)
    for event in OF_EVERY_KIND[2:4]:
        tape.append(1.0, event, ())
        until(lambda: tape.flush() is None)
    assert tape.trouble == "no answer for 0.05 s"
    answered.set()
    tape.close()
    assert tape.trouble is None
    assert events(bucket) == [*OF_EVERY_KIND[:4]]


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("s3://there-is-none/runs?", "NO_SUCH_BUCKET"),
        (f"s3://{BUCKET}/runs?retries=3&", "Unexpected query parameter in S3 URI: 'retries'"),
    ],
)
def test_unusable_bucket_gives_a_clear_message(s3: str, uri: str, why: str) -> None:
    wrong = config(f"durability.dir={uri}{s3.partition('?')[2]}")
    with pytest.raises(UserMistake, match=rf"durability.dir: s3://.*{why}"):
        runs.choose(wrong, FILE, None, NOW)


def test_probe_of_a_bucket_leaves_nothing_and_finds_an_existing_run(s3: str) -> None:
    mine = config(f"durability.dir={s3}", "run.name=mine")
    depot = depot_of(mine, Path("runs/mine"))
    assert str(depot) == f"s3://{BUCKET}/runs/mine"
    assert runs.choose(mine, FILE, None, NOW) == Path("runs/mine")
    assert (depot.names(), depot.has("")) == ([], False)
    depot.write(runs.CONFIG, b"")
    with pytest.raises(UserMistake, match=f"s3://{BUCKET}/runs/mine holds a run already"):
        runs.choose(mine, FILE, None, NOW)


# --- elsewhere than the run directory -------------------------------------------------------------


def durable(there: Path, *overrides: str) -> Config:
    return config(f"durability.dir={there}", *overrides)


def test_depot_is_the_run_directory_by_default(tmp_path: Path) -> None:
    assert depot_of(config(), Path("runs/mine")) == Folder(Path("runs/mine"))
    assert depot_of(durable(tmp_path), Path("runs/mine")) == Folder(tmp_path / "mine")


def test_second_run_of_the_same_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = durable(tmp_path, "run.name=mine")
    assert runs.choose(mine, FILE, None, NOW) == Path("runs/mine")
    runs.leave(depot_of(mine, Path("mine")), Path("elsewhere/mine"), runs.CONFIG, b"")
    with pytest.raises(UserMistake, match=r"durability.dir: .*/mine holds a run already; give"):
        runs.choose(mine, FILE, None, NOW)
    assert runs.choose(durable(tmp_path, "run.name=other"), FILE, None, NOW) == Path("runs/other")


@pytest.fixture
def moved(tmp_path: Path) -> Played:
    """Return a run that lived on another node; only its depot is here."""
    run = Played(tmp_path / "depots" / "mine")
    path = run.run_dir / "config.toml"
    durability = f'[durability]\ndir = "{tmp_path / "depots"}"'
    path.write_text(path.read_text().replace("[durability]", durability))
    run.to_the_end(24)
    return run


def test_syncer_and_shard_recover_with_an_empty_run_directory(
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


def test_run_resumes_from_its_depot_alone(
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
    kept = fleet_file.FleetMemory(
        desired=[Island("local-0")],
        held={},
        spares={},
        withheld={},
        stopping=None,
        faults=[],
        began=0.0,
        outcome={"error": "the node is gone"},
    )
    fleet_file.save_fleet_memory(Folder(moved.run_dir), kept)
    runs.reopen(here, plain)
    again = fleet_file.load_fleet_memory(depot_of(plain, here))
    assert again is not None
    assert (again["desired"], again["outcome"]) == (["local-0"], None)
    assert load(here / "config.toml") == plain, "for people, who look here"


def test_replay_reads_from_the_depot(moved: Played, tmp_path: Path) -> None:
    here = tmp_path / "runs" / "mine"
    for name in ("config.toml", "summary.json"):
        runs.write(here / name, (moved.run_dir / name).read_bytes())
    told = replay(here)
    assert (told["exact"], told["compared"]) == (
        True,
        {"effects": True, "fragments": True, "state": True, "tokens": True},
    )
    assert replay(moved.run_dir) == told
