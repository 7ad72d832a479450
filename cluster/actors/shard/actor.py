"""The actor of a shard: the data path between the learners and the fragments that it holds."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import ray
from ray.exceptions import RayActorError, RayError

from cluster.actors.call_errors import STORE_FULL, failure_of
from cluster.actors.directory import Directory, setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.object_store.publish import Boxed, Probe, Shared
from cluster.actors.object_store.ranges import Range
from cluster.actors.restart import code_changed, start_over
from cluster.actors.shard.host_parts import all_parts
from cluster.actors.shard.public_fragments import ANY, INLINE_BYTES, WHOLE, PublicFragments
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.failures import Answered, Failure, Reason, raised
from cluster.hosts.first_part import FirstPart
from cluster.names import Seat, island_actor
from cluster.shard.arrays import warm_up
from cluster.shard.arrivals import Arrivals
from cluster.shard.build import first_of, shard_over, wires_of
from cluster.shard.fates import Fates
from cluster.shard.files import DepotFiles, keep_contributions
from cluster.shard.storing_thread import StoringPace, StoringThread
from cluster.source import user_sha256
from cluster.storage.format import Damaged
from cluster.storage.fragments import FragmentStore
from cluster.storage.layout import load_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.ownership import Fence
from cluster.syncer.collect import Answers, Gatherer, Handed
from cluster.tasks import Tasks, heard, watch_process
from coordinator.codec import Sent
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout
from coordinator.message_checks import flaw
from coordinator.parts import joined
from coordinator.protocol import (
    ContributionId,
    Discard,
    Fragment,
    Life,
    Merge,
    Merged,
    Publication,
    Publish,
    Unsound,
    Version,
)

Order = TypeVar("Order", Merge, Publish)
S = TypeVar("S")
T = TypeVar("T")


class ShardActor(Breakable):
    """A shard and its data path: it calls the learners, and the data is the answer.

    A new process has no model until it is told to `seed` or to `recover`.
    """

    def __init__(
        self, config: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """`code`: of its outer optimizer, when the run began (`user_sha256`). `owner`: for its
        `Fence`."""
        setup_logging()
        watch_process(self._unheard)
        self._config = Config.model_validate_json(config, strict=False)
        self._code = code
        self._depot = depot_of(self._config, Path(run_dir))
        self._fence = Fence(self._depot, owner)
        self._actors = Directory(namespace)
        self._arithmetic = ThreadPoolExecutor(1, "arithmetic")
        heard(self._arithmetic.submit(warm_up, wires_of(self._config)), self._unheard)
        self._hands = ThreadPoolExecutor(os.cpu_count(), "hands")
        self._storing = StoringThread(StoringPace(self._config.durability.every == "auto"))
        self._gatherer = Gatherer()
        self._shard = shard_over(self._config, self._means, self._spread)  # on `_arithmetic` alone
        self._public = PublicFragments(self._shard, lambda: self._storing.pace.sizes)
        self._fates, self._arrivals = Fates(), Arrivals()  # what it has heard of; on its event loop
        self._offers = Tasks(self._broke)
        self._failed: list[tuple[Life | None, Failure]] = []  # since the last publication
        self._broken: BaseException | None = None
        self._seeded: Layout | None = None  # before the syncer has written it down
        self._sizes: Sequence[int] = ()  # of the fragments

    def _means(self) -> tuple[Layout, DepotFiles]:
        layout = self._seeded or load_layout(self._depot)
        self._sizes = layout.sizes
        store = FragmentStore(self._depot, layout, keep=self._config.durability.keep_snapshots)
        return layout, DepotFiles(store, self._fence, self._storing.pace)

    async def progress(self) -> int:
        """How many versions it has stored: a sign of life while it takes in a large model."""
        return self._storing.pace.count

    async def seed(self, layout: Layout, p: Fragment, flat: Flat) -> tuple[list[Fragment], str]:
        """Take in a fragment of the initial model, and make it durable. Returns those that this
        process has, and what storing them costs from now on.

        Errors: as `recover`, and `OSError` if it cannot be stored.
        """
        self._check_code()
        self._seeded = layout
        self._storing.pace.sizes = {**self._storing.pace.sizes, p: layout.sizes[p]}
        await self._alone(lambda: self._shard.seed({p: first_of(self._config, flat)}))
        return [*self._storing.pace.sizes], self._storing.pace.said()

    async def recover(
        self,
        wanted: Mapping[Fragment, Version],
        generation: int,
        deaths: int = 0,
        merged: Sequence[ContributionId] = (),
    ) -> dict[Fragment, Version]:
        """Go back to these published versions, or to the newest before them that are stored, and
        take orders from this generation of the syncer, or a later one, from now on.

        `deaths`: of this shard, in this generation; `merged`: contributions of the lives that go
        on, which are in these versions.

        Errors: `Outdated`; `RunFailed` if this process has another outer optimizer.
        """
        self._shard.obey(generation)
        self._check_code()
        self._gatherer.forget()

        def recover() -> dict[Fragment, Version]:
            self._fence.check()
            layout = self._seeded or load_layout(self._depot)
            self._storing.pace.sizes = {p: layout.sizes[p] for p in wanted}
            return self._shard.recover(wanted, generation)

        found = await self._alone(recover)
        self._public.sharing.forget()
        self._fates.died(deaths)
        self._fates.published(merged)
        return found

    def _check_code(self) -> None:
        """Errors: `RunFailed` if the outer optimizer is another one in this process."""
        target = self._config.sync.outer.target
        if (now := user_sha256(target)) != self._code:
            raise RunFailed(code_changed("sync.outer.target", target, self._code, now))

    async def watch(self) -> None:
        """Liveness probe: blocks while this process has a model; returns at once in a freshly
        restarted one, which is not the one that was meant."""
        if self._shard.has_model:
            await asyncio.Event().wait()

    async def collect(self, fragment: Fragment, seats: Mapping[Life, Seat]) -> Answers:
        """Have the learners in these seats hand in; returns once there is something, not when all
        is there."""

        def ask(life: Life) -> Coroutine[None, None, Handed]:
            return self._collect(life, fragment, island_actor(seats[life]))

        return await self._gatherer.gather(fragment, [*seats], ask)

    async def _collect(self, life: Life, fragment: Fragment, name: str) -> Handed:
        """Keep what the learner in this actor hands in, measured; or say why there is nothing."""
        try:
            island = await self._actors.find(name)
            known = self._fates.known(life, fragment)
            handed = await island.hand_in.remote(life, fragment, known)
        except RayError as error:
            return self._unanswered(life, name, failure_of(Reason.HAND_IN, error), error)
        if isinstance(handed, FirstPart):
            size, facts = self._sizes[fragment], handed.part.facts
            parts = await all_parts(handed, life, fragment, known, size, self._actors)
            if isinstance(parts, Failure | str):
                return parts
            handed = facts, await self._compute(joined, parts, size)
        if handed is None:
            return None
        if (why := flaw(handed, life, fragment)) is not None:
            logging.error("what %s handed in is of no use: %s", life, why)
            return Failure(Reason.SENT, why)
        there = await self._compute(self._shard.receive, *handed)
        self._fates.arrived(there.id)
        return there

    def _unanswered(
        self, life: Life, name: str, said: Failure | str, error: RayError
    ) -> Failure | str:
        """A call of an island has come to nothing."""
        if isinstance(error, RayActorError):  # perhaps the handle is one of the past
            self._actors.forget(name)
        if isinstance(said, str):
            logging.info("%s: %s", life, said)
        else:  # `error` has the traceback from over there
            logging.error("%s failed, %s: %s", life, said.why, error)
        return said

    async def merge(self, order: Merge) -> tuple[Merged | Unsound, bool | str]:
        """Merge, and make the staged version durable, if it is sound; False if it is not its turn
        to be, else why it cannot be.

        One call for both, since the second follows in any case and a call of Ray costs more than
        the merge of a small fragment.
        """
        if self._config.durability.keep_contributions:
            await self._keep(order)
        event = await self._compute(self._obeying(order, self._merge))
        if isinstance(event, Unsound):
            return event, False

        def store(copied: Callable[[], None]) -> bool:
            self._shard.obey(order.version.generation)
            return self._shard.store(order.fragment, order.version, copied)

        try:
            durable = await self._storing.store(order.fragment, store)
        except OSError as error:
            logging.error("fragment %d %s is not durable: %s", order.fragment, order.version, error)
            return event, error.strerror or str(error)
        return event, durable

    async def _keep(self, order: Merge) -> None:
        """Write what is to be merged, on the storing thread and with its patience."""
        held = await self._compute(self._obeying(order, self._shard.payloads))
        kept = list(zip((item.contribution for item in order.items), held, strict=True))
        write = functools.partial(keep_contributions, self._depot, self._fence, kept)
        nbytes = sum(payload.nbytes for payload in held)
        if (why := await self._storing.keep(order.fragment, nbytes, write)) is not None:
            logging.error("contributions to %s are not kept: %s", order.version, why)

    def _merge(self, order: Merge) -> Merged | Unsound:
        """Merge; a process that cannot go back to what it had begins anew with what is stored."""
        try:
            return self._shard.merge(order)
        except (Damaged, OSError) as error:
            p, version = order.fragment, self._shard.version(order.fragment)
            start_over(f"{version} of fragment {p} cannot be had again: {error}")

    async def publish(self, order: Publish, seats: Sequence[Seat]) -> Answered:
        """Put the difference into the object store once, and tell every learner where it is; a
        small one goes along with the words.

        `seats`: where those are to whom it goes.

        Errors: what of ours broke when an earlier publication was offered.
        """
        if self._broken is not None:
            raise self._broken
        said = await self._compute(self._obeying(order, self._shard.publish))
        self._fates.published(order.merged)
        reached = None
        if said is not None:
            publication, payload = said
            self._public.ranges.published(publication, payload)
            reached = self._arrivals.sent(order.fragment, order.version, time.monotonic())
            self._public.sharing.forget(order.fragment)
            boxed = await self._boxed(publication, payload)
            for life, seat in zip(order.to, seats, strict=True):
                self._offers.spawn(self._offer(life, seat, publication, boxed))
        failed, self._failed = self._failed, []
        return Answered(failed, reached)

    async def _boxed(self, said: Publication, payload: Sent) -> Sequence[Sent | ray.ObjectRef]:
        """Where learners find it; nothing if there is no room: then each asks for what it lacks."""
        if payload.nbytes < INLINE_BYTES:
            return [payload]
        try:
            return await self._public.sharing.publication(payload)
        except STORE_FULL as error:
            logging.error("no room to publish %s of %d: %s", said.version, said.fragment, error)
            kind = type(error).__name__
            why = f"{kind}: no room to publish fragment {said.fragment} {said.version}"
            self._failed.append((None, Failure(Reason.STORE, why, ends=False)))
            return []

    async def _offer(
        self, life: Life, seat: Seat, said: Publication, boxed: Sequence[Sent | ray.ObjectRef]
    ) -> None:
        name = island_actor(seat)
        if group_of(self._config, life.island).hosts > 1:
            boxed = ()  # each host fetches its own range
        try:
            island = await self._actors.find(name)
            failure = await island.offer.remote(life, said, boxed)
        except RayError as error:  # a learner that is back takes the public fragments whole
            failure = self._unanswered(life, name, failure_of(Reason.OFFER, error), error)
        if isinstance(failure, Failure):
            self._failed.append((life, failure))
        elif failure is None:
            self._arrivals.reached(said.fragment, said.version, life, time.monotonic())

    def _unheard(self, error: BaseException) -> None:
        self._failed.append((None, raised(Reason.UNHEARD, error)))

    def _broke(self, error: BaseException) -> None:
        self._broken = self._broken or error  # raised where the next version is published

    async def discard(self, order: Discard) -> None:
        await self._compute(self._shard.drop, order.contribution.reference)
        self._fates.freed(order.contribution.id)

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]] | None:
        """Public fragments, for one who judges or saves them; None while there is no model yet."""
        if not self._shard.has_model:
            return None
        return await asyncio.to_thread(self._shard.whole, fragments)

    async def probe(self, nbytes: int) -> Probe | None:
        """An object of so many bytes to measure one's link with; None as in `whole`."""
        return await self._public.sharing.probe(nbytes) if self._shard.has_model else None

    async def shared(
        self,
        fragments: Sequence[Fragment],
        bytes_s: float,
        owns: Mapping[Fragment, Range] = WHOLE,
        least: Mapping[Fragment, Version] = ANY,
    ) -> list[Shared | None] | None:
        """Return what `PublicFragments.shared` does; None as in `whole`."""
        if not self._shard.has_model:
            return None
        return await self._public.shared(fragments, bytes_s, owns, least)

    async def mean_moments(
        self, fragments: Sequence[Fragment], bytes_s: float, owns: Mapping[Fragment, Range] = WHOLE
    ) -> list[Sequence[Boxed] | None] | None:
        """Return what `PublicFragments.mean_moments` does; None as in `whole`."""
        if not self._shard.has_model:
            return None
        return await self._public.mean_moments(fragments, bytes_s, owns)

    async def missed(
        self, p: Fragment, older: Version, newer: Version, bytes_s: float, own: Range | None = None
    ) -> Sequence[Boxed] | Shared | None:
        """Return what `PublicFragments.missed` does; None as in `whole`."""
        if not self._shard.has_model:
            return None
        return await self._public.missed(p, older, newer, bytes_s, own)

    def _spread(self, work: Callable[[S], T], items: Iterable[S]) -> Iterable[T]:
        """Large fragments occupy all cores, small ones the arithmetic's own thread."""
        jobs = list(items)
        return map(work, jobs) if len(jobs) == 1 else self._hands.map(work, jobs)

    def _obeying(self, order: Order, call: Callable[[Order], T]) -> Callable[[], T]:
        """The call after a fencing check. It is made on a thread that also runs `recover`, so that
        no later generation can slip in between.

        Errors: `Outdated`.
        """

        def obey() -> T:
            self._shard.obey(order.version.generation)
            return call(order)

        return obey

    async def _alone(self, call: Callable[[], T]) -> T:
        """On the arithmetic's thread, while nothing is being stored either."""
        return await self._storing.alone(lambda: self._arithmetic.submit(call).result())

    async def _compute(self, call: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._arithmetic, functools.partial(call, *arguments))
