"""Tests of the actors' own classes, without Ray around them: what a restarted process does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from cluster.actors.bring_up import FIRST_S
from cluster.actors.directory import Directory
from cluster.actors.object_store.publish import Shared
from cluster.actors.shard.actor import ShardActor
from cluster.actors.syncer.actor import SyncerActor
from cluster.actors.syncer.ray_ports import RayPorts
from cluster.config.load import load
from cluster.names import Seat
from cluster.source import source_sha256, user_sha256
from cluster.status import RunStatus
from cluster.storage.folder import Folder
from cluster.storage.fragments import FragmentStore
from cluster.syncer.collect import Gatherer
from coordinator.codec import Payload, Wire, encode
from coordinator.errors import NoModel, Outdated, RunFailed, Unreachable, UserMistake
from coordinator.protocol import (
    Contribution,
    ContributionId,
    Discard,
    Fate,
    Fragment,
    HandIn,
    Island,
    Item,
    Join,
    Known,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Refused,
    Region,
    Version,
)
from tests.cluster.played import LAYOUT, Played
from tests.coordinator.given import life


@pytest.fixture
def played(tmp_path: Path) -> Played:
    run = Played(tmp_path)
    run.to_the_end(24)
    return run


def config_of(run: Played) -> str:
    return load(run.run_dir / "config.toml").model_dump_json()


def syncer_of(run: Played) -> SyncerActor:
    return SyncerActor(config_of(run), "run", "nowhere", str(run.run_dir))


def test_restarted_shard_skips_damaged_version(played: Played) -> None:
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    newest = sorted((played.run_dir / "fragments").glob("f0000-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))
    found = asyncio.run(shard.recover(wanted, 1))
    f0, f1 = wanted
    assert found == {f0: Version(0, wanted[f0].number - 1), f1: wanted[f1]}


def test_unpublished_versions_do_not_displace_published_ones(played: Played) -> None:
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    keep, f0 = load(played.run_dir / "config.toml").durability.keep_snapshots, Fragment(0)
    store = FragmentStore(Folder(played.run_dir), LAYOUT, keep=keep)
    published = store.newest(f0, wanted[f0])
    for generation in range(1, keep + 2):
        never = Version(generation, wanted[f0].number + 1)  # its syncer dies before publication
        store.save(f0, replace(published, version=never))
        (played.run_dir / "fragments" / f".f0000-{never}.4711").write_bytes(b"begun")
        shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))
        assert asyncio.run(shard.recover(wanted, generation + 1)) == wanted
    assert not [*(played.run_dir / "fragments").glob(".*")]


def test_outdated_syncer_does_not_make_shard_forget(played: Played) -> None:
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))
    asked: list[str] = []
    shard._hand_ins._gatherer = cast(
        "Gatherer", SimpleNamespace(forget=lambda: asked.append("forget"))
    )
    asyncio.run(shard.recover(wanted, 2))
    with pytest.raises(Outdated, match="generation 1 is refused"):
        asyncio.run(shard.recover(wanted, 1))
    assert asked == ["forget"]


def test_shard_without_model_has_no_missed_versions(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.put", lambda array: array)
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    shard, f0 = ShardActor(config_of(played), "nowhere", str(played.run_dir)), Fragment(0)
    older = Version(0, wanted[f0].number - 1)
    assert asyncio.run(shard.missed(f0, older, wanted[f0], 1e9)) is None
    assert asyncio.run(shard.shared([f0], 1e9)) is None
    asyncio.run(shard.recover(wanted, 1))
    assert isinstance(asyncio.run(shard.missed(f0, older, wanted[f0], 1e9)), Shared)


def test_shard_that_reads_its_versions_counts_as_one_with_a_model(played: Played) -> None:
    """A stop during a long outage ends the run at once only if no model can come back."""
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))

    async def story() -> None:
        assert await shard.whole([]) is None
        recovery = asyncio.create_task(shard.recover(wanted, 1))
        await asyncio.wait({recovery}, timeout=0)
        assert await shard.whole([]) == []
        await recovery
        assert await shard.whole([]) == []
        with pytest.raises(Outdated):
            await shard.recover(wanted, 0)

    asyncio.run(story())


class Hasty:
    """A shard's handle that finishes calls out of order, as an asynchronous actor may."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, method: str) -> SimpleNamespace:
        async def called(order: Merge | Publish, *_: object) -> tuple[Merged, bool]:
            await asyncio.sleep(0.02 if method == "publish" else 0)
            self.done.append(f"{method} {order.version}")
            return Merged(order.fragment, order.version), True

        return SimpleNamespace(remote=called)


def test_merge_waits_until_previous_version_is_public() -> None:
    f0, f1, v1, v2 = Fragment(0), Fragment(1), Version(0, 1), Version(0, 2)
    ports, shard = RayPorts("nowhere", {f0: "shard-0", f1: "shard-0"}), Hasty()
    ports._actors._known["shard-0"] = shard

    async def orders() -> None:
        await asyncio.gather(
            ports.publish(Publish(f0, v1, Version(0, 0), (), ())),
            ports.merge(Merge(f0, v2, (), "all delivered")),
            ports.merge(Merge(f1, v1, (), "another fragment does not wait")),
        )

    asyncio.run(orders())
    assert shard.done == ["merge v1", "publish v1", "merge v2"]


class Mortal:
    """A stand-in for a shard's handle; its first `dies` calls fail."""

    def __init__(self, dies: int) -> None:
        self.dies = dies

    def __getattr__(self, method: str) -> SimpleNamespace:
        async def called(*_: object) -> object:
            self.dies -= 1
            if self.dies >= 0:
                raise RayActorError
            merged = Merged(Fragment(0), Version(0, 1))
            return (merged, True) if method == "merge" else method

        return SimpleNamespace(remote=called)


def test_calls_of_a_dead_shard_are_skipped_without_failing_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f0, v1, shard = Fragment(0), Version(0, 1), Mortal(2)
    monkeypatch.setattr("ray.get_actor", lambda *_, **__: shard)
    monkeypatch.setattr("cluster.actors.syncer.ray_ports.AGAIN_S", 0.01)
    ports, merge = RayPorts("nowhere", {f0: "shard-0"}), Merge(f0, v1, (), "all delivered")

    async def story() -> None:
        assert not await ports.merge(merge), "the first call that fails"
        await ports.shard_dies("shard-0")
        shard.dies = 3
        await ports.publish(Publish(f0, v1, Version(0, 0), (), ()))
        assert not await ports.merge(merge)
        assert shard.dies == 3, "it was not even asked"
        collecting = asyncio.create_task(ports.collect(life(), f0))
        wanted = {f0: Version(0, 0)}
        assert await ports.have_back("shard-0", wanted, 0) == "recover", "once Ray has it again"
        assert not collecting.done()
        ports.is_back("shard-0")
        assert await ports.merge(merge)
        collecting.cancel()

    asyncio.run(story())


class Training:
    """A stand-in for an island's handle; it has trained one more step at every call."""

    def __init__(self, base: Version) -> None:
        self.base, self.steps, self.told = base, 0, list[Known]()

    def __getattr__(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(remote=getattr(self, f"_{method}"))

    async def _hand_in(self, who: Life, p: Fragment, known: Known) -> tuple[HandIn, Payload]:
        self.told.append(known)
        self.steps += 1
        said = ContributionId(who, p, self.steps - 1, self.steps)
        progress = Progress(self.steps, 10 * self.steps, Lease(0, self.steps))
        delta = encode(Wire.BF16, np.full(LAYOUT.sizes[p], 1e-3, np.float32))
        facts = HandIn(said, self.base, self.steps - 1, 10, LAYOUT.fingerprint, progress)
        return facts, delta

    async def _offer(self, *_: object) -> None: ...


def reached(shard: ShardActor) -> SimpleNamespace:
    """Return a stand-in for the shard's handle; its `watch` reports a death at once."""

    async def watch() -> None:
        raise RayActorError

    calls = {name: getattr(shard, name) for name in METHODS} | {"watch": watch}
    return SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})


METHODS = ("collect", "merge", "publish", "discard", "recover")


def test_learner_receives_fates_of_earlier_contributions_with_next_request(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor of a dead shard gets the merged contributions from the syncer, too."""
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    p, who = Fragment(0), life()
    island, following = Training(wanted[p]), Version(0, wanted[p].number + 1)
    ports = RayPorts("nowhere", dict.fromkeys(wanted, "shard-0"))
    shards = [ShardActor(config_of(played), "nowhere", str(played.run_dir)) for _ in range(2)]
    for shard in shards:
        shard._actors._known[f"island {who.island}"] = island

    async def begins(shard: ShardActor) -> None:
        monkeypatch.setattr("ray.get_actor", lambda *_, **__: reached(shard))
        await ports.have_back("shard-0", wanted, 0)

    async def asked() -> Contribution:
        said = await ports.collect(who, p)
        assert isinstance(said, Contribution)
        return said

    async def story() -> None:
        await begins(shards[0])
        merged, refused, held = [await asked() for _ in range(3)]
        await ports.discard(Discard(refused, Fate.SUPERSEDED, "reported twice"))
        assert await ports.merge(Merge(p, following, (Item(merged, 1.0),), "all delivered"))
        another = await asked()
        await ports.publish(Publish(p, following, wanted[p], (), (merged.id,)))
        await asked()
        wanted[p] = following
        await ports.shard_dies("shard-0")
        await begins(shards[1])
        ports.is_back("shard-0")
        await asked()
        assert island.told == [
            Known((0, 1)),
            Known((0, 2), (merged.id,)),
            Known((0, 3), (merged.id, refused.id)),
            Known((0, 4), (merged.id, held.id)),
            Known((0, 5), (held.id, another.id), (merged.id,)),
            Known((1, 1), (), (merged.id,)),
        ]

    asyncio.run(story())


class Head:
    """A stand-in for Ray's head; a lookup of `waits` blocks until `go` is set."""

    def __init__(self, actors: Mapping[str, object], waits: str) -> None:
        self.actors, self.waits, self.looked_up = actors, waits, list[str]()
        self.asked, self.go = threading.Event(), threading.Event()

    def get_actor(self, name: str, namespace: str) -> object:
        self.looked_up.append(name)
        if name == self.waits:
            self.asked.set()
            if not self.go.wait(5):
                raise GetTimeoutError(f"no process lists where {name} is")
        if name not in self.actors:
            raise ValueError(f"there is no {name}")
        return self.actors[name]

    async def is_asked(self) -> None:
        """Wait, while the event loop runs, until `waits` is looked up."""
        while not self.asked.is_set():
            await asyncio.sleep(0.001)


class Willing:
    """A stand-in for a handle; every call succeeds and returns its own name."""

    def __getattr__(self, method: str) -> SimpleNamespace:
        async def called(*_: object) -> object:
            merged = Merged(Fragment(0), Version(0, 1))
            return (merged, True) if method == "merge" else method

        return SimpleNamespace(remote=called)


def test_join_during_head_outage_does_not_block_other_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new life is looked up in the background; known lives are still reached."""
    f0, v1 = Fragment(0), Version(0, 1)
    head = Head({"island a": Willing(), "island b": Willing(), "shard-0": Willing()}, "island b")
    monkeypatch.setattr("ray.get_actor", head.get_actor)
    ports = RayPorts("nowhere", {f0: "shard-0"})

    async def story() -> None:
        assert await ports.watch(life("a")) == "watch"
        watching = asyncio.create_task(ports.watch(life("b")))
        telling = asyncio.create_task(ports.leave(life("b")))
        await head.is_asked()
        assert await ports.leave(life("a")) == "leave"
        assert await ports.merge(Merge(f0, v1, (), "all delivered"))
        assert not watching.done()
        head.go.set()
        assert (await watching, await telling) == ("watch", "leave")
        assert await ports.watch(life("c")) == "its process ended (RayActorError)"

    asyncio.run(story())
    assert head.looked_up.count("island b") == 1, "for both who have asked"


def test_head_timeout_does_not_end_a_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[object] = [GetTimeoutError("the head is away"), Willing()]

    def get_actor(*_: object, **__: object) -> object:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr("ray.get_actor", get_actor)
    assert asyncio.run(RayPorts("nowhere", {}).watch(life())) == "watch"


def test_join_before_ray_lists_the_process_does_not_end_the_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Restarted(Willing):
        """An actor that Ray still restarts although it has joined already."""

        def __init__(self) -> None:
            self.known = False

        def __getattr__(self, method: str) -> SimpleNamespace:
            async def called(*_: object) -> object:
                known, self.known = self.known, True
                if not known:
                    raise ActorUnavailableError("restarting", None)
                return method

            return SimpleNamespace(remote=called)

    monkeypatch.setattr("ray.get_actor", Head({"island a": Restarted()}, "").get_actor)
    monkeypatch.setattr("cluster.actors.directory.AGAIN_S", 0.001)
    assert asyncio.run(RayPorts("nowhere", {}).watch(life("a"))) == "watch"
    monkeypatch.setattr("cluster.actors.directory.REACHED_S", -1.0)
    monkeypatch.setattr("ray.get_actor", Head({"island a": Restarted()}, "").get_actor)
    said = asyncio.run(RayPorts("nowhere", {}).watch(life("a")))
    assert said == "its process ended (ActorUnavailableError)", "it never comes"


def test_lookup_of_a_forgotten_actor_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The actor is another one of the same name by then, so the first answer is not kept."""
    first, second = Willing(), Willing()
    head = Head({"island a": first}, "island a")
    monkeypatch.setattr("ray.get_actor", head.get_actor)
    directory = Directory("nowhere")

    async def story() -> None:
        seeking = asyncio.create_task(directory.find("island a"))
        await head.is_asked()
        directory.forget("island a")
        head.go.set()
        assert await seeking is first
        head.actors = {"island a": second}
        assert await directory.find("island a") is second
        assert directory["island a"] is second

    asyncio.run(story())


def test_shard_collects_from_others_while_one_lookup_hangs(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    p, a, b = Fragment(0), life("a"), life("b")
    head = Head({"island a": Training(wanted[p]), "island b": Training(wanted[p])}, "island b")
    monkeypatch.setattr("ray.get_actor", head.get_actor)
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))

    async def story() -> None:
        await shard.recover(wanted, 0)
        seats = {b: Seat("b"), a: Seat("a")}
        ((who, said),) = await shard.collect(p, seats)
        assert who == a
        assert isinstance(said, Contribution)
        head.go.set()
        (other,) = await shard.collect(p, {b: Seat("b")})
        assert other[0] == b

    asyncio.run(story())


def test_new_shard_refuses_orders_for_its_predecessor(
    played: Played,
) -> None:
    """The shard might be called before the death of its predecessor is noticed."""
    p, v1 = Fragment(0), Version(0, 1)
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))
    for order in (
        shard.merge(Merge(p, v1, (), "all delivered")),
        shard.publish(Publish(p, v1, Version(0, 0), (), ()), ()),
    ):
        with pytest.raises(NoModel, match="has just begun"):
            asyncio.run(order)


def test_shard_with_changed_outer_optimizer_does_not_recover(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, wanted = tmp_path / "own", {Fragment(0): Version(0, 0)}
    own.mkdir()
    (own / "our_outer.py").write_text("outer = 1")
    monkeypatch.syspath_prepend(str(own))
    config = played.run_dir / "config.toml"
    config.write_text(config.read_text() + '[sync.outer]\ntarget = "our_outer:outer"\n')
    code = user_sha256("our_outer:outer")
    shards = [
        ShardActor(config_of(played), "nowhere", str(played.run_dir), each)
        for each in (code, "changed")
    ]
    with pytest.raises(RunFailed, match=f"our_outer:outer.*is {code}, and was changed"):
        asyncio.run(shards[1].recover(wanted, 1))
    with pytest.raises(UserMistake, match="our_outer"):
        asyncio.run(shards[0].recover(wanted, 1))


def test_recovered_shard_need_not_publish_its_version_again(played: Played) -> None:
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    shard, p = ShardActor(config_of(played), "nowhere", str(played.run_dir)), Fragment(0)
    asyncio.run(shard.recover(wanted, 0))
    before = Version(0, wanted[p].number - 1)
    asyncio.run(shard.publish(Publish(p, wanted[p], before, (), ()), ()))
    found = asyncio.run(shard.whole([p]))
    assert found is not None
    assert found[0][0] == wanted[p]


def test_shard_refuses_orders_of_an_earlier_generation(played: Played) -> None:
    """Ray may lose sight of an old syncer; a shard that a later one has called refuses it."""
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))
    asyncio.run(shard.recover(wanted, 3))
    old, p = Version(2, wanted[Fragment(0)].number + 1), Fragment(0)
    for order in (
        shard.merge(Merge(p, old, (), "old")),
        shard.publish(Publish(p, old, wanted[p], (), ()), ()),
        shard.recover(wanted, 2),
    ):
        with pytest.raises(Outdated, match="generation 2 is refused, that of 3 is in charge"):
            asyncio.run(order)
    versions = asyncio.run(shard.whole([*wanted]))
    assert versions is not None
    assert [version for version, _ in versions] == [*wanted.values()]


def test_unknown_island_is_refused_without_a_trace(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))
    lives = SimpleNamespace(remote=asyncio.Event().wait)
    handle = SimpleNamespace(recover=SimpleNamespace(remote=shard.recover), watch=lives)
    monkeypatch.setattr("ray.get_actor", lambda *_, **__: handle)
    syncer = syncer_of(played)

    async def story() -> None:
        before = await syncer.status()
        for who in (
            Join(Island("../../etc-0"), "local", LAYOUT.fingerprint),
            Join(Island("elsewhere-0"), "elsewhere", LAYOUT.fingerprint),
            Join(Island("local-0"), "local", LAYOUT.fingerprint, Region("eu")),
        ):
            answer, _ = await syncer.join(who, source_sha256(), Seat("local-0"))
            assert isinstance(answer, Refused)
            assert answer.retry_s is None
        assert [each["island"] for each in (await syncer.status())["islands"]] == [
            each["island"] for each in before["islands"]
        ]
        other = Join(Island("local-0"), "local", LAYOUT.fingerprint)
        answer, _ = await syncer.join(other, source_sha256(), Seat("local-0"), "changed")
        assert "put its files back" in str(answer)
        added = Join(Island("local-7"), "local", LAYOUT.fingerprint)
        answer, _ = await syncer.join(added, source_sha256(), Seat("local-7"))
        assert "the run is finished" in str(answer), "that was asked of the rules"
        await syncer.close()
        (await syncer.process.up.ready()).notes.close()

    asyncio.run(story())


def test_syncer_under_other_rules_does_not_come_back(played: Played) -> None:
    """The syncer reports the reason at every call, without reading the tape each time."""
    config = played.run_dir / "config.toml"
    config.write_text(config.read_text().replace("[sync]", "[sync]\nquorum = 2"))
    syncer = syncer_of(played)
    with pytest.raises(RunFailed, match=r"event [0-9]+ of the tape.* answered otherwise"):
        asyncio.run(syncer.status())
    for tape in played.run_dir.glob("tape-*"):
        tape.unlink()
    with pytest.raises(RunFailed, match="cannot come back"):
        asyncio.run(
            syncer.join(
                Join(next(iter(played.state.members)), "g", "l"), "any source", Seat("eu-0")
            )
        )


@contextmanager
def unreadable(path: Path) -> Generator[None]:
    """Put a folder in the place of a file, so that reading it raises `OSError`."""
    aside = path.with_name("aside")
    path.rename(aside)
    path.mkdir()
    yield
    path.rmdir()
    aside.rename(path)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return the actors that Ray has, by name."""
    there = dict[str, object]()
    monkeypatch.setattr("ray.get_actor", lambda name, **_: there[name])
    return there


def syncer_with_its_shard(played: Played, found: dict[str, object]) -> SyncerActor:
    """Return a restarted syncer that finds a restarted shard."""
    shard = ShardActor(config_of(played), "nowhere", str(played.run_dir))
    never = SimpleNamespace(remote=asyncio.Event().wait)
    recover = SimpleNamespace(remote=shard.recover)
    found["shard-0"] = SimpleNamespace(recover=recover, watch=never)
    return syncer_of(played)


@pytest.mark.parametrize("pattern", ["layout.json", "fragments/f0001-*"])
def test_syncer_and_shard_come_back_once_their_storage_answers(
    played: Played, found: dict[str, object], pattern: str
) -> None:
    """A bucket that was away for a minute once ended the run."""
    syncer = syncer_with_its_shard(played, found)

    async def until_back() -> RunStatus:
        while True:
            with suppress(Unreachable):
                return await syncer.status()
            await asyncio.to_thread(threading.Event().wait, 0.05)

    async def story() -> None:
        with unreadable(sorted(played.run_dir.glob(pattern))[-1]):
            for _ in range(2):
                with pytest.raises(Unreachable, match=r"storage does not answer: .*Is a directory"):
                    await syncer.status()
            waiting = asyncio.create_task(until_back())
            _, pending = await asyncio.wait({waiting}, timeout=1.2 * FIRST_S)
            assert pending, "it is tried more than once"
        assert (await waiting)["merges"] == played.state.merges
        await syncer.close()
        (await syncer.process.up.ready()).notes.close()

    asyncio.run(story())


@pytest.mark.parametrize("content", [None, b"", b"{}"], ids=["missing", "truncated", "other"])
def test_syncer_and_shard_come_back_without_their_layout(
    played: Played, found: dict[str, object], content: bytes | None
) -> None:
    """One damaged byte once ended the run at the next restart of either."""
    (played.run_dir / "layout.json").unlink()
    if content is not None:
        (played.run_dir / "layout.json").write_bytes(content)
    syncer = syncer_with_its_shard(played, found)

    async def story() -> None:
        assert (await syncer.status())["merges"] == played.state.merges
        await syncer.close()
        (await syncer.process.up.ready()).notes.close()

    asyncio.run(story())


def test_shard_alone_waits_for_its_storage_while_all_else_continues(
    found: dict[str, object],
) -> None:
    """The syncer once began a new generation instead, and all learners rejoined."""
    answers: list[object] = [RayActorError(), OSError("EIO"), "recovered"]

    async def recover(*_: object) -> object:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    found["shard-0"] = SimpleNamespace(recover=SimpleNamespace(remote=recover))
    ports, told = RayPorts("nowhere", {Fragment(0): "shard-0"}), list[str]()
    wanted = {Fragment(0): Version(0, 0)}
    assert asyncio.run(ports.have_back("shard-0", wanted, 0, told.append)) == "recovered"
    assert told == ["shard-0 cannot read its versions yet: EIO"]


def test_shard_whose_storage_hangs_is_waited_for_with_an_alert(found: dict[str, object]) -> None:
    """The fragments were once away without a limit, and without an alert."""
    answers, told, calls = asyncio.Event(), list[str](), list[object]()
    failures: list[Exception] = [RayActorError(), OSError("EIO")]

    async def recover(*arguments: object) -> object:
        calls.append(arguments)
        await answers.wait()
        if failures:
            raise failures.pop()
        return "recovered"

    def waits(why: str) -> None:
        told.append(why)
        if len(told) == 3:
            answers.set()

    found["shard-0"] = SimpleNamespace(recover=SimpleNamespace(remote=recover))
    ports, wanted = RayPorts("nowhere", {Fragment(0): "shard-0"}), {Fragment(0): Version(0, 0)}
    back = ports.have_back("shard-0", wanted, 0, waits, look_s=0.01)
    assert asyncio.run(back) == "recovered"
    assert len(calls) == 3, "one call hangs; an error of that call is retried as before"
    *silent, error = told
    assert error == "shard-0 cannot read its versions yet: EIO"
    assert all(each.startswith("shard-0 has not answered for 0 s: ") for each in silent)


def test_syncer_with_tape_of_another_model_does_not_come_back(played: Played) -> None:
    """The snapshot is deleted, because the syncer could resume from it alone."""
    (played.run_dir / "state.json").unlink()
    tape = played.run_dir / "tape-0.arrow"
    tape.write_bytes(
        tape.read_bytes().replace(LAYOUT.fingerprint.encode(), b"0" * len(LAYOUT.fingerprint))
    )
    with pytest.raises(RunFailed, match="another layout"):
        asyncio.run(syncer_of(played).status())
