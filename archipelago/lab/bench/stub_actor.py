"""The actors of `bench scale`: processes with many light learners each, and what they measured.

To the syncer and the shard such a learner is an island like any other: same calls, same names, same
way of the bytes. All of a process runs on one event loop, so that many fit on one core.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from archipelago.lab.bench.stub_learner import LightLearner
from archipelago.lab.bench.stub_material import Material, StubPace
from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.object_store.publish import Boxed, Encoded, Shared
from cluster.actors.start import Home, find_actor
from cluster.config.schema import Config
from cluster.names import SYNCER, island_actor, seat_of
from cluster.source import source_sha256
from cluster.tasks import Tasks
from coordinator.codec import Payload, split
from coordinator.errors import RunFailed
from coordinator.fragments import Flat
from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Island,
    Join,
    Known,
    LeaseGranted,
    LeaseWanted,
    Life,
    Publication,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)


@dataclass(frozen=True, slots=True)
class CrewFigures:
    """What the learners of a process did since they were asked last; `cpu_s`: of the process."""

    steps: int
    latencies_s: list[float]
    cpu_s: float


class CrewLink:
    """The way to the coordinator, on an event loop; `holder`: which shard has a fragment."""

    def __init__(self, namespace: str, holder: Mapping[Fragment, str]) -> None:
        self._syncer: Any = find_actor(SYNCER, namespace)
        shards: dict[str, Any] = {name: find_actor(name, namespace) for name in {*holder.values()}}
        self._shard_of = {p: shards[name] for p, name in holder.items()}

    async def join(self, event: Join) -> Granted | Refused:
        answer, _ = await self._syncer.join.remote(event, source_sha256(), seat_of(event.island))
        return answer

    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void:
        return await self._syncer.report.remote(event, vitals, adopted)

    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        return await self._syncer.lease.remote(event)

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        found: list[Shared] = await asyncio.gather(*map(self._shared, fragments))
        return [(shared.version, await _whole(shared)) for shared in found]

    async def _shared(self, p: Fragment) -> Shared:
        while True:
            (shared,) = await self._shard_of[p].shared.remote([p], math.inf)
            if shared is not None:
                return shared

    async def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]:
        while (said := await self._shard_of[p].missed.remote(p, older, newer, math.inf)) is None:
            await asyncio.sleep(0)
        if isinstance(said, Shared):
            return said.version, await _whole(said)
        return [await _difference(each) for each in said]


async def _whole(shared: Shared) -> Flat:
    return np.concatenate([await part for part in shared.parts])


async def _difference(boxed: Boxed) -> Payload:
    if not isinstance(boxed, Encoded):
        return split(boxed)[0]
    return np.concatenate([await part for part in boxed.difference])


class CrewActor:
    """Some islands' light learners; an island's methods are those of `actors.IslandActor`."""

    def __init__(self, config: str, namespace: str) -> None:
        setup_logging()
        self._holder = holder_of(Config.model_validate_json(config, strict=False))
        self._namespace = namespace
        self._learners: dict[Island, LightLearner] = {}
        self._lives: list[asyncio.Task[None]] = []
        self._tasks = Tasks()  # whose results `take` and `part` look at
        self._steps, self._cpu_s = 0, 0.0
        self._broken: RunFailed | None = None

    async def board(self, islands: Sequence[Island], material: Material, pace: StubPace) -> None:
        """Have these learners join and step."""
        self._pace, link = pace, CrewLink(self._namespace, self._holder)
        for island in islands:
            learner = LightLearner(island, material, pace, link, time.perf_counter)
            self._learners[island] = learner
            self._lives.append(self._tasks.spawn(learner.run()))

    async def pace(self, pace: StubPace) -> None:
        self._pace.step_s, self._pace.resting = pace.step_s, pace.resting

    async def take(self) -> CrewFigures:
        """Errors: what broke one of the learners."""
        if self._broken is not None:
            raise self._broken
        for life in self._lives:
            if life.done():
                life.result()
        steps, before = sum(each.steps for each in self._learners.values()), self._steps
        latencies_s = [s for each in self._learners.values() for s in each.latencies_s]
        for each in self._learners.values():
            each.latencies_s.clear()
        cpu_s, cpu_before_s = time.process_time(), self._cpu_s
        self._steps, self._cpu_s = steps, cpu_s
        return CrewFigures(steps - before, latencies_s, cpu_s - cpu_before_s)

    async def part(self) -> None:
        """Let all of them go."""
        for learner in self._learners.values():
            learner.leave()
        await asyncio.gather(*self._lives)

    # --- as an island -----------------------------------------------------------------------------

    async def hand_in(
        self, life: Life, fragment: Fragment, known: Known
    ) -> tuple[HandIn, Payload] | None:
        """`known`: of no use, since what it takes along is nothing."""
        return await self._learners[life.island].hand_in(life, fragment)

    async def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Payload | ray.ObjectRef]
    ) -> None:
        payload: Any = None
        for each in boxed:
            payload = await each if isinstance(each, ray.ObjectRef) else each
        await self._learners[life.island].offer(life, publication, payload)

    async def refused(self, said: ContributionId) -> None:
        """What it took along was nothing."""

    async def cease(self, over: Void) -> None:
        self._learners[over.life.island].leave()

    async def park(self, life: Life) -> None:
        self._learners[life.island].park()

    async def watch(self, life: Life) -> str:
        return await self._learners[life.island].outlive(life)

    async def break_down(self, life: Life, why: str) -> None:
        """A measurement with a learner that fails is none: `take` raises it."""
        self._broken = RunFailed(f"{life} failed: {why}")


def start_crew(config: Config, name: Island, home: Home, kind: type[CrewActor] = CrewActor) -> Any:
    """A process for light learners called `NAME.0`, `NAME.1` ..."""
    actor = ray.remote(kind).options(**home.options(island_actor(seat_of(name)), {}), num_cpus=0)
    return actor.remote(config.model_dump_json(), home.namespace)


def pid_of(actor: Any) -> Any:
    """The number of an actor's process, to come."""
    return actor.__ray_call__.remote(_pid)


def _pid(actor: object) -> int:
    return os.getpid()
