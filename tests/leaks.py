"""Check that 10,000 rounds on real Ray leak no objects, references or memory.

`python -m tests.leaks --rounds 10000`. One real syncer, one real shard and light learners run; the
learners now and then miss a publication and fetch it later. They pause after the first rounds and
after the last. The objects in the store and the references of each process must then be equal, but
for those of rounds under way. The memory of each process in the last third of the rounds is
compared with that in the middle third. The script prints one JSON object; its exit status is 0 if
nothing leaks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import ray
from ray._private.internal_api import node_stats

from archipelago.lab.bench import procfs
from archipelago.lab.bench.embedded_core import BenchStage, staged
from archipelago.lab.bench.scale import boarded, config_of, ended
from archipelago.lab.bench.stub_actor import CrewActor, pid_of
from archipelago.lab.bench.stub_material import StubPace
from cluster.actors.call_errors import answer
from coordinator.codec import Payload
from coordinator.fragments import Leaf, cut
from coordinator.protocol import Life, Publication

ROUNDS, FIRST = 10_000, 500
SETTLED = 5_000
"""The fewest rounds for comparing memory; before that, processes still grow to their size."""
LEARNERS, STEPS_PER_S = 3, 60.0
"""Steps of each learner; a fragment is due at every step, so this limits rounds a second."""
SIDE = 512
"""Rows and columns of a fragment.

In int4 it has more than 100 KiB, below which Ray would send it within the message instead of
through the object store.
"""
OVERRIDES = (
    "sync.every=8", 'sync.wire_up="int4"', 'sync.wire_down="int4"', "durability.every=100",
)  # fmt: skip
MISSES = 20
"""A learner misses one of this many publications."""
REST_S, LOOK_S = 5.0, 0.5
FLAT = 0.05
MIB = 2**20


class DeafCrew(CrewActor):
    """A crew of learners that sometimes miss a publication."""

    async def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Payload | ray.ObjectRef]
    ) -> None:
        if (publication.version.number + life.incarnation) % MISSES:
            await super().offer(life, publication, boxed)

    async def caught_up(self) -> Counter[str]:
        """Return how often missed publications were fetched."""
        return sum((each.caught_up for each in self._learners.values()), Counter[str]())


@dataclass(frozen=True, slots=True)
class Resting:
    """The objects and references while no learner steps.

    Each figure is the least of several looks, because Ray frees objects in batches every second.
    """

    rounds: int
    objects: int
    store_bytes: int
    references: dict[str, int]


@dataclass(frozen=True, slots=True)
class Leaks:
    """The measurements. `own_mib`: per process, the median of each third of the rounds."""

    rounds: int
    seconds: float
    caught_up: dict[str, int]
    first: Resting
    last: Resting
    own_mib: dict[str, list[float]]

    def wrong(self, slack: int) -> Iterator[str]:
        """Yield the leaks that were found.

        `slack`: the number of objects that rounds under way may hold.
        """
        if self.last.objects > self.first.objects + slack:
            yield f"{self.last.objects} objects in the store, {self.first.objects} at first"
        for name, now in self.last.references.items():
            if now > (before := self.first.references[name]) + slack:
                yield f"{name} refers to {now} objects, to {before} at first"
        for name, (_, middle, last) in self.own_mib.items():
            if self.rounds >= SETTLED and abs(last / middle - 1) > FLAT:
                yield f"the memory of {name} went from {middle:.1f} to {last:.1f} MiB"
        if not self.caught_up.get("differences"):
            yield f"nobody has fetched differences: {self.caught_up}"


class Watch:
    """A sampler of the processes' memory during the rounds."""

    def __init__(self, stage: BenchStage, crews: Sequence[Any]) -> None:
        self._stage, self._crews = stage, crews
        self._pids = {"syncer": stage.syncer_pid, "shard": stage.shard_pids[0]}
        self._pids |= {f"crew-{n}": answer(pid_of(crew)) for n, crew in enumerate(crews)}
        self._own: list[tuple[int, dict[str, int]]] = []

    def until(self, rounds: int) -> int:
        """Wait until this many rounds have closed; return how many have."""
        while (closed := self._stage.status()["merges"]) < rounds:
            for crew in self._crews:
                answer(crew.take.remote())  # raises errors, and resets latencies
            own_bytes = {name: procfs.own_bytes(pid) for name, pid in self._pids.items()}
            self._own.append((closed, own_bytes))
            time.sleep(LOOK_S)
        return closed

    def rested(self) -> Resting:
        self._go(StubPace(LOOK_S, resting=True))
        looks: list[Any] = []
        for _ in range(int(REST_S / LOOK_S)):
            time.sleep(LOOK_S)
            looks.append(_stats())
        rounds = self._stage.status()["merges"]
        self._go(StubPace(1 / STEPS_PER_S))
        workers = [worker for look in looks for worker in look.core_workers_stats]
        return Resting(
            rounds,
            min(look.store_stats.num_local_objects for look in looks),
            min(look.store_stats.object_store_bytes_used for look in looks),
            {
                name: min(each.num_object_refs_in_scope for each in workers if each.pid == pid)
                for name, pid in self._pids.items()
            },
        )

    def _go(self, pace: StubPace) -> None:
        for crew in self._crews:
            answer(crew.pace.remote(pace))

    def thirds(self, rounds: int) -> dict[str, list[float]]:
        def median(name: str, third: int) -> float:
            own = [each[name] for at, each in self._own if third <= 3 * at / rounds < third + 1]
            return statistics.median(own) / MIB

        return {name: [median(name, third) for third in range(3)] for name in self._pids}


def _stats() -> Any:
    """Return Ray's statistics of the only node: its object store, and references per process."""
    (node,) = ray.nodes()
    return node_stats(node["NodeManagerAddress"], node["NodeManagerPort"])


def leaks(rounds: int) -> tuple[Leaks, list[str]]:
    """Run this many rounds; return the measurements and the leaks."""
    config = config_of(LEARNERS, OVERRIDES)
    count = config.sync.fragments
    layout = cut([Leaf(f"block-{p}", (SIDE, SIDE)) for p in range(count)], count)
    flats = [np.zeros(size, np.float32) for size in layout.sizes]
    with staged(config, layout, flats) as stage:
        crews = boarded(stage, LEARNERS, LEARNERS * STEPS_PER_S, DeafCrew)
        watch, began_s = Watch(stage, crews), time.monotonic()
        watch.until(min(FIRST, rounds // 4))
        first = watch.rested()
        closed = watch.until(rounds)
        seconds = time.monotonic() - began_s
        last, own_mib = watch.rested(), watch.thirds(rounds)
        caught_up = sum((answer(crew.caught_up.remote()) for crew in crews), Counter[str]())
        ended(stage, crews, StubPace(1 / STEPS_PER_S))
    found = Leaks(closed, seconds, dict(caught_up), first, last, own_mib)
    return found, [*found.wrong(slack=count * (LEARNERS + 1))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    found, wrong = leaks(parser.parse_args().rounds)
    print(json.dumps({**asdict(found), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
