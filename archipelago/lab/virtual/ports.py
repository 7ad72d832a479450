"""The syncer's ports in virtual time: shards and learners over a `VirtualNetwork`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic

from archipelago.lab.virtual.network import NOTICED_S, VirtualNetwork
from archipelago.lab.virtual.shards import VirtualShards
from archipelago.lab.virtual.site import C, N
from cluster.failures import Answered, Failure
from cluster.shard.arithmetic import D, P
from cluster.shard.shard import Shard
from cluster.syncer.collect import Handed
from cluster.syncer.ports import Ports
from coordinator.protocol import (
    Discard,
    Fragment,
    HandIn,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Unsound,
    Void,
)


class VirtualPorts(Ports, ABC, Generic[C, N, P, D]):
    """The counterpart of `cluster.actors.syncer.ray_ports.RayPorts`, on a `VirtualNetwork`."""

    def __init__(
        self, network: VirtualNetwork[C, N], shards: VirtualShards[P, D, Any, Any]
    ) -> None:
        self.network, self.shards = network, shards
        self.loop, self.places = network.loop, network.places

    # --- what depends on the kind of run ----------------------------------------------------------

    @abstractmethod
    def merge_s(self) -> float:
        """Return the duration of a merge, in seconds."""

    @abstractmethod
    async def deliver(
        self, life: Life, process: C, hand_in: tuple[HandIn, P] | None
    ) -> Failure | str | None:
        """Carry a learner's answer to the shard; return why it is lost, or None if it arrives."""

    @abstractmethod
    def arrivals_s(self, place: N, payload: D) -> tuple[float, float]:
        """Return when a publication reaches a learner, and when the answer is back."""

    def claimed(self, life: Life, process: C, progress: Progress) -> Progress:
        """Return the progress that a leaving learner reports: by default the true one."""
        return progress

    # --- learners ---------------------------------------------------------------------------------

    async def watch(self, life: Life) -> str:
        """Return when the life is over, with the reason; this may never happen."""
        place = self.places.get(life.island)
        if place is None or place.process is None:
            await self.loop.pause(NOTICED_S)
            return "there is no such process"
        waiter = self.network.watched[life] = self.loop.create_future()
        try:
            return await waiter
        finally:
            self.network.watched.pop(life, None)

    async def cease(self, order: Void) -> None:
        """Notify a learner that its life is void."""
        if (process := await self.network.reach(order.life)) is not None:
            process.cease(order)

    async def park(self, life: Life) -> None:
        """Order a learner to stop stepping; retry until the message arrives."""
        if (process := await self.network.reach(life, again=True)) is not None:
            process.park(life)

    async def leave(self, life: Life) -> Progress | None:
        """Have the learner end its life for good; return how far it came, None if it is gone."""
        if (process := await self.network.reach(life, again=True)) is None:
            return None
        if (progress := process.leave()) is not None:
            progress = self.claimed(life, process, progress)
        await self.loop.pause(self.network.delay_s(self.places[life.island]))
        return progress

    # --- contributions ----------------------------------------------------------------------------

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        """Ask the learner for a fragment, and give its hand-in to the shard.

        Returns the contribution, why it is lost, or None if there is nothing to hand in.
        """
        place = self.shards.of(fragment)
        deaths, known = place.died, place.fates.known(life, fragment)
        if (process := await self.network.reach(life)) is None:
            return f"{life} could not be asked"
        waiter = process.hand_in(life, fragment, known)
        hand_in: tuple[HandIn, P] | None = None if waiter is None else await waiter
        if (why := await self.deliver(life, process, hand_in)) is not None or hand_in is None:
            return why
        if place.process is None or place.died != deaths:
            return "its shard has died meanwhile"
        contribution = place.process.receive(*hand_in)
        place.fates.arrived(contribution.id)
        return contribution

    async def discard(self, order: Discard) -> None:
        """Have the shard drop a contribution."""
        place, contribution = self.shards.of(order.contribution.id.fragment), order.contribution
        if place.process is not None:
            place.process.drop(contribution.reference)
            place.fates.freed(contribution.id)

    # --- versions ---------------------------------------------------------------------------------

    async def working(self, p: Fragment, takes_s: float) -> Shard[P, D, Any, Any] | None:
        """Return the fragment's shard once it has worked for `takes_s`; None if it died by then."""
        place = self.shards.of(p)
        deaths = place.died
        await self.shards.work(takes_s)
        return place.process if place.died == deaths else None

    async def merge(self, order: Merge) -> Merged | Unsound | None:
        """Have the shard merge, and return the outcome; None if it has died."""
        shard = await self.working(order.fragment, self.merge_s())
        return None if shard is None else shard.merge(order)

    def spread(self, order: Publish, shard: Shard[P, D, Any, Any]) -> Answered:
        """Make a version public at its shard, and send it to the lives."""
        if (done := shard.publish(order)) is None:
            return Answered()
        publication, payload = done
        shard_place = self.shards.of(order.fragment)
        arrivals = shard_place.arrivals
        reached = arrivals.sent(order.fragment, order.version, self.loop.now_s)
        shard_place.fates.published(order.merged)
        self.shards.published(publication)
        for life in order.to:
            place = self.places.get(life.island)
            if place is None or (process := place.process) is None:
                continue
            if self.network.lost(place, place.down_cut_s):
                continue
            there_s, answered_s = self.arrivals_s(place, payload)
            self.loop.at(there_s, process.reached, process.offer, life, publication, payload)
            arguments = publication.fragment, publication.version, life, answered_s
            self.loop.at(answered_s, arrivals.reached, *arguments)
        return Answered(reached=reached)
