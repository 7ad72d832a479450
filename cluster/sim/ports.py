"""What the syncer reaches of the simulated world: the shard, the learners, the disk."""

from __future__ import annotations

from cluster.failures import Losses
from cluster.sim.learner import HandedIn
from cluster.sim.network import CALL_TIMEOUT_S, NOTICED_S, SLOWNESS, Network, Site
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


class SimPorts(Ports):
    """As `cluster.actors.ports.RayPorts`, through a `Network`."""

    def __init__(self, site: Site, network: Network) -> None:
        self.site, self.network = site, network
        self.loop, self.machines, self.shard = site.loop, site.machines, site.shard

    async def watch(self, life: Life) -> str:
        machine = self.machines.get(life.island)
        if machine is None or machine.process is None:
            await self.loop.pause(NOTICED_S)
            return "there is no such process"
        waiter = self.network.watched[life] = self.loop.create_future()
        try:
            return await waiter
        finally:
            self.network.watched.pop(life, None)

    async def collect(self, life: Life, fragment: Fragment) -> Contribution | str:
        while fragment in self.shard.away:
            await self.loop.pause(NOTICED_S)
        deaths = self.shard.deaths[fragment]
        if (process := await self.network.reach(life)) is None:
            return f"{life} could not be asked"
        waiter = process.hand_in(life, fragment)
        handed: HandedIn | None = None if waiter is None else await waiter
        machine = self.machines[life.island]
        if self.network.lost(machine, machine.up_cut_s):
            await self.loop.pause(CALL_TIMEOUT_S)
            return f"{life} was not heard"
        await self.loop.pause(self.network.delay_s(machine))
        if handed is None:
            return "nothing to hand in"
        await self.shard.work(self._merge_s() / len(self.machines))
        if self.shard.deaths[fragment] != deaths:
            return "its shard has died meanwhile"
        return self.shard.receive(*handed)

    def _merge_s(self) -> float:
        return self.site.plan.merge_s * (
            SLOWNESS if self.loop.now_s < self.site.shard_slow_s else 1
        )

    async def merge(self, order: Merge) -> Merged | Unsound | None:
        deaths = self.shard.deaths[order.fragment]
        await self.shard.work(self._merge_s())
        if self.shard.deaths[order.fragment] != deaths:
            return None
        return self.shard.merge(order)

    async def store(self, order: Store) -> bool | str | None:
        deaths = self.shard.deaths[order.fragment]
        slow = SLOWNESS if self.loop.now_s < self.site.disk_slow_s else 1
        await self.loop.pause(self.site.plan.store_s * slow)
        if self.shard.deaths[order.fragment] != deaths:
            return None
        if self.loop.now_s < self.site.disk_fails_s:
            return "the disk fails"
        self.shard.store(order.fragment, order.version)
        return True

    async def publish(self, order: Publish) -> Losses:
        deaths = self.shard.deaths[order.fragment]
        await self.shard.work(0)
        if self.shard.deaths[order.fragment] != deaths:
            return ()
        said, payload = self.shard.publish(order)
        for life in order.to:
            machine = self.machines.get(life.island)
            if machine is None or machine.process is None:
                continue
            if not self.network.lost(machine, machine.down_cut_s):
                process, delay_s = machine.process, self.network.delay_s(machine)
                self.loop.at(
                    self.loop.now_s + delay_s,
                    self.network.to,
                    process,
                    process.offer,
                    life,
                    said,
                    payload,
                )
        return ()

    async def discard(self, order: Discard) -> None:
        self.shard.inbox.pop(order.contribution.reference, None)

    async def cease(self, order: Void) -> None:
        if (process := await self.network.reach(order.life)) is not None:
            process.cease(order)

    async def park(self, life: Life) -> None:
        if (process := await self.network.reach(life, again=True)) is not None:
            process.park(life)

    async def leave(self, life: Life) -> Progress | None:
        if (process := await self.network.reach(life, again=True)) is None:
            return None
        progress = process.leave()
        await self.loop.pause(self.network.delay_s(self.machines[life.island]))
        return progress
