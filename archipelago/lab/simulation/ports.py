"""The syncer's ports to the simulated world: the shard, the learners, the disk."""

from __future__ import annotations

from collections.abc import Coroutine

from archipelago.lab.checks.facts import Poison
from archipelago.lab.simulation import lies
from archipelago.lab.simulation.hosts import parts_of
from archipelago.lab.simulation.network import SLOWNESS, SimNetwork
from archipelago.lab.simulation.payloads import Parcel, SimDifference
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.site import Machine, SimSite
from archipelago.lab.virtual.network import NOTICED_S
from archipelago.lab.virtual.ports import VirtualPorts
from cluster.failures import Answered, Failure
from cluster.syncer.collect import Handed
from coordinator.protocol import Fragment, HandIn, Life, Progress, Publish, Store

RESTARTED_S = 3.0
"""Seconds until a process that had to end has restarted."""


class SimPorts(VirtualPorts[SimProcess, Machine, Parcel, SimDifference]):
    """The ports over a `SimNetwork`: shards die, links lose messages, disks and learners fail."""

    def __init__(self, site: SimSite, network: SimNetwork) -> None:
        super().__init__(network, site.shards)
        self.site, self.network = site, network

    def merge_s(self) -> float:
        """Return the duration of a merge; a slow shard takes longer."""
        slow = SLOWNESS if self.loop.now_s < self.site.shard_slow_s else 1
        return self.site.plan.merge_s * slow

    # --- contributions ----------------------------------------------------------------------------

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        """Have the shard ask the learner for a fragment, once the shard is alive."""
        place = self.shards.of(fragment)
        while place.process is None:
            await self.loop.pause(NOTICED_S)

        def ask(life: Life) -> Coroutine[None, None, Handed]:
            return self.ask(life, fragment)

        ((_, answer),) = await place.gatherer.gather(fragment, [life], ask)
        return answer

    async def ask(self, life: Life, fragment: Fragment) -> Handed:
        """Ask the learner for a fragment, and keep its hand-in, like a shard's process."""
        return await super().collect(life, fragment)

    async def deliver(
        self, life: Life, process: SimProcess, hand_in: tuple[HandIn, Parcel] | None
    ) -> Failure | str | None:
        """Carry a learner's answer, and the parts of its other hosts, to the shard."""
        place = self.places[life.island]
        if self.network.lost(place, place.up_cut_s):
            await self.loop.pause(self.network.timeout_s)
            return f"{life} got no answer"
        await self.loop.pause(self.network.delay_s(place))
        if hand_in is None:
            return None
        parts = await parts_of(hand_in[0], life, process, place, self.network)
        if isinstance(parts, Failure | str):
            return parts
        await self.shards.work(self.merge_s() / len(self.places))
        return None

    # --- versions ---------------------------------------------------------------------------------

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
        self.shards.ordered(order.merged)
        self.site.told.published(order.merged)
        shard = await self.working(order.fragment, 0)
        return Answered() if shard is None else self.spread(order, shard)

    def arrivals_s(self, place: Machine, payload: SimDifference) -> tuple[float, float]:
        """Draw when a publication reaches a learner, and when the answer is back."""
        now_s, delay_s = self.loop.now_s, self.network.delay_s(place)
        return now_s + delay_s, now_s + 2 * delay_s

    # --- learners ---------------------------------------------------------------------------------

    def claimed(self, life: Life, process: SimProcess, progress: Progress) -> Progress:
        """Return the progress that a leaving learner reports; a lying one may change a number."""
        if process.poison is not Poison.LYING:
            return progress
        self.site.lied.add(life)
        return lies.progress(progress, process.rng)

    async def break_down(self, life: Life, why: str) -> None:
        """Kill the process of this life, which restarts later."""
        place = self.places.get(life.island)
        process = None if place is None else place.process
        if place is not None and process is not None and process.learner_of(life) is not None:
            self.network.crash(place, process)
            self.loop.at(self.loop.now_s + RESTARTED_S, self.network.start, place)
