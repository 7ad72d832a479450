"""Offers of published versions: put into the object store once, and sent to every learner."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import STORE_FULL, unanswered
from cluster.actors.directory import Directory
from cluster.actors.object_store.publish import FragmentPublisher
from cluster.actors.shard.public_fragments import INLINE_BYTES
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.failures import Failure, Losses, Reason
from cluster.names import Seat, island_actor
from cluster.shard.arrivals import Arrivals
from cluster.tasks import Tasks
from coordinator.codec import Sent
from coordinator.protocol import Life, Publication, Publish, Reached


class Offers:
    """The offers of a shard's publications to islands; for its event loop."""

    def __init__(self, config: Config, actors: Directory, sharing: FragmentPublisher) -> None:
        self._config, self._actors, self._sharing = config, actors, sharing
        self._arrivals, self._tasks = Arrivals(), Tasks(self._broke)
        self._failed: list[tuple[Life | None, Failure]] = []  # since the last answer
        self._broken: BaseException | None = None

    def check(self) -> None:
        """Raise an exception of our own code, if one occurred during an earlier offer."""
        if self._broken is not None:
            raise self._broken

    def fail(self, life: Life | None, failure: Failure) -> None:
        """Record a failure, to be returned with the next publication."""
        self._failed.append((life, failure))

    def failed(self) -> Losses:
        """Return the failures since the last call."""
        failed, self._failed = self._failed, []
        return failed

    async def send(
        self, order: Publish, seats: Sequence[Seat], publication: Publication, payload: Sent
    ) -> Reached | None:
        """Offer a publication to the learners in these seats, each in a task of its own.

        Return the learners that the fragment's last publication has reached; None if none.
        """
        reached = self._arrivals.sent(order.fragment, order.version, time.monotonic())
        self._sharing.forget(order.fragment)
        boxed = await self._boxed(publication, payload)
        for life, seat in zip(order.to, seats, strict=True):
            self._tasks.spawn(self._offer(life, seat, publication, boxed))
        return reached

    async def _boxed(
        self, publication: Publication, payload: Sent
    ) -> Sequence[Sent | ray.ObjectRef]:
        """Return the payload, or references to it; empty if the store has no room.

        A learner that gets nothing asks for the versions that it lacks.
        """
        if payload.nbytes < INLINE_BYTES:
            return [payload]
        try:
            return await self._sharing.publication(payload)
        except STORE_FULL as error:
            p, version = publication.fragment, publication.version
            logging.error("no room to publish %s of %d: %s", version, p, error)
            why = f"{type(error).__name__}: no room to publish fragment {p} {version}"
            self.fail(None, Failure(Reason.STORE, why, ends=False))
            return []

    async def _offer(
        self,
        life: Life,
        seat: Seat,
        publication: Publication,
        boxed: Sequence[Sent | ray.ObjectRef],
    ) -> None:
        """Offer a publication to one learner, and record its arrival or its failure."""
        name = island_actor(seat)
        if group_of(self._config, life.island).hosts > 1:
            boxed = ()  # each host fetches its own range
        try:
            island = await self._actors.find(name)
            failure = await island.offer.remote(life, publication, boxed)
        except RayError as error:  # a rejoining learner gets the whole public fragments
            failure = unanswered(self._actors, name, life, Reason.OFFER, error)
        if isinstance(failure, Failure):
            self.fail(life, failure)
        elif failure is None:
            now_s = time.monotonic()
            self._arrivals.reached(publication.fragment, publication.version, life, now_s)

    def _broke(self, error: BaseException) -> None:
        self._broken = self._broken or error  # raised at the next publication

    def cancel(self) -> None:
        """Cancel all offers that are not answered yet."""
        self._tasks.cancel()
