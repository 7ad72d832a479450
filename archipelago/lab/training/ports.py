"""The syncer's ports in virtual time: a real shard, and learners with real arrays."""

from __future__ import annotations

from archipelago.lab.training.network import NOTICED_S, VirtualNetwork
from cluster.failures import Answered
from cluster.shard.arrivals import Arrivals
from cluster.shard.fates import Fates
from cluster.syncer.ports import Ports
from coordinator.protocol import (
    Contribution,
    Discard,
    Fragment,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Store,
    Unsound,
    Void,
)


class VirtualPorts(Ports):
    """The syncer's ports over a `VirtualNetwork`: the shard, and learners with real arrays."""

    def __init__(self, network: VirtualNetwork) -> None:
        self._network, self._loop, self._shard = network, network.loop, network.shard
        self._fates, self._arrivals, self._free_s = Fates(), Arrivals(), 0.0

    async def watch(self, life: Life) -> str:
        """Return when the life is over, with the reason; this may never happen."""
        if self._network.places[life.island].process is None:
            await self._loop.pause(NOTICED_S)
            return "there is no such process"
        watcher = self._network.watched[life] = self._loop.create_future()
        try:
            return await watcher
        finally:
            self._network.watched.pop(life, None)

    async def collect(self, life: Life, fragment: Fragment) -> Contribution | str | None:
        """Ask the learner for a fragment, and give its hand-in to the shard.

        Returns the contribution, the reason why there is none, or None if the life is over.
        """
        if (process := await self._network.reach(life)) is None:
            return f"{life} could not be asked"
        waiter = process.hand_in(life, fragment, self._fates.known(life, fragment))
        hand_in = None if waiter is None else await waiter
        if hand_in is None:
            await self._loop.pause(self._network.timing.latency_s)
            return None
        uplink = self._network.places[life.island].up
        await self._loop.pause(uplink.takes_s(self._loop.now_s, hand_in[1].nbytes))
        contribution = self._shard.receive(*hand_in)
        self._fates.arrived(contribution.id)
        return contribution

    async def merge(self, order: Merge) -> Merged | Unsound:
        """Merge one order after another, each when the shard is free."""
        self._free_s = max(self._free_s, self._loop.now_s) + self._network.timing.merge_s
        await self._loop.pause(self._free_s - self._loop.now_s)
        return self._shard.merge(order)

    async def store(self, order: Store) -> bool:
        """Do nothing: no file outlives this process."""
        return False  # never durable

    async def publish(self, order: Publish) -> Answered:
        """Make a version public, and send it to the lives."""
        done = self._shard.publish(order)
        assert done is not None, f"{order.version} of fragment {order.fragment} is public already"
        publication, payload = done
        self._fates.published(order.merged)
        now_s, arrivals = self._loop.now_s, self._arrivals
        latency_s = self._network.timing.latency_s
        reached = arrivals.sent(order.fragment, order.version, now_s)
        for life in order.to:
            place = self._network.places[life.island]
            if (process := place.process) is None or now_s < place.cut_s:
                continue
            there_s = now_s + place.down.takes_s(now_s, payload.nbytes)
            self._loop.at(there_s, process.reached, process.offer, life, publication, payload)
            heard_s = there_s + latency_s
            self._loop.at(
                heard_s, arrivals.reached, publication.fragment, publication.version, life, heard_s
            )
        return Answered(reached=reached)

    async def discard(self, order: Discard) -> None:
        """Drop a contribution, and give its residual back to the learner if ordered."""
        contribution_id = order.contribution.id
        self._shard.drop(order.contribution.reference)
        self._fates.freed(contribution_id)
        if (
            order.returns_residual
            and (process := await self._network.reach(contribution_id.life)) is not None
        ):
            process.refused(contribution_id)

    async def cease(self, order: Void) -> None:
        """Notify a learner that its life is void."""
        if (process := await self._network.reach(order.life)) is not None:
            process.cease(order)

    async def park(self, life: Life) -> None:
        """Order a learner to stop stepping."""
        if (process := await self._network.reach(life)) is not None:
            process.park(life)

    async def leave(self, life: Life) -> Progress | None:
        """Have the learner end its life for good; return how far it came, None if it is gone."""
        if (process := await self._network.reach(life)) is None:
            return None
        progress = process.leave()
        await self._loop.pause(self._network.timing.latency_s)
        return progress

    async def break_down(self, life: Life, why: str) -> None:
        """Raise `AssertionError`: a learner's error is a mistake of ours or of the task."""
        raise AssertionError(f"{life} failed: {why}")
