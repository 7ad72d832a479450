"""The actors of `bench scale`: each process holds many stub learners and their measurements.

To the syncer and the shard each learner is an ordinary island: the calls, the names and the
transport of bytes are those of a run. All learners of a process share one event loop, so that many
fit on one core.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

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
from cluster.transfers import Prepared
from coordinator.codec import Payload, split
from coordinator.errors import RunFailed
from coordinator.fragments import Flat
from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Fragment,
    Granted,
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
    """The work of a process's learners since the last query."""

    steps: int
    """Inner steps of all learners."""
    latencies_s: list[float]
    """Seconds from each report to its answer."""
    cpu_s: float
    """CPU seconds of the process."""


class CrewLink:
    """A link to the syncer and the shards, on an event loop.

    `holder` names the shard of each fragment.
    """

    def __init__(self, namespace: str, holder: Mapping[Fragment, str]) -> None:
        self._syncer: Any = find_actor(SYNCER, namespace)
        shards: dict[str, Any] = {name: find_actor(name, namespace) for name in {*holder.values()}}
        self._shard_of = {p: shards[name] for p, name in holder.items()}

    async def join(self, event: Join) -> Granted | Refused:
        """Ask the syncer for a life."""
        answer, _ = await self._syncer.join.remote(event, source_sha256(), seat_of(event.island))
        return answer

    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void:
        """Report progress, measurements and adoptions to the syncer."""
        return await self._syncer.report.remote(event, vitals, adopted)

    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        """Ask the syncer for another lease."""
        return await self._syncer.lease.remote(event)

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        """Fetch public fragments, each with its version."""
        found: list[Shared] = await asyncio.gather(*map(self._shared, fragments))
        return [(shared.version, await _whole(shared)) for shared in found]

    async def _shared(self, p: Fragment) -> Shared:
        """Return the public fragment in the object store; ask again while the shard has none."""
        while True:
            (shared,) = await self._shard_of[p].shared.remote([p], math.inf)
            if shared is not None:
                return shared

    async def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]:
        """Fetch the differences from `older` to `newer`, or the whole fragment if some are gone."""
        while (reply := await self._shard_of[p].missed.remote(p, older, newer, math.inf)) is None:
            await asyncio.sleep(0)
        if isinstance(reply, Shared):
            return reply.version, await _whole(reply)
        return [await _difference(each) for each in reply]


async def _whole(shared: Shared) -> Flat:
    """Fetch a fragment from the object store."""
    return np.concatenate([await part for part in shared.parts])


async def _difference(boxed: Boxed) -> Payload:
    """Fetch one encoded difference."""
    if not isinstance(boxed, Encoded):
        return split(boxed)[0]
    return np.concatenate([await part for part in boxed.difference])


class CrewActor:
    """The stub learners of some islands; its island methods are those of `actors.IslandActor`."""

    def __init__(self, config: str, namespace: str) -> None:
        setup_logging()
        self._holder = holder_of(Config.model_validate_json(config, strict=False))
        self._namespace = namespace
        self._learners: dict[Island, LightLearner] = {}
        self._lives: list[asyncio.Task[None]] = []
        self._tasks = Tasks()  # `take` and `part` check their results
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
        """Change the pace of all learners."""
        self._pace.step_s, self._pace.resting = pace.step_s, pace.resting

    async def take(self) -> CrewFigures:
        """Return the figures since the last call.

        Errors: the error that broke one of the learners.
        """
        if self._broken is not None:
            raise self._broken
        for life in self._lives:
            if life.done():
                life.result()
        steps, old_steps = sum(each.steps for each in self._learners.values()), self._steps
        latencies_s = [s for each in self._learners.values() for s in each.latencies_s]
        for each in self._learners.values():
            each.latencies_s.clear()
        cpu_s, cpu_before_s = time.process_time(), self._cpu_s
        self._steps, self._cpu_s = steps, cpu_s
        return CrewFigures(steps - old_steps, latencies_s, cpu_s - cpu_before_s)

    async def part(self) -> None:
        """End all lives, and wait for them."""
        for learner in self._learners.values():
            learner.leave()
        await asyncio.gather(*self._lives)

    # --- as an island -----------------------------------------------------------------------------

    async def hand_in(self, life: Life, fragment: Fragment, known: Known) -> Prepared:
        """Return the learner's hand-in; `known` is ignored, as a stub keeps no rounding errors."""
        began_s = time.monotonic()
        contribution = await self._learners[life.island].hand_in(life, fragment)
        return Prepared(contribution, time.monotonic() - began_s)

    async def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Payload | ray.ObjectRef]
    ) -> None:
        """Fetch the difference, if there is one, and offer the version to the learner.

        As with a real learner, none is fetched while it catches up.
        """
        learner, payload = self._learners[life.island], cast("Payload | None", None)
        for each in () if learner.catching_up(publication.fragment) else boxed:
            payload = await each if isinstance(each, ray.ObjectRef) else each
        learner.offer(life, publication, payload)

    async def refused(self, contribution: ContributionId) -> None:
        """Do nothing: a stub has no rounding errors to restore."""

    async def cease(self, over: Void) -> None:
        """End the life of this learner."""
        self._learners[over.life.island].leave()

    async def park(self, life: Life) -> None:
        """Have this learner stop stepping."""
        self._learners[life.island].park()

    async def watch(self, life: Life) -> str:
        """Wait until this life is over, and return why."""
        return await self._learners[life.island].outlive(life)

    async def break_down(self, life: Life, why: str) -> None:
        """Record the failure for `take` to raise, since a failed learner spoils the measurement."""
        self._broken = RunFailed(f"{life} failed: {why}")


def start_crew(config: Config, name: Island, home: Home, kind: type[CrewActor] = CrewActor) -> Any:
    """Start a process for stub learners with the names `NAME.0`, `NAME.1` and so on."""
    actor = ray.remote(kind).options(**home.options(island_actor(seat_of(name)), {}), num_cpus=0)
    return actor.remote(config.model_dump_json(), home.namespace)


def pid_of(actor: Any) -> Any:
    """Return a reference to the process id of an actor."""
    return actor.__ray_call__.remote(_pid)


def _pid(actor: object) -> int:
    return os.getpid()
