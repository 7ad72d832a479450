"""A comparison of memory formulas with the kernel's counts: `python -m tests.cluster.measured`.

Prints JSON: for each figure the bytes of the formula and the bytes that the kernel counts. It runs
in a process of its own, whose allocator returns freed memory at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from archipelago.lab.bench import procfs
from archipelago.lab.bench.memory import (
    in_flight,
    island_terms,
    model_file_terms,
    recovery_terms,
    shard_terms,
    total,
)
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.shard.arrays import first, warm_up
from cluster.shard.build import shard_over
from cluster.shard.files import DepotFiles
from cluster.shard.storing_thread import StoringPace
from cluster.storage.folder import Folder
from cluster.storage.fragments import FragmentStore
from cluster.storage.model_file import ModelFiles
from cluster.storage.ownership import Fence
from coordinator.codec import encode, encode_difference
from coordinator.fragments import Leaf, cut
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
    Publication,
    Publish,
    Version,
)
from islands.encoder import OnHost
from islands.exchange import Basis, Cut, Downlink, FragmentSnapshot, Uplink
from islands.learner_messages import HandOver, Track
from islands.own_wire import built_in

FRAGMENTS, SIDE, LEARNERS = 4, 1600, 3
"""The sizes of a model of 10 M parameters."""
LAYOUT = cut([Leaf(f"w{p}", (SIDE, SIDE)) for p in range(FRAGMENTS)], FRAGMENTS)
ALL = [Fragment(p) for p in range(FRAGMENTS)]
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
VERSIONS = 16
"""The merges of each fragment: more than the number of differences that a shard keeps."""


def config_of(*overrides: str) -> Config:
    tables = {
        "task": {"preset": "byte-tiny"},
        "sync": {"fragments": FRAGMENTS},
        "islands": [{"count": LEARNERS}],
    }
    return parse(tables, origin="measured", overrides=overrides)


class Since:
    """The growth of this process's memory since the object was made, now and at its peak."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._before = procfs.own_bytes(self._pid)
        self._resident = procfs.rss_bytes(self._pid)

    @property
    def now(self) -> int:
        return procfs.own_bytes(self._pid) - self._before

    def most(self, call: Callable[[], object]) -> int:
        """Return the peak growth in bytes while `call` runs."""
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the present size
        before = procfs.rss_bytes(self._pid) - self.now
        call()
        return procfs.peak_bytes(self._pid) - before


def numbers(p: int) -> np.ndarray:
    return np.random.default_rng(p).standard_normal(LAYOUT.sizes[p], np.float32) * np.float32(1e-3)


class Rounds:
    """A shard in this process and the contributions that it receives."""

    def __init__(self, config: Config, folder: Path, *, stores: bool) -> None:
        self.config, self.stores = config, stores
        store = FragmentStore(Folder(folder), LAYOUT, keep=2)
        pace = StoringPace(measured=False, sizes=dict(enumerate(LAYOUT.sizes)))  # type: ignore[arg-type]
        files = DepotFiles(store, Fence(Folder(folder), 0), pace)
        self.shard = shard_over(config, lambda: (LAYOUT, files), map)

    def seed(self) -> None:
        self.shard.seed({p: first(numbers(p)) for p in ALL})

    def handed_in(self, p: Fragment, number: int) -> tuple[Item, ...]:
        delta, items = numbers(p), list[Item]()
        for learner in range(LEARNERS):
            life = Life(Island(f"l-{learner}"), Incarnation(learner + 1))
            said = ContributionId(life, p, number, number + 1)
            progress = Progress(number + 1, number + 1, Lease(0))
            facts = HandIn(said, Version(0, number), number, 1, LAYOUT.fingerprint, progress)
            payload = encode(built_in(self.config.sync.wire_up), delta)
            items.append(Item(self.shard.receive(facts, payload), 1 / LEARNERS))
        return tuple(items)

    def merged(self, p: Fragment, number: int, items: tuple[Item, ...]) -> None:
        version = Version(0, number + 1)
        said = self.shard.merge(Merge(p, version, items, ""))
        assert isinstance(said, Merged), said
        if self.stores:
            self.shard.store(p, version)
        self.shard.publish(Publish(p, version, Version(0, number), (), ()))


Found = dict[str, tuple[int, int]]
"""Bytes by name of the figure: the result of the formula, and the kernel's count."""


def of_a_shard(folder: Path, *overrides: str, stores: bool = True) -> Found:
    config = config_of(*overrides)
    warm_up({built_in(config.sync.wire_up), built_in(config.sync.wire_down)})
    rounds, since = Rounds(config, folder, stores=stores), Since()
    terms = shard_terms(config, LAYOUT, stored=stores, sharing=False)
    rounds.seed()
    found: Found = {}
    for number in range(VERSIONS):
        for p in ALL:
            rounds.merged(p, number, rounds.handed_in(p, number))
    steady = total(terms, peak=False)
    found["between rounds"] = (steady, since.now)
    p = ALL[0]
    items = rounds.handed_in(p, VERSIONS)
    flying = in_flight(config, LAYOUT).nbytes
    found["in flight"] = (steady + flying, since.now)
    most = since.most(lambda: rounds.merged(p, VERSIONS, items))
    extra = {term.name: term.nbytes for term in terms if term.peak}
    merging = flying + extra.get("to undo a merge", 0)  # before the contributions are dropped
    storing = extra["a copy to store"] if stores else 0  # after the contributions are dropped
    made = extra["a difference being made"]
    return found | {"a merge": (steady + made + max(merging, storing), most)}


def of_recovery(folder: Path) -> Found:
    config = config_of()
    Rounds(config, folder, stores=True).seed()
    rounds, since = Rounds(config, folder, stores=True), Since()
    wanted = {p: Version(0, 0) for p in ALL}
    most = since.most(lambda: rounds.shard.recover(wanted, 1))
    return {"coming back": (total(recovery_terms(config, LAYOUT)), most)}


def of_a_learner() -> Found:
    config = config_of('sync.wire_up="int4"')
    warm_up({built_in(config.sync.wire_up), built_in(config.sync.wire_down)})
    encoder = OnHost(config.sync.wire_up)
    life, since = Life(Island("a"), Incarnation(1)), Since()
    public = {p: (Version(0, 0), numbers(p)) for p in ALL}
    downlink = Downlink(public, lambda *_: [])
    uplink = Uplink(life, encoder, LAYOUT)
    del public
    for p in ALL:
        _, flat = downlink._public[p]
        said = ContributionId(life, p, 0, 1)
        word = HandOver(p, said, Track(Version(0, 0)), Progress(1, 1, Lease(0)))
        trained: Any = flat + np.float32(1e-3)
        uplink.encode(p, FragmentSnapshot(word, Cut(trained, Basis(flat, flat))))
        uplink.settle(said, merged=True)
        difference = encode_difference(built_in(config.sync.wire_down), trained, flat).payload
        downlink.follow(Publication(p, Version(0, 1), Version(0, 0), ()), difference)
        del flat, trained, difference
    return {"a learner's host": (total(island_terms(config, LAYOUT)), since.now)}


def of_the_end(folder: Path) -> Found:
    files, since = ModelFiles(folder, LAYOUT), Since()

    def end() -> None:
        for p in ALL:
            files.add(Version(0, 0), numbers(p))
        files.publish()

    most = since.most(end)
    return {"the model's file": (total(model_file_terms(LAYOUT)), most)}


def main() -> None:
    found: dict[str, Found] = {"a learner": of_a_learner()}
    with TemporaryDirectory() as folder:
        there = Path(folder)
        found["the end"] = of_the_end(there / "e")
        anchor = 'sync.anchor="current"', "sync.max_staleness=3"
        found |= {
            "a shard": of_a_shard(there / "a"),
            "a shard, anchor current": of_a_shard(there / "b", *anchor),
            "a shard that does not store": of_a_shard(
                there / "c", 'sync.wire_down="int4"', stores=False
            ),
            "a shard that comes back": of_recovery(there / "d"),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
