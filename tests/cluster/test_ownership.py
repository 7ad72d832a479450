"""Tests of two owners of one depot: a live owner is not replaced, and a replaced one stops."""

from __future__ import annotations

import asyncio
import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import ray

from cluster.actors.shard.actor import ShardActor
from cluster.actors.start import Home
from cluster.actors.syncer.actor import SyncerActor
from cluster.config.load import load, parse
from cluster.fleet.controller import Fleet
from cluster.fleet.outcome import Outcome
from cluster.fleet.ray_backend import RayBackend
from cluster.storage import bucket, fleet_file, ownership, runs
from cluster.storage.bucket import Bucket
from cluster.storage.depot import Depot
from cluster.storage.folder import Folder
from cluster.storage.ownership import SILENCE_S, Fence, Owner, Ownership, lives_here, me, take
from coordinator.codec import encode
from coordinator.errors import RunFailed, UserMistake
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Version,
)
from islands.own_wire import built_in
from tests.cluster.played import LAYOUT, Played
from tests.cluster.s3 import served

RUN = "mine"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Generator[str]:
    with served() as uri:
        yield uri


@pytest.fixture(params=["folder", "bucket"])
def depot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Depot:
    if request.param == "folder":
        return Folder(request.getfixturevalue("tmp_path") / "runs" / RUN)
    monkeypatch.setattr(bucket, "SETTLE_S", 0.3)
    return Bucket(request.getfixturevalue("s3"), f"own-{next(NUMBERS)}")


@dataclass
class Elsewhere:
    """A virtual clock; `meanwhile` is called at every sleep."""

    meanwhile: Callable[[], None] = lambda: None
    now_s: float = 0.0
    waited_s: list[float] = field(default_factory=list[float])

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s
        self.waited_s.append(for_s)
        self.meanwhile()

    def take(self, depot: Depot, owner: Owner) -> Ownership:
        return take(depot, RUN, owner, now_s=lambda: self.now_s, sleep=self.sleep)


def foreign(token: str) -> Owner:
    """Return an owner on another machine, whose state cannot be checked here."""
    return replace(me(token), host="another", machine="far-away", pid=1)


def dead(token: str) -> Owner:
    """Return an owner whose process on this machine has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return replace(me(token), pid=done.pid, born=None)


# --- taking a run ---------------------------------------------------------------------------------


def test_second_owner_is_refused_while_the_first_lives(depot: Depot) -> None:
    here = Elsewhere()
    first = here.take(depot, me("a"))
    with pytest.raises(
        UserMistake, match=rf"run {RUN} is live: process [0-9]+ on .*two processes cannot"
    ):
        here.take(depot, me("b"))
    assert (first.number, here.waited_s) == (1, [])
    first.beat()
    first.check()


def test_owner_on_another_machine_lives_as_long_as_it_sends_heartbeats(depot: Depot) -> None:
    far = Elsewhere().take(depot, foreign("a"))
    here = Elsewhere(meanwhile=far.beat)
    with pytest.raises(UserMistake, match="is live: process 1 on far-away"):
        here.take(depot, me("b"))
    assert len(here.waited_s) == 1, "one beat is enough"
    here.meanwhile = lambda: None
    assert here.take(depot, me("b")).number == 2
    assert sum(here.waited_s) >= SILENCE_S
    with pytest.raises(RunFailed, match="taken over by process"):
        far.check(again=True)


def test_takes_over_at_once_from_an_owner_that_died_here_or_left(depot: Depot) -> None:
    here = Elsewhere()
    here.take(depot, dead("a"))
    second = here.take(depot, me("b"))
    depot.write(runs.CONFIG, b"it was begun")
    second.leave(begun=runs.CONFIG)
    assert here.take(depot, me("c")).number == 3
    assert here.waited_s == []


def test_leaving_an_unbegun_run_leaves_no_files(depot: Depot) -> None:
    Elsewhere().take(depot, me("a")).leave(begun=runs.CONFIG)
    assert depot.names() == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"token": "a"}'])
def test_waits_for_an_owner_that_died_while_taking_the_run(depot: Depot, content: bytes) -> None:
    depot.write("owner-1.json", content)
    here = Elsewhere()
    assert here.take(depot, me("b")).number == 2
    assert sum(here.waited_s) >= SILENCE_S


def test_waiting_owner_is_refused_if_another_takes_the_run(depot: Depot) -> None:
    Elsewhere().take(depot, foreign("a"))
    second = Elsewhere(meanwhile=lambda: assert_that(depot.claim("owner-2.json", b"")))
    with pytest.raises(UserMistake, match="another process, which has just taken it"):
        second.take(depot, me("b"))


def assert_that(true: bool) -> None:
    assert true


def test_concurrent_claims_have_one_winner(depot: Depot) -> None:
    depot.write("folder/other", b"")
    start = threading.Barrier(6)

    def claims(content: bytes) -> bool:
        start.wait()
        return depot.claim("wanted", content)

    with ThreadPoolExecutor(6) as threads:
        took = [*threads.map(claims, contents := [bytes([n]) for n in range(6)])]
    assert took.count(True) == 1
    assert depot.read("wanted") == contents[took.index(True)]
    assert not depot.claim("wanted", b"too late")


def test_concurrent_owners_have_one_winner(depot: Depot) -> None:
    tokens, start = [f"token {n}" for n in range(6)], threading.Barrier(6)

    def wants(token: str) -> Ownership | None:
        start.wait()
        try:
            return take(depot, RUN, me(token))
        except UserMistake:
            return None

    with ThreadPoolExecutor(6) as threads:
        took = [each for each in threads.map(wants, tokens) if each is not None]
    for each in took:
        each.beat()
    assert sum(each.lost is None for each in took) == 1


def test_restarted_fleet_continues_and_its_former_process_ends(depot: Depot) -> None:
    """The former process may still live, cut off.

    Everything else that the fleet has started belongs to the later process.
    """
    here = Elsewhere()
    former = here.take(depot, foreign("a"))
    later = here.take(depot, me("a"))
    assert (later.number, later.life, here.waited_s) == (1, 2, [])
    former.beat()
    assert (former.relieved, former.lost is None) == (True, False)
    later.beat()
    later.check()
    former.leave(begun=runs.CONFIG)
    assert lives_here(depot) is not None, "the later one"
    Fence(depot, 1).check()


def test_live_owner_on_this_machine_is_known(depot: Depot) -> None:
    assert lives_here(depot) is None
    Elsewhere().take(depot, foreign("a"))
    assert lives_here(depot) is None
    Elsewhere().take(depot, mine := me("b"))
    assert lives_here(depot) == mine


def test_depot_that_refuses_writes_stops_no_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "archipelago")
    own = Elsewhere().take(Folder(folder := tmp_path / RUN), me("a"))
    (folder / "owner-1.json").unlink()
    folder.rmdir()
    folder.write_text("no folder any more")
    for _ in range(3):
        own.check(again=True)
    assert len(caplog.messages) == 1, "it is logged once"


# --- processes of an owner ------------------------------------------------------------------------


def test_owner_sends_heartbeats_from_its_own_thread(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "BEAT_S", 0.01)
    far = Elsewhere().take(depot, foreign("a"))
    far.start()
    with pytest.raises(UserMistake, match="far-away"):
        take(depot, RUN, me("b"))
    depot.claim("owner-2.json", b"")
    far._thread.join(20)
    with pytest.raises(RunFailed, match="taken over by another process"):
        far.check()


@pytest.mark.parametrize("over", [False, True])
def test_replaced_fleet_leaves_the_files_of_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    """The fleet ends what it has started itself, if any of that is there."""
    sought: list[str] = []

    def absent(name: str, **_: str) -> None:
        sought.append(name)
        raise ValueError(f"there is no {name}")

    for call in ("ray.get_actor", "ray.util.get_placement_group"):
        monkeypatch.setattr(call, absent)
    folder = tmp_path / RUN
    config = parse({"task": {"preset": "byte-tiny"}, "islands": [{"count": 1}]})
    fleet = Fleet(
        config,
        folder,
        "nowhere",
        RayBackend(config, folder, Home("nowhere", detached=False)),
        detached=False,
        auth="disabled",
        token="a",
        resumes=False,
    )
    keeper = fleet._keeper
    keeper._let_go(Outcome({}))
    assert not folder.exists(), "it had not even begun"
    keeper._own = Elsewhere().take(Folder(folder), foreign("a"))
    keeper.up.set()
    keeper._remember()
    runs.announce(folder, runs.Live(RUN, "nowhere", "1.2.3.4:5", 1))
    if over:
        Elsewhere().take(Folder(folder), me("b"))
    before = (folder / fleet_file.FLEET_FILE).read_bytes()
    with pytest.raises(RunFailed) if over else nullcontext():
        keeper._own.check(again=True)
    keeper._let_go(Outcome({}, "for a reason"))
    assert ((folder / fleet_file.FLEET_FILE).read_bytes() == before) is over
    assert (folder / runs.LIVE).exists() is over
    assert [name for name in sought if "/" not in name] == ["syncer", "shard-0", "evaluator"]
    assert not ray.is_initialized(), "no Ray was started to ask it"


@pytest.fixture
def played(tmp_path: Path) -> Played:
    run = Played(tmp_path / RUN)
    run.to_the_end(24)
    return run


def test_processes_of_a_former_owner_write_nothing(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "BEAT_S", 0.0)
    loaded = load(played.run_dir / "config.toml")
    config, where, p = loaded.model_dump_json(), str(played.run_dir), Fragment(0)
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    shards = [ShardActor(config, "nowhere", where, "", owner) for owner in (1, 1, 2)]
    asyncio.run(shards[0].recover(wanted, 1))
    depot, following = Folder(played.run_dir), Version(1, wanted[p].number + 1)
    said = ContributionId(Life(Island("a"), Incarnation(9)), p, 0, 1)
    facts = HandIn(said, wanted[p], 0, 1, LAYOUT.fingerprint, Progress(1, 1, Lease(0)))
    payload = encode(built_in(loaded.sync.wire_up), np.ones(LAYOUT.sizes[p], np.float32))
    there = shards[0].process.shard.receive(facts, payload)
    order = Merge(p, following, (Item(there, 1.0),), "all delivered")
    assert isinstance(shards[0].process.shard.merge(order), Merged)
    later = shards[0].process.shard.receive(replace(facts, id=said._replace(to_step=2)), payload)
    another = Merge(p, following, (Item(later, 1.0),), "all delivered")
    Elsewhere().take(depot, dead("a"))
    Fence(depot, 1).check()
    Elsewhere().take(depot, me("b"))
    before = sorted(played.run_dir.rglob("*"))
    for asked in (
        lambda: asyncio.run(shards[0].process.keep(another)),
        lambda: shards[0].process.shard.store(order.fragment, order.version),
        lambda: asyncio.run(shards[1].recover(wanted, 1)),
        lambda: asyncio.run(SyncerActor(config, RUN, "nowhere", where, "", 1).status()),
        lambda: asyncio.run(SyncerActor(config, RUN, "nowhere", where, "", 1).open(LAYOUT)),
    ):
        with pytest.raises(RunFailed, match="taken over by process"):
            asked()
    assert sorted(played.run_dir.rglob("*")) == before
    assert asyncio.run(shards[2].recover(wanted, 1)) == wanted
