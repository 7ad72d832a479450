"""The process of a shard: its arithmetic and its storage, each on its own threads.

Nothing here calls another process, so that a test can build it without Ray.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cluster.actors.restart import code_changed, start_over
from cluster.config.rule import judge_of
from cluster.config.schema import Config
from cluster.shard.arrays import warm_up
from cluster.shard.build import first_of, shard_over, wires_of
from cluster.shard.contribution_samples import ContributionSamples
from cluster.shard.contribution_writer import ContributionWriter
from cluster.shard.files import DepotFiles
from cluster.shard.storing_thread import StoringPace, StoringThread
from cluster.source import user_sha256
from cluster.storage.contributions import ContributionStore
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.fragments import FragmentStore
from cluster.storage.layout import load_layout
from cluster.storage.ownership import Fence
from cluster.tasks import heard
from coordinator.codec import Sent
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    Fragment,
    Merge,
    Merged,
    Publication,
    Publish,
    Reference,
    Unsound,
    Version,
)

Order = TypeVar("Order", Merge, Publish)
S = TypeVar("S")
T = TypeVar("T")


class ShardProcess:
    """A shard with its threads, over the run's depot; for one event loop.

    `shard`: called on the arithmetic thread, unless its own documentation allows any thread.
    `storing`: the thread that stores versions at the same time. `samples`: the contributions kept
    for evaluators; called on the arithmetic thread. `sizes`: the elements of each fragment, once
    there is a model. `recovers`: the calls of `recover` that are under way.
    """

    def __init__(
        self,
        config: Config,
        code: str,
        depot: Depot,
        contributions: ContributionStore,
        owner: int,
        unheard: Callable[[BaseException], None],
    ) -> None:
        """Start the threads.

        `code`: the digest of the user's code in a shard when the run began (`user_sha256`).
        `contributions`: where merged contributions are kept. `owner`: the number of the run's
        owner, for its `Fence`. `unheard`: receives the exceptions of jobs that are never awaited.
        """
        self._config, self._code, self._depot = config, code, depot
        self._fence = fence = Fence(depot, owner)
        self.arithmetic = ThreadPoolExecutor(1, "arithmetic")
        heard(self.arithmetic.submit(warm_up, wires_of(config)), unheard)
        self.hands = ThreadPoolExecutor(os.cpu_count(), "hands")
        self.storing = StoringThread(StoringPace(config.durability.every == "auto"))
        self._writer = ContributionWriter(contributions, fence, self.storing.pace, unheard)
        self.shard = shard_over(config, self._means, self._spread)
        self.samples = ContributionSamples(functools.partial(judge_of, config))
        self._seeded: Layout | None = None  # before the syncer has stored it
        self.sizes: tuple[int, ...] = ()
        self.recovers = 0

    def _means(self) -> tuple[Layout, DepotFiles]:
        """Return the layout and the files of the shard, on its first use of them."""
        layout = self._seeded or load_layout(self._depot)
        self.sizes = (*layout.sizes,)
        self.samples.state_fragment = layout.state_fragment
        store = FragmentStore(self._depot, layout, keep=self._config.durability.keep_snapshots)
        return layout, DepotFiles(store, self._fence, self.storing.pace)

    def check_code(self) -> None:
        """Check that this process has the run's outer optimizer and merge rule.

        Errors: `RunFailed` if its code has changed.
        """
        targets = self._config.shard_code
        why = code_changed(targets, self._code, user_sha256(*targets.values()))
        if why is not None:
            raise RunFailed(why)

    async def seed(self, layout: Layout, p: Fragment, flat: Flat) -> tuple[list[Fragment], str]:
        """Take a fragment of the initial model, and make it durable.

        Return the fragments that this process has, and a message on what storing costs from now on.

        Errors: `OSError` if it cannot be stored; `RunFailed` if the user's code has changed.
        """
        self.check_code()
        self._seeded, pace = layout, self.storing.pace
        pace.sizes = {**pace.sizes, p: layout.sizes[p]}
        await self._alone(lambda: self.shard.seed({p: first_of(self._config, layout, p, flat)}))
        return [*pace.sizes], pace.cost_text()

    async def recover(
        self, targets: Mapping[Fragment, Version], generation: int
    ) -> dict[Fragment, Version]:
        """Go back to these versions as `Shard.recover` does, while nothing is being stored.

        Temporary files of contributions are deleted meanwhile; this does not wait for it.
        """

        def recover() -> dict[Fragment, Version]:
            self._fence.check()
            layout = self._seeded or load_layout(self._depot)
            self.storing.pace.sizes = {p: layout.sizes[p] for p in targets}
            self.samples.forget()
            return self.shard.recover(targets, generation)

        self.recovers += 1
        try:
            found = await self._alone(recover)
        finally:
            self.recovers -= 1
        if self._config.durability.keep_contributions:
            self._writer.tidy([*targets])
        return found

    async def merge(self, order: Merge) -> tuple[Merged | Unsound, bool | str]:
        """Merge, and make the staged version durable if it is sound.

        The second result is True if the version is durable, False if not every version is stored
        and it is not this one's turn, or an error message if storing failed.

        Errors: `Outdated`; the errors of `Shard.merge` and `Shard.store`, except `OSError`.
        """
        if self._config.durability.keep_contributions:
            await self.keep(order)
        event = await self.compute(self._obeying(order, self._merge))
        if isinstance(event, Unsound):
            return event, False

        def store(copied: Callable[[], None]) -> bool:
            self.shard.obey(order.version.generation)
            return self.shard.store(order.fragment, order.version, copied)

        try:
            durable = await self.storing.store(order.fragment, store)
        except OSError as error:
            logging.error("fragment %d %s is not durable: %s", order.fragment, order.version, error)
            return event, error.strerror or str(error)
        return event, durable

    async def keep(self, order: Merge) -> None:
        """Write the contributions to a merge, each on the thread of its depot with its timeout.

        Errors: `Outdated`; the errors of `Shard.payloads`; `RunFailed` if the run has another owner
        by now.
        """
        held = await self.compute(self._obeying(order, self.shard.payloads))
        kept = zip((item.contribution for item in order.items), held, strict=True)
        await self._writer.keep(order.fragment, order.version, kept)

    def _merge(self, order: Merge) -> Merged | Unsound:
        """Merge; if a failed merge cannot be undone, restart the process with stored versions."""
        found = self.samples.of(order, self.shard.inbox)
        try:
            event = self.shard.merge(order)
        except (Damaged, OSError) as error:
            p, version = order.fragment, self.shard.version(order.fragment)
            start_over(f"{version} of fragment {p} cannot be had again: {error}")
        if isinstance(event, Merged):
            self.samples.merged(found)
        return event

    async def publish(self, order: Publish) -> tuple[Publication, Sent] | None:
        """Make the staged version public as `Shard.publish` does.

        Errors: `Outdated`; the errors of `Shard.publish`.
        """
        return await self.compute(self._obeying(order, self._publish))

    def _publish(self, order: Publish) -> tuple[Publication, Sent] | None:
        published = self.shard.publish(order)
        self.samples.published(order.fragment, order.version)
        return published

    async def drop(self, reference: Reference) -> None:
        """Free a contribution that will not be merged."""
        await self.compute(self.shard.drop, reference)

    def _spread(self, work: Callable[[S], T], items: Iterable[S]) -> Iterable[T]:
        """Map over items: several use all cores, a single one the arithmetic thread."""
        jobs = list(items)
        return map(work, jobs) if len(jobs) == 1 else self.hands.map(work, jobs)

    def _obeying(self, order: Order, call: Callable[[Order], T]) -> Callable[[], T]:
        """Return the call with a fencing check before it.

        Both run on the thread that also runs `recover`, so that no later generation can come
        between them.

        Errors: `Outdated`.
        """

        def obey() -> T:
            self.shard.obey(order.version.generation)
            return call(order)

        return obey

    async def _alone(self, call: Callable[[], T]) -> T:
        """Run `call` on the arithmetic thread while nothing is being stored; return its result."""
        return await self.storing.alone(lambda: self.arithmetic.submit(call).result())

    async def compute(self, call: Callable[..., T], *arguments: object) -> T:
        """Call on the arithmetic thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.arithmetic, functools.partial(call, *arguments))
