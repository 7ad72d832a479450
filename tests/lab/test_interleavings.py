"""A shard's publisher and the attendance of shards, in virtual time and in random orders.

Calls, deaths and new versions interleave; each caller gets an answer within a bound.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from archipelago.lab.virtual.event_loop import VirtualLoop, running
from cluster.actors.object_store.publish import FragmentPublisher
from cluster.actors.object_store.ranges import Range
from cluster.syncer.shard_liveness import Attendance, Away
from cluster.tasks import Tasks
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Version

SEED = time.time_ns()
SCHEDULES = 100
BOUND_S = 120.0
FRAGMENTS = (Fragment(0), Fragment(1))
NAMES = ("shard-0", "shard-1")


class Full(Exception):
    """The object store has no room."""


class Dead(Exception):
    """The error of a call whose callee is dead."""


def played(rng: random.Random, stories: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all these coroutines concurrently, within `BOUND_S` of virtual time."""
    loop, broken = VirtualLoop(), list[BaseException]()
    loop.takes_s = lambda: rng.uniform(0.0, 3.0)
    with running(loop):
        tasks = Tasks(broken.append)
        told = [tasks.spawn(story) for story in stories]
        loop.run(BOUND_S, lambda: bool(broken) or all(each.done() for each in told))
        late = sum(not each.done() for each in told)
        tasks.cancel()
        loop.finish()
    for error in broken:
        raise error
    assert not late, f"{late} have no answer after {BOUND_S:g} s"


class Joining:
    """A shard whose fragments change while learners join, and whose store is sometimes full."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.public, self.full = rng, dict.fromkeys(FRAGMENTS, 0), True
        self.sharing = FragmentPublisher(self.whole, lambda: dict.fromkeys(FRAGMENTS, 8))

    def whole(self, p: Fragment, own: Range | None) -> tuple[Version, Flat]:
        assert own is None
        if self.full and self.rng.random() < 0.3:
            raise Full
        return Version(0, self.public[p]), np.full(8, self.public[p], np.float32)

    async def publishes(self) -> None:
        for _ in range(12):
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            p = self.rng.choice(FRAGMENTS)
            self.public[p] += 1
            self.sharing.forget(p)
        self.full = False

    async def joins(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 20.0))
        for p in FRAGMENTS:
            while not await self._found(p):
                await asyncio.sleep(0.5)

    async def _found(self, p: Fragment) -> bool:
        asked = self.public[p]
        try:
            found = await self.sharing.fragment(p, 1e9, least=Version(0, asked))
        except Full:
            return False
        array: Any = found.parts[0]
        assert asked <= found.version.number <= self.public[p]
        assert array[0] == found.version.number
        return True


def test_joining_learner_gets_no_fragment_older_than_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failure of one call that found the store full is not the answer to later calls."""
    monkeypatch.setattr("ray.put", lambda array: array)
    for number in range(SCHEDULES):
        print(f"seed {SEED}/sharing/{number}")
        scene = Joining(random.Random(f"{SEED}/sharing/{number}"))
        played(scene.rng, [scene.publishes(), *(scene.joins() for _ in range(6))])


class Dying:
    """Shards that die now and then, their keepers, and their callers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.attendance = rng, Attendance(NAMES, (Dead,))
        self.process = dict.fromkeys([*NAMES], 0)
        self.died = {name: asyncio.Event() for name in NAMES}
        self.heard, self.ends = 0, False

    async def kills(self) -> None:
        await asyncio.sleep(1.0)
        for _ in range(6):
            await asyncio.sleep(self.rng.uniform(3.5, 8.0))
            name = self.rng.choice(NAMES)
            self.process[name] += 1
            self.died[name].set()
            self.died[name] = asyncio.Event()
        await asyncio.sleep(10.0)
        self.ends = True

    async def keeps(self, name: str) -> None:
        """Wait for each death, and bring the shard back after a while."""
        tasks = Tasks()
        while True:
            seen = self.process[name]
            dying = tasks.spawn(self.attendance.until_dead(name, lambda: self.watched(name)))
            while not dying.done():
                if self.ends:
                    dying.cancel()
                    return
                await asyncio.sleep(0.1)
            assert self.process[name] > seen, "it was there, and is said to be dead"
            self.heard += 1
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
            self.attendance.is_back(name)

    async def watched(self, name: str) -> None:
        await self.died[name].wait()
        raise Dead

    async def asks(self) -> None:
        for _ in range(8):
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            name = self.rng.choice(NAMES)
            await self.attendance.until_back(name)
            deaths = self.attendance.deaths(name)
            try:
                await self.attendance.ask(name, lambda name=name: self.answers(name))
            except Away:
                continue
            assert self.attendance.deaths(name) == deaths, "it died before it was heard"

    async def answers(self, name: str) -> None:
        process = self.process[name]
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        if self.process[name] != process and self.rng.random() < 0.8:
            raise Dead  # otherwise its answer had been sent


def test_ignores_answers_of_dead_shards_and_resumes_returned_ones() -> None:
    for number in range(SCHEDULES):
        print(f"seed {SEED}/attendance/{number}")
        scene = Dying(random.Random(f"{SEED}/attendance/{number}"))
        stories = [scene.kills(), *map(scene.keeps, NAMES), *(scene.asks() for _ in range(6))]
        played(scene.rng, stories)
        assert scene.heard == sum(scene.process.values())
