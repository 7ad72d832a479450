"""The death of one shard in a simulated cluster, and its return."""

from __future__ import annotations

from collections.abc import Mapping

from archipelago.lab.simulation.shards import SimShardPlace
from archipelago.lab.simulation.site import SimSite
from archipelago.lab.simulation.syncer import SyncerSlot
from archipelago.lab.virtual.network import NOTICED_S
from coordinator.protocol import Anchor, Fragment, Version


class ShardFaults:
    """The faults of shards: one dies, and comes back later."""

    def __init__(self, site: SimSite, seat: SyncerSlot) -> None:
        self.site, self.seat = site, seat

    def strike(self, until_s: float) -> None:
        """Kill one shard, and bring it back at `until_s`.

        The syncer restarts, too, if learners cannot continue without what the shard had.
        """
        site = self.site
        live_places = [place for place in site.shards.places if place.process is not None]
        if site.syncer is None or not live_places:
            return
        place = site.rng.choice(live_places)
        site.shards.die(place)
        if site.plan.anchor is Anchor.CURRENT:
            self._start_over()
            return
        targets = site.syncer.shard_lost(place.fragments)
        site.loop.at(until_s, self._is_back, place, targets, site.syncer.state.generation)

    def _is_back(
        self, place: SimShardPlace, targets: Mapping[Fragment, Version], generation: int
    ) -> None:
        """Bring the shard back, unless a new generation has done so.

        The syncer begins a new generation if the shard has less than it asked for.
        """
        syncer = self.site.syncer
        if syncer is None or syncer.state.generation != generation:
            return
        if self.site.shards.come_back(place, targets, generation):
            syncer.shard_back([*targets])
        else:
            self._start_over()

    def _start_over(self) -> None:
        """Kill the syncer, and bring it back."""
        self.seat.die()
        self.site.loop.at(self.site.loop.now_s + NOTICED_S, self.seat.resume)
