"""The syncer's ports to the simulated world: the shard, the learners, the disk."""

from __future__ import annotations

from collections.abc import Coroutine

from archipelago.lab.checks.facts import Poison
from archipelago.lab.simulation import lies
from archipelago.lab.simulation.hosts import parts_of
from archipelago.lab.simulation.integer_shard import SimShard
from archipelago.lab.simulation.learner import HandedIn
from archipelago.lab.simulation.network import CALL_TIMEOUT_S, NOTICED_S, SLOWNESS, SimNetwork
from archipelago.lab.simulation.shards import ShardPlace
from archipelago.lab.simulation.site import Site
from cluster.failures import Answered, Failure
from cluster.syncer.collect import Handed
from cluster.syncer.ports import Ports
from coordinator.protocol import (
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

RESTARTED_S = 3.0
"""Seconds until a process that had to end has restarted."""


class SimPorts(Ports):
    """The counterpart of `cluster.actors.syncer.ray_ports.RayPorts`, on a `SimNetwork`."""

    def __init__(self, site: Site, network: SimNetwork) -> None:
        self.site, self.network = site, network
        self.loop, self.machines, self.shards = site.loop, site.machines, site.shards

    async def watch(self, life: Life) -> str:
        """Return when the life is over, with the reason; this may never happen."""
        machine = self.machines.get(life.island)
        if machine is None or machine.process is None:
            await self.loop.pause(NOTICED_S)
            return "there is no such process"
        waiter = self.network.watched[life] = self.loop.create_future()
        try:
            return await waiter
        finally:
            self.network.watched.pop(life, None)

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        """Have the shard ask the learner for a fragment, once the shard is alive."""
        place = self.shards.of(fragment)
        while place.process is None:
            await self.loop.pause(NOTICED_S)

        def ask(life: Life) -> Coroutine[None, None, Handed]:
            return self._collect(life, fragment, place)

        ((_, answer),) = await place.gatherer.gather(fragment, [life], ask)
        return answer

    async def _collect(self, life: Life, fragment: Fragment, place: ShardPlace) -> Handed:
        """Keep the learner's hand-in, like a shard's process."""
        deaths, known = place.died, place.fates.known(life, fragment)
        if (process := await self.network.reach(life)) is None:
            return f"{life} could not be asked"
        # if another life has replaced this one, no learner receives the message
        has_learner = process.learner_of(life) is not None
        held = known.held if has_learner and self.site.told.hears(life, fragment, known) else None
        waiter = process.hand_in(life, fragment, held)
        hand_in: HandedIn | None = None if waiter is None else await waiter
        machine = self.machines[life.island]
        if self.network.lost(machine, machine.up_cut_s):
            await self.loop.pause(CALL_TIMEOUT_S)
            return f"{life} got no answer"
        await self.loop.pause(self.network.delay_s(machine))
        if hand_in is None:
            return None
        parts = await parts_of(hand_in[0], life, process, machine, self.network)
        if isinstance(parts, Failure | str):
            return parts
        await self.shards.work(self._merge_s() / len(self.machines))
        if place.process is None or place.died != deaths:
            return "its shard has died meanwhile"
        contribution = place.process.receive(*hand_in)
        place.fates.arrived(contribution.id)
        return contribution

    def _merge_s(self) -> float:
        return self.site.plan.merge_s * (
            SLOWNESS if self.loop.now_s < self.site.shard_slow_s else 1
        )

    async def _reached(self, p: Fragment, takes_s: float) -> SimShard | None:
        """Return the fragment's shard once it has worked for `takes_s`; None if it died by then."""
        place = self.shards.of(p)
        deaths = place.died
        await self.shards.work(takes_s)
        return place.process if place.died == deaths else None

    async def merge(self, order: Merge) -> Merged | Unsound | None:
        """Have the shard merge, and return the outcome; None if it has died."""
        shard = await self._reached(order.fragment, self._merge_s())
        return None if shard is None else shard.merge(order)

    async def store(self, order: Store) -> bool | str | None:
        """Make a merged version durable.

        Returns the shard's answer, the reason if the disk fails, or None if the shard has died.
        """
        place = self.shards.of(order.fragment)
        deaths, slow = place.died, SLOWNESS if self.loop.now_s < self.site.disk_slow_s else 1
        await self.loop.pause(self.site.plan.store_s * slow)
        if place.died != deaths or place.process is None:
            return None
        if self.loop.now_s < self.site.disk_fails_s:
            return "the disk fails"
        return place.process.store(order.fragment, order.version)

    async def publish(self, order: Publish) -> Answered:
        """Make a version public and send it to the lives; nothing is sent if the shard has died."""
        self.shards.published(order.merged)
        self.site.told.published(order.merged)
        shard = await self._reached(order.fragment, 0)
        if shard is None or (done := shard.publish(order)) is None:
            return Answered()
        publication, payload = done
        arrivals = self.shards.of(order.fragment).arrivals
        reached = arrivals.sent(order.fragment, order.version, self.loop.now_s)
        self.shards.of(order.fragment).fates.published(order.merged)
        self.shards.made_public(publication)
        for life in order.to:
            machine = self.machines.get(life.island)
            if machine is None or machine.process is None:
                continue
            if not self.network.lost(machine, machine.down_cut_s):
                process, delay_s = machine.process, self.network.delay_s(machine)
                self.loop.at(
                    self.loop.now_s + delay_s,
                    process.reached,
                    process.offer,
                    life,
                    publication,
                    payload,
                )
                heard_s = self.loop.now_s + 2 * delay_s
                arguments = publication.fragment, publication.version, life, heard_s
                self.loop.at(heard_s, arrivals.reached, *arguments)
        return Answered(reached=reached)

    async def discard(self, order: Discard) -> None:
        """Have the shard drop a contribution."""
        place, contribution = self.shards.of(order.contribution.id.fragment), order.contribution
        if place.process is not None:
            place.process.drop(contribution.reference)
            place.fates.freed(contribution.id)

    async def cease(self, order: Void) -> None:
        """Notify a learner that its life is void."""
        if (process := await self.network.reach(order.life)) is not None:
            process.cease(order)

    async def park(self, life: Life) -> None:
        """Order a learner to stop stepping; retry until the message arrives."""
        if (process := await self.network.reach(life, again=True)) is not None:
            process.park(life)

    async def break_down(self, life: Life, why: str) -> None:
        """Kill the process of this life, which restarts later."""
        machine = self.machines.get(life.island)
        process = None if machine is None else machine.process
        if machine is not None and process is not None and process.learner_of(life) is not None:
            self.network.crash(machine, process, NOTICED_S)
            self.loop.at(self.loop.now_s + RESTARTED_S, self.network.start, machine)

    async def leave(self, life: Life) -> Progress | None:
        """Have the learner end its life for good; return how far it came, None if it is gone."""
        if (process := await self.network.reach(life, again=True)) is None:
            return None
        progress = process.leave()
        if progress is not None and process.poison is Poison.LYING:
            self.site.lied.add(life)
            progress = lies.progress(progress, process.rng)
        await self.loop.pause(self.network.delay_s(self.machines[life.island]))
        return progress
