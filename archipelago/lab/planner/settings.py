"""One way to train on a cluster, and its consequences that need no simulation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from archipelago.lab.planner.bandwidth import BITS
from cluster.config.machines import ClusterFile, GroupTable
from coordinator.interval import MOST_FRAGMENTS, HubLink, Interval, ModelBytes, choose

LEARNERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""The total numbers of learners to try; a group has the nearest number that its slices allow."""
INTERVALS = (24, 48, 96, 192)
"""The values of H to try. The paper uses 24; no shorter interval was published to learn as well."""
WIRES = ("bf16", "int8", "int4")
"""The wire formats to try, widest first; the first of equals is taken."""
FRAGMENTS = 24
LEAST_OVERLAP = 2
SLACK = 0.99
"""The share of a link that may be used."""
UNEVEN = 1.35
"""The factor by which a group's learners may differ from its share to divide slices evenly."""
FIXED_BYTES = 12.0
"""Bytes per parameter at its shard: master, momentum, public fragment."""
KEPT_DIFFERENCES = 4
DISK_SHARE = 0.5
"""The share of the disk's rate that may be used to store versions."""
MERGE_STEPS = 1.0
"""Steps that a round takes besides its messages: until the next step boundary, and to merge."""
BYTES_PER_GB = 1e9
FLOPS_A_TOKEN = 6.0
"""FLOPs per parameter and token, forward and backward (arXiv:2001.08361)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The variables that a plan chooses."""

    learners: tuple[int, ...]
    """The learners of each group, in the file's order."""
    every: int
    """H, in steps."""
    wire: str
    """The wire format, a key of `BITS`."""
    spares: int
    """The spares of each group."""

    @property
    def total(self) -> int:
        """M, the learners of all groups."""
        return sum(self.learners)

    @property
    def fragments(self) -> int:
        """P, at most H."""
        return min(FRAGMENTS, self.every)


@dataclass(frozen=True, slots=True)
class SettingTraffic:
    """The traffic of a setting."""

    syncer: str
    """The syncer's region."""
    gbit_s: dict[str, float]
    """The load of each region's link, each way; an upper bound."""
    island_gbit_s: float
    """The load of one island's link, each way; 0 if all islands are in the syncer's region."""
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


def tokens_per_s(group: GroupTable, cluster: ClusterFile) -> float:
    """Return a group's throughput without failures."""
    training = cluster.training
    if training.step_s is None:
        flops = group.chips * group.tflops * 1e12 * group.utilisation * group.speed
        return flops / (FLOPS_A_TOKEN * training.parameters)
    weights = [each.chips * each.tflops * each.utilisation * each.speed for each in cluster.groups]
    share = group.chips * group.tflops * group.utilisation * group.speed / sum(weights)
    return share * training.batch_tokens / training.step_s


def step_s(cluster: ClusterFile) -> float:
    """Return the step time of all chips together.

    M learners take the same time, since each has its share of the batch.
    """
    if cluster.training.step_s is not None:
        return cluster.training.step_s
    return cluster.training.batch_tokens / sum(tokens_per_s(g, cluster) for g in cluster.groups)


def settings(cluster: ClusterFile, totals: tuple[int, ...] = LEARNERS) -> Iterator[Setting]:
    """Yield all settings to try, each once."""
    tried: dict[tuple[tuple[int, ...], int], None] = {}
    for total in totals:
        learners = tuple(shared(group, total, cluster) for group in cluster.groups)
        tried[learners, 0] = None
        if (fewer := beside_spares(learners, cluster)) is not None:
            tried[fewer, 1] = None
    for learners, spares in tried:
        for every in INTERVALS:
            for wire in WIRES:
                yield Setting(learners, every, wire, spares)


def auto_interval(setting: Setting, cluster: ClusterFile) -> Interval:
    """Return the H and P that a run with `sync.every = "auto"` would choose on these links.

    The syncer is in the region that `traffic` chooses. Shards are on as many nodes as their links
    need, up to one for each fragment.
    """
    syncer, members = traffic(setting, cluster).syncer, _members(setting, cluster)
    nodes_bit_s = MOST_FRAGMENTS * cluster.syncer.gbit_s * 1e9
    links = [HubLink("the shards' nodes", nodes_bit_s, nodes_bit_s, 0.0, setting.total)]
    hub = cluster.region(syncer)
    for region in cluster.regions:
        at_hub = region.name == syncer
        count = setting.total - members[syncer] if at_hub else members[region.name]
        latency_ms = hub.latency_ms + (0.0 if at_hub else region.latency_ms)
        if count:
            rate = region.gbit_s * 1e9
            links.append(HubLink(region.name, rate, rate, 2 * latency_ms / 1000, count))
    wire = BITS[setting.wire] / 8
    model = ModelBytes(cluster.training.parameters, wire, wire)
    return choose(model, links, step_s(cluster))


def _members(setting: Setting, cluster: ClusterFile) -> dict[str, int]:
    """Return the number of learners in each region."""
    members = {region.name: 0 for region in cluster.regions}
    for group, count in zip(cluster.groups, setting.learners, strict=True):
        members[group.region] += count
    return members


def beside_spares(learners: tuple[int, ...], cluster: ClusterFile) -> tuple[int, ...] | None:
    """Return the learners that leave a slice of each group for a spare; None if spares are no use.

    Spares are of use if a group's learners are one slice each, since they stop with it. If such a
    group has a learner on every slice, one learner makes room. A number that the cluster file fixes
    does not change, so there may be no room.
    """
    one_slice = False
    found: list[int] = []
    for group, count in zip(cluster.groups, learners, strict=True):
        slices = group.chips // group.slice_chips
        one_slice = one_slice or slices // count == 1
        room = min(count, slices - 1)
        if room == 0 or (group.learners is not None and room < count):
            return None
        found.append(room)
    return tuple(found) if one_slice else None


def shared(group: GroupTable, total: int, cluster: ClusterFile) -> int:
    """Return a group's number of learners out of `total`.

    It is near the group's share of the chips, and divides its slices evenly if possible.
    """
    if group.learners is not None:
        return group.learners
    slices = group.chips // group.slice_chips
    wanted = min(max(1.0, total * group.chips / cluster.chips), slices)
    low = max(1, math.floor(wanted / UNEVEN))
    high = min(slices, max(low, math.ceil(wanted * UNEVEN)))
    return min(
        range(low, high + 1),
        key=lambda n: (slices % n / slices > 1 - SLACK, abs(math.log(n / wanted)), n),
    )


def traffic(setting: Setting, cluster: ClusterFile) -> SettingTraffic:
    """Return the traffic with the syncer in the best region.

    A region whose links are not overloaded comes first, then the cheapest egress, then the lowest
    load.
    """
    found = [_traffic(setting, cluster, region.name) for region in cluster.regions]
    return min(found, key=lambda t: (t.busiest > SLACK, t.egress_usd_per_hour, t.busiest))


def _traffic(setting: Setting, cluster: ClusterFile, syncer: str) -> SettingTraffic:
    fragment_bits = cluster.training.parameters / setting.fragments * BITS[setting.wire]
    gap_s = setting.every / setting.fragments * step_s(cluster)
    fragment_gbit_s = fragment_bits / gap_s / 1e9
    members = _members(setting, cluster)
    remote_learners = setting.total - members[syncer]
    gbit_s = {
        name: fragment_gbit_s * (remote_learners if name == syncer else count)
        for name, count in members.items()
    }
    uses = {name: load / cluster.region(name).gbit_s for name, load in gbit_s.items()}
    busiest = max(uses, key=lambda name: uses[name])
    sent_gb_per_hour = {name: load * 3600 / 8 for name, load in gbit_s.items()}
    usd = sum(gb * cluster.region(name).usd_per_gb for name, gb in sent_gb_per_hour.items())
    longest_s = 0.0
    for region in cluster.regions:
        if members[region.name] and region.name != syncer:
            latency_s = (region.latency_ms + cluster.region(syncer).latency_ms) / 1e3
            carried = fragment_bits * members[region.name] / (region.gbit_s * 1e9)
            longest_s = max(longest_s, 2 * (latency_s + carried))
    overlap = max(LEAST_OVERLAP, math.ceil(longest_s / step_s(cluster) + MERGE_STEPS))
    return SettingTraffic(
        syncer,
        gbit_s,
        fragment_gbit_s if remote_learners else 0.0,
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
    count = max(1, by_memory, by_link)
    stored_gb_s = cluster.training.parameters / setting.fragments * FIXED_BYTES / gap_s / 1e9
    disk = DISK_SHARE * cluster.syncer.disk_gb_s * count
    bottleneck = "their memory" if by_memory >= by_link else "their links"
    return ShardNodes(
        count,
        memory_gb,
        gbit_s,
        max(1, math.ceil(stored_gb_s / disk)),
        "one node is enough" if count == 1 else f"{bottleneck} ask for {count}",
    )
