"""The traffic of a setting, the regions and nodes of its shards, and what they ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from archipelago.lab.planner.bandwidth import BITS
from archipelago.lab.planner.settings import SLACK, Setting, step_s
from cluster.config.machines import ClusterFile
from coordinator.interval import MOST_FRAGMENTS, HubLink, Interval, ModelBytes, choose

LEAST_OVERLAP = 2
FIXED_BYTES = 12.0
"""Bytes per parameter at its shard: master, momentum, public fragment."""
KEPT_DIFFERENCES = 4
DISK_SHARE = 0.5
"""The share of the disk's rate that may be used to store versions."""
MERGE_STEPS = 1.0
"""Steps that a round takes besides its messages: until the next step boundary, and to merge."""
BYTES_PER_GB = 1e9


@dataclass(frozen=True, slots=True)
class SettingTraffic:
    """The traffic of a setting."""

    syncer: str
    """The syncer's region."""
    shard_regions: tuple[str, ...]
    """The regions of the shards, each with an equal part of the fragments."""
    gbit_s: dict[str, float]
    """The load of each region's link, each way; an upper bound."""
    island_gbit_s: float
    """The load of one island's link, each way; 0 if it leaves no region."""
    busiest: float
    """The largest share of a link in use; above `SLACK` the setting does not work."""
    where: str
    """The region with the busiest link."""
    egress_gb_per_hour: float
    """The egress of all regions together."""
    egress_usd_per_hour: float
    """The cost of the egress, in US dollars per hour."""
    overlap: int
    """The τ that hides an exchange, in steps."""

    @property
    def spread(self) -> bool:
        """Whether several regions have shards."""
        return len(self.shard_regions) > 1


def auto_interval(setting: Setting, cluster: ClusterFile) -> Interval:
    """Return the H and P that a run with `sync.every = "auto"` would choose on these links.

    Syncer and shards are in the regions that `traffic` chooses. Shards are on as many nodes as
    their links need, up to one for each fragment.
    """
    moving = traffic(setting, cluster)
    nodes_bit_s = MOST_FRAGMENTS * cluster.syncer.gbit_s * 1e9
    links = [HubLink("the shards' nodes", nodes_bit_s, nodes_bit_s, 0.0, setting.total)]
    for name, (own, served) in _exchanges(setting, cluster, moving.shard_regions).items():
        others = [cluster.region(each) for each in moving.shard_regions if each != name]
        if own or served:
            rate, at = cluster.region(name).gbit_s * 1e9, cluster.region(name)
            latency_ms = at.latency_ms + max((each.latency_ms for each in others), default=0.0)
            links.append(HubLink(name, rate, rate, 2 * latency_ms / 1000, own, served))
    wire = BITS[setting.wire] / 8
    model = ModelBytes(cluster.training.parameters, wire, wire)
    return choose(model, links, step_s(cluster))


def _members(setting: Setting, cluster: ClusterFile) -> dict[str, int]:
    """Return the number of learners in each region."""
    members = {region.name: 0 for region in cluster.regions}
    for group, count in zip(cluster.groups, setting.learners, strict=True):
        members[group.region] += count
    return members


def _exchanges(
    setting: Setting, cluster: ClusterFile, shard_regions: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Return how often each region's link carries the model, each way and period.

    First for the region's own learners with shards elsewhere, second for learners elsewhere with
    the region's shards. Each of `shard_regions` has an equal part of the model.
    """
    homes = len(shard_regions)
    held = dict.fromkeys(shard_regions, 1.0 / homes)
    return {
        name: (count * (1.0 - held.get(name, 0.0)), (setting.total - count) * held.get(name, 0.0))
        for name, count in _members(setting, cluster).items()
    }


def traffic(setting: Setting, cluster: ClusterFile) -> SettingTraffic:
    """Return the traffic with syncer and shards in the best regions.

    All shards are in the syncer's region if a link can carry that: then merges depend on no other
    region. Otherwise each region with learners has a shard, if those links can carry it. Among
    equal choices the cheapest egress comes first, then the lowest load.
    """
    members = _members(setting, cluster)
    hubs = [_traffic(setting, cluster, name, [name]) for name in members]
    found = sorted(hubs, key=lambda t: (t.busiest > SLACK, t.egress_usd_per_hour, t.busiest))
    hub, used = found[0], [name for name, count in members.items() if count]
    if hub.busiest <= SLACK or len(used) == 1:
        return hub
    spread = _traffic(setting, cluster, hub.syncer, used)
    return min(hub, spread, key=lambda t: t.busiest)


def _traffic(
    setting: Setting, cluster: ClusterFile, syncer: str, shard_regions: Sequence[str]
) -> SettingTraffic:
    """Return the traffic with a part of the fragments in each of `shard_regions`."""
    fragment_bits = cluster.training.parameters / setting.fragments * BITS[setting.wire]
    gap_s = setting.every / setting.fragments * step_s(cluster)
    fragment_gbit_s = fragment_bits / gap_s / 1e9
    members, homes = _members(setting, cluster), len(shard_regions)
    away = {name: (homes - (name in shard_regions)) / homes for name in members}  # of its fragments
    gbit_s = {
        name: fragment_gbit_s * (own + served)
        for name, (own, served) in _exchanges(setting, cluster, shard_regions).items()
    }
    uses = {name: load / cluster.region(name).gbit_s for name, load in gbit_s.items()}
    busiest = max(uses, key=lambda name: uses[name])
    sent_gb_per_hour = {name: load * 3600 / 8 for name, load in gbit_s.items()}
    usd = sum(gb * cluster.region(name).usd_per_gb for name, gb in sent_gb_per_hour.items())
    longest_s = 0.0
    for region in cluster.regions:
        others = [cluster.region(name) for name in shard_regions if name != region.name]
        if members[region.name] and others:
            latency_s = (region.latency_ms + max(each.latency_ms for each in others)) / 1e3
            carried = fragment_bits * members[region.name] / (region.gbit_s * 1e9)
            longest_s = max(longest_s, 2 * (latency_s + carried))
    overlap = max(LEAST_OVERLAP, math.ceil(longest_s / step_s(cluster) + MERGE_STEPS))
    return SettingTraffic(
        syncer,
        tuple(shard_regions),
        gbit_s,
        fragment_gbit_s * max(share for name, share in away.items() if members[name]),
        uses[busiest],
        busiest,
        sum(sent_gb_per_hour.values()),
        usd,
        overlap,
    )


@dataclass(frozen=True, slots=True)
class ShardNodes:
    """The processes that hold the model, each on its own node."""

    count: int
    memory_gb: float
    """The memory of all nodes together."""
    gbit_s: float
    """The load of all nodes together, each way."""
    store_every: int
    """The number of versions of a fragment from one stored version to the next."""
    why: str
    """The reason for the number of nodes."""


def shards(setting: Setting, moving: SettingTraffic, cluster: ClusterFile) -> ShardNodes:
    """Return the nodes that syncer and shards need, and how often a version can be stored.

    Memory is 12 bytes per parameter, the kept differences, and contributions in flight (the shard's
    own account, docs/lab/ablations.md). More nodes than fragments are useless: if the count exceeds
    `setting.fragments`, the setting does not work.
    """
    wire_bytes = BITS[setting.wire] / 8
    flying = min(1.0, (moving.overlap * setting.fragments / setting.every + 1) / setting.fragments)
    parameter_bytes = (
        FIXED_BYTES + KEPT_DIFFERENCES * wire_bytes + setting.total * wire_bytes * flying
    )
    memory_gb = cluster.training.parameters * parameter_bytes / BYTES_PER_GB
    gap_s = setting.every / setting.fragments * step_s(cluster)
    learner_gbit_s = (
        cluster.training.parameters / setting.fragments * BITS[setting.wire] / gap_s / 1e9
    )
    gbit_s = setting.total * learner_gbit_s
    by_memory = math.ceil(memory_gb / cluster.syncer.memory_gb)
    by_link = math.ceil(gbit_s / (SLACK * cluster.syncer.gbit_s))
    count, homes = max(1, by_memory, by_link), len(moving.shard_regions)
    why = "their memory asks" if by_memory >= by_link else "their links ask"
    why = "one node is enough" if count == 1 else f"{why} for {count}"
    if moving.spread:
        count = homes * math.ceil(count / homes)
        why = f"as many in each of {homes} regions, as no link can carry all"
    stored_gb_s = cluster.training.parameters / setting.fragments * FIXED_BYTES / gap_s / 1e9
    disk = DISK_SHARE * cluster.syncer.disk_gb_s * count
    return ShardNodes(
        count,
        memory_gb,
        gbit_s,
        max(1, math.ceil(stored_gb_s / disk)),
        why,
    )
