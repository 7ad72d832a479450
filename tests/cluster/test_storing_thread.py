"""Tests of storing beside everything else.

Storing takes a share of the time, and a depot that does not answer stops no round.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cluster.actors.shard.actor import ShardActor
from cluster.actors.syncer.actor import SyncerActor
from cluster.config.load import load
from cluster.shard import storing_thread as storing
from cluster.shard.storing_thread import SMALL_BYTES, STORING_SHARE, StoringPace, StoringThread
from cluster.storage import folder
from cluster.storage.folder import Folder
from cluster.storage.fragments import FragmentStore
from coordinator.codec import Wire, encode
from coordinator.protocol import (
    Contribution,
    ContributionId,
    Fragment,
    HandIn,
    Island,
    Item,
    Lease,
    Merge,
    Merged,
    Progress,
    Publish,
    Version,
)
from tests.cluster.played import CONFIG, LAYOUT, Played
from tests.coordinator.given import life
from tests.system_calls import SystemCalls

F0, F1, F2 = Fragment(0), Fragment(1), Fragment(2)
WAIT_S = 60.0


@pytest.mark.parametrize("fragments", [1, 3, 8])
def test_storing_takes_its_share_of_the_time_for_all_fragments(fragments: int) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    sizes = {Fragment(p): SMALL_BYTES for p in range(fragments)}
    pace = StoringPace(measured=True, sizes=sizes)
    now_s, spent_s, stored = 0.0, 0.0, dict.fromkeys(sizes, 0)
    longest_s, gap_s = 0.0, 10 ** dice.uniform(-2, 1)
    rounds = 400
    for _ in range(rounds):
        for p in sizes:
            now_s += gap_s * dice.uniform(0.5, 1.5)
            if pace.turn_of(p, now_s):
                took_s = dice.uniform(0.5, 1.0)
                longest_s = max(longest_s, took_s)
                pace.stored(p, now_s, took_s)
                spent_s, stored[p] = spent_s + took_s, stored[p] + 1
                now_s += took_s
    assert spent_s <= STORING_SHARE * now_s + fragments * longest_s
    rarest_s = fragments * longest_s / STORING_SHARE + fragments * (1.5 * gap_s + longest_s)
    assert min(stored.values()) >= now_s / rarest_s - 1, "each has an equal part"


def test_fragments_are_stored_each_time_if_small_or_configured() -> None:
    small = StoringPace(measured=True, sizes={F0: SMALL_BYTES // 12, F1: SMALL_BYTES})
    said = StoringPace(measured=False, sizes={F0: SMALL_BYTES})
    for pace in (small, said):
        pace.stored(F0, 0.0, 100.0)
        assert pace.turn_of(F0, 100.0)
    small.stored(F1, 0.0, 1.0)
    assert not small.turn_of(F1, 1.0 / STORING_SHARE - 0.1)
    assert small.turn_of(F1, 1.0 / STORING_SHARE)
    assert "in 4 s or more" in small.cost_text()
    assert "25%" in small.cost_text()
    assert "or more" not in said.cost_text()


def test_first_version_of_a_large_fragment_has_a_short_timeout() -> None:
    """After a restart of a shard it was 42 minutes for a gigabyte, and all merges waited."""
    gigabyte = 10**9 // 12
    pace = StoringPace(measured=True, sizes={F0: gigabyte, F1: gigabyte // 2, F2: 1})
    assert pace.limit_s(F0) == storing.FIRST_S, "nothing is known"
    pace.stored(F2, 0.0, 1.0)
    assert pace.limit_s(F0) == storing.FIRST_S, "a small fragment measures no throughput"
    pace.read(F0, 0.01)
    assert pace.limit_s(F0) == pytest.approx(40, rel=0.01), "a cache may have answered"
    pace.read(F1, 5.0)
    assert pace.limit_s(F0) == pytest.approx(100, rel=0.01)
    pace.stored(F1, 0.0, 100.0)
    assert pace.limit_s(F0) == storing.FIRST_S, "the slowest one counts"
    pace.stored(F0, 0.0, 30.0)
    assert pace.limit_s(F0) == 300.0, "what it took itself"
    assert pace.limit_s(F2) == 10.0


class Hanging:
    """A write that hangs until `go` is set, and counts its calls."""

    def __init__(self) -> None:
        self.begun, self.go, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self, *_: object) -> bool:
        self.calls += 1
        self.begun.set()
        assert self.go.wait(60)
        return True


def test_hanging_store_is_given_up_with_all_that_waits_behind_it() -> None:
    now_s, hanging = [0.0], Hanging()
    thread = StoringThread(StoringPace(measured=False, sizes={F0: 1, F1: 1}), lambda: now_s[0])

    def store(copied: Callable[[], None]) -> bool:
        copied()
        return hanging()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(thread.store(F0, store))
        await loop.run_in_executor(None, hanging.begun.wait)
        second = asyncio.create_task(thread.store(F1, store))
        _, pending = await asyncio.wait({first, second}, timeout=5 * storing.LOOK_S)
        assert pending == {first, second}, "it may take a while"
        now_s[0] = storing.SILENCE_S + 1
        for given_up in (await first, await second):
            assert given_up == "the depot has not answered for 6 s"
        assert hanging.calls == 1, "what waited was not begun"
        assert await thread.alone(lambda: "recovered") == "recovered"
        assert await thread.keep(F0, 1, lambda: None) == "the depot has not answered for 6 s"
        assert hanging.calls == 1, "there is one such thread, and one such copy"
        hanging.go.set()
        while (said := await thread.store(F1, store)) is not True:
            assert said == "the depot has not answered for 6 s"
        assert await thread.keep(F0, 1, lambda: None) is None

    asyncio.run(story())


def test_store_without_a_copy_is_not_given_up() -> None:
    """Otherwise the arrays would be published and merged into while they are read."""
    now_s, hanging = [0.0], Hanging()
    thread = StoringThread(StoringPace(measured=False, sizes={F0: 1}), lambda: now_s[0])

    def store(copied: Callable[[], None]) -> bool:
        done = hanging()
        copied()
        return done

    async def story() -> None:
        task = asyncio.create_task(thread.store(F0, store))
        await asyncio.get_running_loop().run_in_executor(None, hanging.begun.wait)
        now_s[0] = 100.0
        _, pending = await asyncio.wait({task}, timeout=5 * storing.LOOK_S)
        assert pending
        hanging.go.set()
        assert await task is True

    asyncio.run(story())


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Hanging:
    """Make writes of fragment 0 in a folder hang until `go` is set."""
    hanging, was = Hanging(), folder.write

    def write(path: Path, *content: bytes) -> None:
        if "f0000" in path.name:
            hanging()
        was(path, *content)

    monkeypatch.setattr(folder, "write", write)
    return hanging


def received(shard: ShardActor, p: Fragment, base: Version) -> Contribution:
    said = ContributionId(life(), p, base.number, base.number + 1)
    progress = Progress(1, 10, Lease(0, 1))
    facts = HandIn(said, base, 0, 10, LAYOUT.fingerprint, progress)
    return shard.process.shard.receive(
        facts, encode(Wire.BF16, np.full(LAYOUT.sizes[p], 1e-3, np.float32))
    )


def test_merges_of_other_fragments_continue_while_one_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: Hanging
) -> None:
    monkeypatch.setattr(storing, "SILENCE_S", 0.2)
    monkeypatch.setattr(storing, "SLOWEST_BYTES_S", 1e9)
    (tmp_path / "run.toml").write_text(CONFIG.replace("keep_contributions = true", ""))
    config = load(tmp_path / "run.toml")
    shard = ShardActor(config.model_dump_json(), "nowhere", str(tmp_path))
    flats = {Fragment(p): np.ones(size, np.float32) for p, size in enumerate(LAYOUT.sizes)}
    v = [Version(0, n) for n in range(400)]
    store = FragmentStore(Folder(tmp_path), LAYOUT, keep=2)

    async def merged(p: Fragment, n: int) -> bool | str:
        there = await shard.process.compute(received, shard, p, v[n - 1])
        event, durable = await shard.merge(Merge(p, v[n], (Item(there, 1.0),), ""))
        assert isinstance(event, Merged)
        await shard.publish(Publish(p, v[n], v[n - 1], (), ()), ())
        return durable

    async def story() -> None:
        hung.go.set()
        *_, (there, said) = [await shard.seed(LAYOUT, p, flat) for p, flat in flats.items()]
        assert (there, "storing each fragment once takes" in said) == ([*flats], True)
        hung.go.clear()
        hung.begun.clear()
        first = asyncio.create_task(merged(F0, 1))
        await asyncio.get_running_loop().run_in_executor(None, hung.begun.wait)
        assert "has not answered" in str(await merged(F1, 1)), "it is merged, and public"
        assert "has not answered" in str(await first)
        assert "has not answered" in str(await merged(F0, 2)), "into what is still being written"
        versions = [version for version, _ in await shard.whole([F0, F1]) or ()]
        assert versions == [v[2], v[1]]
        hung.go.set()
        assert await shard.process.storing.alone(lambda: "beside it") == "beside it"
        while not store.has(F0, v[1]):
            await asyncio.wait_for(asyncio.sleep(0), WAIT_S)
        number = 2
        while await merged(F1, number) is not True:  # its thread has yet to end
            number += 1
        assert await merged(F0, 3) is True

    asyncio.run(story())
    kept = [store.load(F0, each) for each in (v[1], v[3])]
    assert [float(each.public[0]) for each in kept] == pytest.approx([1.001, 1.003], abs=1e-4)
    assert not store.has(F0, v[2])


@pytest.mark.parametrize("elsewhere", [False, True], ids=["run directory", "durability.dir"])
def test_hanging_disk_does_not_block_the_syncers_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """The event loop itself makes no system call.

    A status is answered at once, and a request that must be durable waits.
    """
    played = Played(tmp_path / "there" / "run")
    played.to_the_end(6)
    text = f'{CONFIG}\ndir = "{tmp_path / "there"}"\n' if elsewhere else CONFIG
    (played.run_dir / "config.toml").write_text(text)
    config = load(played.run_dir / "config.toml")
    run_dir = str(tmp_path / "run") if elsewhere else str(played.run_dir)
    syncer = SyncerActor(config.model_dump_json(), "run", "nowhere", run_dir)
    shard = ShardActor(config.model_dump_json(), "nowhere", run_dir)

    class Handle:
        def __getattr__(self, method: str) -> object:
            call = getattr(shard, method) if method == "recover" else asyncio.Event().wait
            return type("Method", (), {"remote": staticmethod(call)})

    monkeypatch.setattr("ray.get_actor", lambda *_, **__: Handle())

    async def story(disk: SystemCalls) -> None:
        await syncer.status()
        monkeypatch.setattr("cluster.syncer.effect_queue.FLUSH_TIMEOUT_S", 0.5)
        monkeypatch.setattr("cluster.actors.syncer.records.END_S", 0.2)
        disk.answers.clear()
        stopping = asyncio.create_task(syncer.stop("enough"))
        await asyncio.get_running_loop().run_in_executor(None, disk.hung.wait)
        for number in range(20):
            await syncer.fault(Island("local-0"))
            await syncer.evaluated(number, 1.0)
            await asyncio.wait_for(syncer.status(), 1.0)
        assert not stopping.done(), "that it was told is not durable"
        await asyncio.wait_for(stopping, 5.0)
        summary = await asyncio.wait_for(syncer.close(), 5.0)
        assert (summary["merges"], summary["faults"]) == (played.state.merges, 20)
        disk.answers.set()
        (await syncer.process.up.ready()).notes.close()

    with SystemCalls(tmp_path / "there") as disk:
        asyncio.run(story(disk))
