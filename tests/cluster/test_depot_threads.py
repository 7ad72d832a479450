"""Tests of threads that meet in a depot: none undoes what another one wrote, and no row is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from cluster.actors.shard.actor import ShardActor
from cluster.config.load import parse
from cluster.shard.arrays import ArrayArithmetic
from cluster.shard.files import DepotFiles
from cluster.shard.storing_thread import StoringPace
from cluster.storage import ownership
from cluster.storage.files import write
from cluster.storage.folder import Folder
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.lines import Adding, WaitingLines
from cluster.storage.ownership import Fence, me, take
from cluster.storage.playback import read_tape
from cluster.storage.tape import Tape
from cluster.syncer.effect_queue import done, is_done
from coordinator.fragments import Flat
from coordinator.protocol import Discard, Fate, Fragment, Stop, Version
from tests.cluster.played import LAYOUT as CUT
from tests.cluster.test_depot_faults import runs
from tests.coordinator.given import LAYOUT, contribution
from tests.given import array_shard
from tests.system_calls import SystemCalls

F0, WAIT_S = Fragment(0), 30.0


class Held:
    """A gate that stops the thread named `first` until `go` is set."""

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()

    def pass_by(self) -> None:
        if threading.current_thread().name == "first" and not self.there.is_set():
            self.there.set()
            assert self.go.wait(WAIT_S)

    def beside(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        """Call `second` while `first` waits in the gate, then let `first` end."""
        thread = threading.Thread(target=first, name="first")
        thread.start()
        assert self.there.wait(WAIT_S)
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)  # it may have to wait for `first`
        self.go.set()
        thread.join(WAIT_S)
        other.join(WAIT_S)


def test_concurrent_replacements_leave_one_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, fsync = Held(), os.fsync

    def stays(file: int) -> None:
        held.pass_by()
        fsync(file)

    monkeypatch.setattr(os, "fsync", stays)
    path = tmp_path / "state.json"
    held.beside(lambda: write(path, b"first" * 20), lambda: write(path, b"second"))
    assert path.read_bytes() == b"first" * 20, "whole, and the last one that was put there"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


@dataclass
class Memory(Adding):
    """An in-memory file that accepts half of each write; a thread may wait inside a write."""

    held: Held
    content: bytes = b""
    refuses: list[OSError] = field(default_factory=list[OSError])

    def add(self, content: bytes) -> int:
        if self.refuses:
            raise self.refuses.pop()
        taken = content[: max(1, len(content) // 2)]
        before = self.content
        self.held.pass_by()
        self.content = before + taken
        return len(taken)

    def sync(self) -> None: ...

    def close(self) -> None: ...


def test_concurrent_flushes_write_each_line_once() -> None:
    file = Memory(Held())
    lines = WaitingLines(file, 0)
    lines.write("first, of some length")

    def second() -> None:
        lines.write("second")
        lines.flush()

    file.held.beside(lines.flush, second)
    assert file.content == b"first, of some length\nsecond\n"
    assert lines.length == len(file.content)


def test_refused_lines_wait_in_order() -> None:
    file = Memory(Held(), refuses=[OSError(errno.ENOSPC, "No space left on device")])
    lines = WaitingLines(file, 0)
    lines.write("one")
    with pytest.raises(OSError, match="No space left"):
        lines.flush()
    lines.write("two")
    lines.close()
    assert file.content == b"one\ntwo\n"


def test_late_heartbeat_does_not_undo_that_the_owner_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that hangs in the depot ends after the owner has left the run."""
    monkeypatch.setattr(ownership, "BEAT_S", 0.1)
    others = set(threading.enumerate())
    with SystemCalls(tmp_path) as disk:
        depot = Folder(tmp_path)
        own = take(depot, "run", me("a"))
        depot.write("config.toml", b"")
        own.start()
        disk.answers.clear()
        assert disk.hung.wait(WAIT_S)
        own.leave(begun="config.toml")
        disk.answers.set()
        mine = set(threading.enumerate()) - others
        (beats,) = (each for each in mine if each.name == "owner")
        beats.join(WAIT_S)
        own.beat()
    assert b'"left": true' in depot.read("owner-1.json")


# --- the tape -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError("no room to join"), ValueError("a bug")])
def test_rows_stay_queued_whatever_error_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A full memory is retried like a full disk; a bug is raised to the waiting caller."""
    errors, pwrite = [error], os.pwrite

    def raises(file: int, content: bytes, start: int) -> int:
        if errors:
            raise errors.pop()
        return pwrite(file, content, start)

    async def story() -> None:
        tape = Tape(Folder(tmp_path), 0, LAYOUT)
        monkeypatch.setattr(os, "pwrite", raises)
        tape.append(1.0, Stop("promised"), ())
        flushed = tape.flush()
        assert flushed is not None
        if isinstance(error, MemoryError):
            await done(flushed)
        else:
            with pytest.raises(ValueError, match="a bug"):
                await done(flushed)
            with pytest.raises(ValueError, match="a bug"):
                is_done(flushed)
        assert str(error) in str(tape.trouble)
        if isinstance(error, MemoryError):
            tape.sync()
            assert tape.trouble is None
        tape.close()

    asyncio.run(story())
    assert [row.event for row in read_tape(Folder(tmp_path), LAYOUT).events] == [Stop("promised")]


def test_retries_on_a_full_disk_do_not_copy_all_pending_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.storage.segment_queue.ADDITION_BYTES", 1)
    asked: list[int] = []
    with SystemCalls(tmp_path) as disk:
        tape = Tape(Folder(tmp_path), 0, LAYOUT)
        disk.room = 0
        pwrite = os.pwrite

        def counted(file: int, content: bytes, start: int) -> int:
            asked.append(len(content))
            return pwrite(file, content, start)

        monkeypatch.setattr(os, "pwrite", counted)
        for number in range(20):
            tape.append(1.0, Stop(f"{number}"), ())
            tape.sync()
        assert len(asked) == 20
        assert max(asked) < 2 * min(asked)
        disk.room = None
        tape.close()
        monkeypatch.undo()
    assert tape.trouble is None
    assert read_tape(Folder(tmp_path), LAYOUT).length == 20


def test_end_of_a_run_reports_what_is_not_durable_and_sums_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of the last snapshot is reported, even one that no depot raises."""

    def breaks(*_: object) -> None:
        raise ValueError("a state that cannot be written")

    def last() -> None:
        monkeypatch.setattr("cluster.actors.syncer.snapshot_writer.save_snapshot", breaks)

    _, run = runs(tmp_path / "run", before_the_end=last)
    assert run.told.summary["merges"] == 0
    assert "the end of the run is not durable: ValueError('a state" in capsys.readouterr().err


# --- a shard --------------------------------------------------------------------------------------


def test_discard_waits_for_the_thread_that_uses_the_inbox(tmp_path: Path) -> None:
    given = {"task": {"preset": "byte-tiny"}, "islands": [{"count": 1}]}
    shard = ShardActor(parse(given).model_dump_json(), "nowhere", str(tmp_path))
    recovers = threading.Event()

    async def story() -> None:
        recovering = asyncio.create_task(shard.process.compute(recovers.wait, WAIT_S))
        discarding = asyncio.create_task(shard.discard(Discard(contribution(), Fate.LOST, "why")))
        _, pending = await asyncio.wait({discarding}, timeout=0.1)
        assert pending
        recovers.set()
        assert await recovering
        await discarding

    asyncio.run(story())


def test_mean_moments_are_returned_while_a_fragment_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies, go, whole = threading.Event(), threading.Event(), ArrayArithmetic.whole

    def slowly(self: ArrayArithmetic, p: Fragment) -> Flat:
        copies.set()
        assert go.wait(WAIT_S)
        return whole(self, p)

    monkeypatch.setattr(ArrayArithmetic, "whole", slowly)
    shard = array_shard(CUT, {Fragment(p): drawn(0, p) for p in range(2)})
    thread = threading.Thread(target=shard.whole, args=([F0],))
    asks = threading.Thread(target=shard.shared, args=([F0],))
    thread.start()
    assert copies.wait(WAIT_S)
    asks.start()
    asks.join(WAIT_S / 10)
    assert not asks.is_alive()
    go.set()
    thread.join(WAIT_S)


def drawn(number: int, p: int = 0) -> Arrays:
    flat = np.full(CUT.sizes[p], number, np.float32)
    return Arrays(Version(0, number), flat, flat.copy(), flat.copy())


def test_version_stored_after_its_fragment_went_back_is_deleted(tmp_path: Path) -> None:
    store = FragmentStore(Folder(tmp_path), CUT, keep=2)
    files = DepotFiles(store, Fence(Folder(tmp_path), 0), StoringPace(measured=False))
    files.save(F0, lambda: drawn(0), first=True)

    def copied() -> Arrays:
        files.forget_after(F0, Version(0, 0))  # called while the write hangs
        return drawn(1)

    files.save(F0, copied, first=False)
    assert store.newest(F0).version == Version(0, 0)
    files.save(F0, lambda: drawn(2), first=False)
    assert store.newest(F0).version == Version(0, 2)
