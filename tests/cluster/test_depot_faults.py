"""Tests of a depot whose system calls fail once each: the run continues and is durable again.

If it cannot continue, it reports the error.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from cluster.actors.shard.actor import ShardActor
from cluster.actors.syncer.actor import SyncerActor
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.storage import ownership
from cluster.storage.folder import Folder
from cluster.storage.fragments import FragmentStore
from cluster.storage.ownership import Owner, Ownership, me, take
from cluster.storage.playback import read_tape
from cluster.storage.runs import CONFIG as CONFIG_FILE
from cluster.storage.snapshots import load_snapshot
from cluster.syncer.journal import read_notes
from coordinator.codec import encode
from coordinator.errors import RunFailed, Unreachable, UserMistake
from coordinator.protocol import (
    ContributionId,
    Drain,
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
from islands.own_wire import built_in
from tests.cluster.played import LAYOUT
from tests.coordinator.given import life
from tests.system_calls import Call, Fault, SystemCalls, faults_of

F0 = Fragment(0)
T = TypeVar("T")


@dataclass
class Told:
    """The promises of a run that must be durable, and the errors that it raised."""

    errors: list[BaseException] = field(default_factory=list[BaseException])
    drained: list[str] = field(default_factory=list[str])
    faults: int = 0
    version: Version | None = None
    events: int = 0
    summary: Mapping[str, object] = field(default_factory=dict[str, object])

    async def again(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry the call once if the depot refuses it, and record the error."""
        try:
            return await call()
        except (OSError, RunFailed, Unreachable, UserMistake) as error:
            self.errors.append(error)
            return await call()


@dataclass
class Run:
    """The actors of a run in this process, over one depot, as plain objects of the real classes."""

    where: Path
    config: Config
    before_the_end: Callable[[], None]
    told: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        self.depot, self.numbers = Folder(self.where), itertools.count(1)
        self.clock = itertools.count(step=10)
        self.shard: ShardActor
        self.owner_number = 0

    def owner(self) -> Ownership:
        def sleep(_: float) -> None: ...

        mine: Owner = me("a")
        return take(self.depot, "run", mine, now_s=lambda: next(self.clock), sleep=sleep)

    async def begin(self) -> Ownership:
        async def own() -> Ownership:
            return self.owner()

        async def written() -> None:
            self.depot.write(CONFIG_FILE, self.config.toml().encode())

        owned = await self.told.again(own)
        said, self.owner_number = self.config.model_dump_json(), owned.number
        self.shard = ShardActor(said, "nowhere", str(self.where), "", owned.number)
        await self.told.again(written)
        for p in range(len(LAYOUT.sizes)):
            await self.told.again(functools.partial(self.seeded, Fragment(p)))
        return owned

    async def seeded(self, p: Fragment) -> None:
        await self.shard.seed(LAYOUT, p, np.ones(LAYOUT.sizes[p], np.float32))

    async def merges(self) -> bool:
        """Merge once, and return whether the version is durable."""
        generation = self.shard.process.shard.generation
        before, number = self.shard.process.shard.version(F0), next(self.numbers)
        after = Version(generation, before.number + 1)
        said = ContributionId(life(), F0, number, number + 1)
        progress = Progress(number, number, Lease(0, 1))
        facts = HandIn(said, before, number, 1, LAYOUT.fingerprint, progress)
        payload = encode(built_in(self.config.sync.wire_up), np.ones(LAYOUT.sizes[F0], np.float32))
        there = await self.shard.process.compute(self.shard.process.shard.receive, facts, payload)
        event, durable = await self.shard.merge(Merge(F0, after, (Item(there, 1.0),), ""))
        assert isinstance(event, Merged)
        await self.shard.publish(Publish(F0, after, before, (), ()), ())
        if durable is not True:
            assert isinstance(durable, str), "it reports why"
            self.told.errors.append(OSError(durable))
        self.told.version = after
        return durable is True

    async def syncer(self) -> SyncerActor:
        """Start a syncer, which continues from what its predecessor left."""
        said = self.config.model_dump_json()
        syncer = SyncerActor(said, "run", "nowhere", str(self.where), "", self.owner_number)
        await self.told.again(lambda: syncer.open(LAYOUT))
        return syncer

    async def lives(self, owned: Ownership, merges: int) -> SyncerActor:
        """Make requests that must be durable before they are answered, between snapshots.

        The snapshots seal the tape. The syncer learns of no merge: a restart goes back to the
        first version, and is refused if that is not among the newest two that are stored.
        """
        syncer = await self.syncer()
        for _ in range(4):
            why = f"why {len(self.told.drained)}"
            await syncer.drain(Island("local-0"), why)
            self.told.drained.append(why)
            await syncer.fault(Island("local-1"))
            self.told.faults += 1
            self.depot.write_soon("vitals.json", b"[]")
            await (await syncer.process.up.ready()).keep_snapshot()
            owned.check(again=True)
        for _ in range(merges):
            await self.merges()
        return syncer

    async def story(self) -> None:
        owned = await self.begin()
        first = await self.lives(owned, 1)
        up = await first.process.up.ready()
        for _ in range(2):  # rows that still wait in memory would die with the process
            up.tape.sync()
        up.syncer.close()  # its process dies
        syncer = await self.lives(owned, 3)
        if not await self.merges():
            assert await self.merges(), "it is durable again"
        self.before_the_end()
        self.told.summary = await syncer.close()
        owned.check(again=True)
        owned.leave(begun=CONFIG_FILE)
        self.told.events = (await syncer.process.up.ready()).tape.seq

    def check(self) -> None:
        """Check, as another process would, that everything promised is there."""
        events = self.told.events
        tape = read_tape(self.depot, LAYOUT.fingerprint)
        assert tape.length == events
        drained = [row.event.why for row in tape.events if isinstance(row.event, Drain)]
        assert drained == self.told.drained
        kept = load_snapshot(self.depot, LAYOUT.fingerprint)
        assert kept is not None
        assert kept.seq == events
        notes = [note for note in read_notes(self.depot) if note.kind == "fault"]
        assert len(notes) == self.told.faults
        store = FragmentStore(self.depot, LAYOUT, keep=2)
        assert store.newest(F0).version == self.told.version, "the last one is durable"
        assert len(self.depot.names("contributions/f0000")) >= next(self.numbers) - 2


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing wait for its next turn, and seal a segment at every snapshot."""
    monkeypatch.setattr("cluster.storage.tape.SEGMENT_BYTES", 1)
    monkeypatch.setattr("cluster.actors.bring_up.FIRST_S", 0.0)
    monkeypatch.setattr("cluster.actors.syncer.records.AGAIN_S", 0.0)
    monkeypatch.setattr(ownership, "BEAT_S", 0.0)


class Handle:
    """A handle of an actor in this process: `recover` works, other calls never return."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, method: str) -> object:
        call = getattr(self._run.shard, method) if method == "recover" else asyncio.Event().wait
        return type("Method", (), {"remote": staticmethod(call)})


def runs(
    where: Path,
    plan: tuple[Call, int, Fault] | None = None,
    before_the_end: Callable[[], None] = lambda: None,
) -> tuple[SystemCalls, Run]:
    """Play the whole story of a run in this folder, with at most one fault."""
    given = {
        "task": {"preset": "byte-tiny"},
        "sync": {"every": 4, "fragments": 2},
        "islands": [{"count": 2}],
        "durability": {"keep_contributions": True},
    }
    run = Run(where, parse(given), before_the_end)
    with pytest.MonkeyPatch.context() as patch, SystemCalls(where) as disk:
        patch.setattr("ray.get_actor", lambda *_, **__: Handle(run))
        if plan is not None:
            disk.fail(*plan)
        asyncio.run(run.story())
    run.check()
    return disk, run


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"{number}" / "run" for number in itertools.count())


def test_run_without_faults_makes_all_the_depots_system_calls(
    folders: Iterator[Path],
) -> None:
    disk, run = runs(next(folders))
    assert run.told.errors == []
    names = {call.name for call in disk.made}
    wanted = {"open", "write", "pwrite", "fsync", "close", "replace", "unlink", "mkdir", "scandir"}
    assert wanted <= names
    read = {call.file.partition("-")[0] for call in disk.made if call.name == "pread"}
    assert {"layout.json", "state.json", "fragments/fN"} <= read
    assert any(each.startswith("tape") for each in read)
    assert len(disk.made) > 40


@pytest.mark.long
@pytest.mark.slow
def test_everything_is_durable_after_each_call_fails_once(
    folders: Iterator[Path],
) -> None:
    """Each system call fails in one of its ways, at a random place.

    The test below covers all ways.
    """
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    plain, _ = runs(next(folders))
    for call, times in sorted(plain.made.items()):
        fails(folders, (call, chance.randint(1, times), chance.choice(faults_of(call))))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", Fault)
def test_each_call_fails_in_each_way(folders: Iterator[Path], fault: Fault) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    plain, _ = runs(next(folders))
    for call, times in sorted(plain.made.items()):
        if fault in faults_of(call):
            for number in {1, chance.randint(1, times), times}:
                fails(folders, (call, number, fault))


REFUSED = Call("open", "tape-N.arrow"), 1, Fault.EEXIST
"""A fault that the run refuses: the first file of its first tape exists already.

Another syncer may have made the file, so the run is refused before anything is trained.
"""


def fails(folders: Iterator[Path], plan: tuple[Call, int, Fault]) -> None:
    """Play the story with a fault, and check that the fault occurred."""
    if plan == REFUSED:
        with pytest.raises(RunFailed, match=r"tape-0.arrow: no readable beginning"):
            runs(next(folders), plan)
        return
    try:
        disk, _ = runs(next(folders), plan)
    except BaseException as error:
        error.add_note(f"{plan}")
        raise
    call, number, _ = plan
    fewer = 0 < disk.made[call] < number  # several notes may be written at once
    assert disk.hit or fewer, f"{plan} was not met, of {disk.made[call]} calls"
