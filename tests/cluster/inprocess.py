"""An in-process shell: one program, learners on threads, the syncer on an event loop.

The learners, rules and arithmetic are the ones that run on Ray, without processes between them. The
shell is for tests, and for stepping through a run with a debugger.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from numpy.typing import NDArray

from cluster.failures import Answered
from cluster.shard.arrays import ArrayShard
from cluster.shard.fates import Fates
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Log
from cluster.syncer.shell import Syncer
from coordinator.codec import Payload, Sent, split
from coordinator.errors import RunFailed
from coordinator.fragments import Flat
from coordinator.protocol import (
    Adopted,
    Answer,
    Contribution,
    Discard,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Refused,
    Report,
    Store,
    Unsound,
    Version,
    Vitals,
    Void,
)
from coordinator.state import Rule, State
from islands.learner import Learner
from islands.link import Link

T = TypeVar("T")


class LocalLink(Link):
    """A link to a syncer in the same process; its calls run on the syncer's event loop."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def join(self, event: Join) -> Granted | Refused:
        return self._cluster.on_loop(lambda: self._cluster.syncer.join(event))

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        return self._cluster.on_loop(lambda: self._cluster.syncer.report(event, vitals, adopted))

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        return self._cluster.on_loop(lambda: self._cluster.syncer.lease(event))

    def left(self, event: Left) -> None:
        self._cluster.on_loop(lambda: self._cluster.syncer.left(event))

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        return self._cluster.shard.whole(fragments)

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload]:
        found = zip(fragments, self._cluster.shard.shared(fragments), strict=True)
        return {p: split(each)[0] for p, each in found if each is not None}

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Sent] | tuple[Version, Flat]:
        return self._cluster.shard.missed(p, older, newer)

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        donation = self._cluster.learners[donor.island].moments(donor)
        return None if donation is None else donation.leaves


class LocalCluster:
    """All parts of a run in this process. The class implements `Ports` itself."""

    def __init__(
        self,
        rule: Rule,
        state: State,
        shard: ArrayShard,
        measures: Measures,
        *,
        now_s: Callable[[], float],
        tape: Log,
    ) -> None:
        self.shard, self.learners = shard, dict[Island, Learner]()
        self.syncer = Syncer(rule, state, self, now_s=now_s, tape=tape, measures=measures)
        self._loop = asyncio.new_event_loop()
        self._arithmetic = ThreadPoolExecutor(1, "shard")
        self._hands = ThreadPoolExecutor(64, "hands")
        self._fates = Fates()

    def run(self, learners: Mapping[Island, Learner]) -> None:
        """Train to the end, and raise any exception of the syncer or of a learner."""
        self.learners.update(learners)
        broken: list[BaseException] = []

        def live(learner: Learner) -> None:
            try:
                learner.run()
            except BaseException as error:
                broken.append(error)
                self._loop.call_soon_threadsafe(self.syncer.finished.set)
                raise

        threads = [threading.Thread(target=live, args=(each,)) for each in learners.values()]
        try:
            self._loop.run_until_complete(self._until_finished(threads))
        finally:
            for learner in learners.values():
                learner.leave()
            for thread in threads:
                while thread.is_alive():
                    self._loop.run_until_complete(asyncio.sleep(0.01))
            self.syncer.close()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._arithmetic.shutdown()
            self._hands.shutdown()
            self._loop.close()
        for error in (*broken, *filter(None, [self.syncer.failure])):
            raise error

    async def _until_finished(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.start()
        await self.syncer.finished.wait()

    def on_loop(self, call: Callable[[], T]) -> T:
        """Run `call` on the syncer's loop, from another thread, and wait for its result."""
        result: Future[T] = Future()

        def answer() -> None:
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)
                raise

        self._loop.call_soon_threadsafe(answer)
        return result.result()

    # --- Ports ------------------------------------------------------------------------------------

    async def watch(self, life: Life) -> str:
        return await asyncio.get_running_loop().create_future()  # a thread does not die alone

    async def collect(self, life: Life, fragment: Fragment) -> Contribution | str | None:
        loop, learner = asyncio.get_running_loop(), self.learners[life.island]
        known = self._fates.known(life, fragment)
        handed = await loop.run_in_executor(self._hands, learner.hand_in, life, fragment, known)
        if handed is None:
            return None
        there = await loop.run_in_executor(self._arithmetic, self.shard.receive, *handed)
        self._fates.arrived(there.id)
        return there

    async def merge(self, order: Merge) -> Merged | Unsound:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._arithmetic, self.shard.merge, order)

    async def store(self, order: Store) -> bool | str:
        return False  # nothing of this shell outlives its process

    async def publish(self, order: Publish) -> Answered:
        loop = asyncio.get_running_loop()
        said = await loop.run_in_executor(self._arithmetic, self.shard.publish, order)
        self._fates.published(order.merged)
        assert said is not None
        for life in order.to:
            learner = self.learners[life.island]
            await loop.run_in_executor(self._hands, learner.offer, life, *said)
        return Answered()

    async def discard(self, order: Discard) -> None:
        self.shard.drop(order.contribution.reference)
        self._fates.freed(order.contribution.id)
        if order.returns_residual:
            self.learners[order.contribution.id.life.island].refused(order.contribution.id)

    async def cease(self, order: Void) -> None:
        self.learners[order.life.island].cease(order)

    async def park(self, life: Life) -> None:
        self.learners[life.island].park(life)

    async def leave(self, life: Life) -> Progress:
        return self.learners[life.island].leave()

    async def break_down(self, life: Life, why: str) -> None:
        """End the run when a learner raises, so that a debugger or a test sees the exception."""
        raise RunFailed(f"{life} failed: {why}")
