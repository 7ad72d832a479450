"""One way to train on a cluster, and what follows from it without any simulation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from archipelago.lab.planner.bandwidth import BITS
from cluster.config.machines import ClusterFile, GroupTable

LEARNERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of learners that are tried; a group has the nearest number that its slices allow."""
INTERVALS = (24, 48, 96, 192)
"""H. The paper's is 24; no shorter one was published to learn as well."""
WIRES = ("bf16", "int8", "int4")
"""From wide to narrow; the first of equals is taken."""
FRAGMENTS = 24
LEAST_OVERLAP = 2
SLACK = 0.99
"""Share of a link that may be used."""
UNEVEN = 1.35
"""A group's learners may be so many times more or fewer than its share, if that is even."""
FIXED_BYTES = 12.0
"""Of a parameter at its shard: master, momentum, public fragment."""
KEPT_DIFFERENCES = 4
DISK_SHARE = 0.5
"""Of the disk's rate, for storing versions."""
MERGE_STEPS = 1.0
"""Steps that a round takes beside its messages: until the next boundary, and to merge."""
BYTES_PER_GB = 1e9
FLOPS_A_TOKEN = 6.0
"""Of a parameter, forward and backward (arXiv:2001.08361)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a plan chooses; `learners` by group, in the file's order. `spares`: of each group."""

    learners: tuple[int, ...]
    every: int
    wire: str
    spares: int

    @property
    def total(self) -> int:
        return sum(self.learners)

    @property
    def fragments(self) -> int:
        return min(FRAGMENTS, self.every)


@dataclass(frozen=True, slots=True)
class SettingTraffic:
    """What a setting sends.

    `syncer`: its region. `gbit_s`: by region, each way, at most. `island_gbit_s`: of one island.
    `busiest`: the largest share of a link in use; 1 or more does not work. `where`: which one that
    is. `egress_gb_per_hour`, `egress_usd_per_hour`: of all regions. `overlap`: τ that hides it.
    """

    syncer: str
    gbit_s: dict[str, float]
    island_gbit_s: float
    busiest: float
    where: str
    egress_gb_per_hour: float
    egress_usd_per_hour: float
    overlap: int


def tokens_per_s(group: GroupTable, cluster: ClusterFile) -> float:
    """What a group's chips train if nothing ever fails."""
    training = cluster.training
    if training.step_s is None:
        flops = group.chips * group.tflops * 1e12 * group.utilisation * group.speed
        return flops / (FLOPS_A_TOKEN * training.parameters)
    weights = [each.chips * each.tflops * each.utilisation * each.speed for each in cluster.groups]
    share = group.chips * group.tflops * group.utilisation * group.speed / sum(weights)
    return share * training.batch_tokens / training.step_s


def step_s(cluster: ClusterFile) -> float:
    """Of all chips together; with M learners each takes its share of the batch in the same time."""
    if cluster.training.step_s is not None:
        return cluster.training.step_s
    return cluster.training.batch_tokens / sum(tokens_per_s(g, cluster) for g in cluster.groups)


def settings(cluster: ClusterFile, totals: tuple[int, ...] = LEARNERS) -> Iterator[Setting]:
    """All that are tried, each once."""
    seen: set[tuple[int, ...]] = set()
    for total in totals:
        learners = tuple(shared(group, total, cluster) for group in cluster.groups)
        if learners in seen:
            continue
        seen.add(learners)
        single = any(
            count == group.chips // group.slice_chips and count > 1
            for group, count in zip(cluster.groups, learners, strict=True)
        )
        for every in INTERVALS:
            for wire in WIRES:
                yield Setting(learners, every, wire, 0)
                if single:
                    yield Setting(learners, every, wire, 1)


def shared(group: GroupTable, total: int, cluster: ClusterFile) -> int:
    """How many of so many learners a group has: near its share of the chips, and even if it can."""
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
    """Of the placement of the syncer that works best, then costs least."""
    found = [_traffic(setting, cluster, region.name) for region in cluster.regions]
    return min(found, key=lambda t: (t.busiest > SLACK, t.egress_usd_per_hour, t.busiest))


def _traffic(setting: Setting, cluster: ClusterFile, syncer: str) -> SettingTraffic:
    fragment_bits = cluster.training.parameters / setting.fragments * BITS[setting.wire]
    gap_s = setting.every / setting.fragments * step_s(cluster)
    one = fragment_bits / gap_s / 1e9
    members = {region.name: 0 for region in cluster.regions}
    for group, count in zip(cluster.groups, setting.learners, strict=True):
        members[group.region] += count
    away = setting.total - members[syncer]
    gbit_s = {name: one * (away if name == syncer else count) for name, count in members.items()}
    uses = {name: load / cluster.region(name).gbit_s for name, load in gbit_s.items()}
    where = max(uses, key=lambda name: uses[name])
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
        one if away else 0.0,
        uses[where],
        where,
        sum(sent_gb_per_hour.values()),
        usd,
        overlap,
    )


@dataclass(frozen=True, slots=True)
class ShardNodes:
    """Processes that hold the model; each on a node of its own. `why`: what asks for so many."""

    count: int
    memory_gb: float
    gbit_s: float
    store_every: int
    why: str


def shards(setting: Setting, moving: SettingTraffic, cluster: ClusterFile) -> ShardNodes:
    """How many nodes syncer and shards need, and how often a version can be stored.

    Memory is 12 bytes a parameter, the differences kept, and contributions in flight (the shard's
    own account, docs/ablations.md). More nodes than fragments are of no use: then the count is
    larger than `setting.fragments`, and nothing works.
    """
    wire_bytes = BITS[setting.wire] / 8
    flying = min(1.0, (moving.overlap * setting.fragments / setting.every + 1) / setting.fragments)
    a_parameter = FIXED_BYTES + KEPT_DIFFERENCES * wire_bytes + setting.total * wire_bytes * flying
    memory_gb = cluster.training.parameters * a_parameter / BYTES_PER_GB
    gap_s = setting.every / setting.fragments * step_s(cluster)
    one = cluster.training.parameters / setting.fragments * BITS[setting.wire] / gap_s / 1e9
    gbit_s = setting.total * one
    by_memory = math.ceil(memory_gb / cluster.syncer.memory_gb)
    by_link = math.ceil(gbit_s / (SLACK * cluster.syncer.gbit_s))
    count = max(1, by_memory, by_link)
    stored_gb_s = cluster.training.parameters / setting.fragments * FIXED_BYTES / gap_s / 1e9
    disk = DISK_SHARE * cluster.syncer.disk_gb_s * count
    why = "their memory" if by_memory >= by_link else "their links"
    return ShardNodes(
        count,
        memory_gb,
        gbit_s,
        max(1, math.ceil(stored_gb_s / disk)),
        "one node is enough" if count == 1 else f"{why} ask for {count}",
    )
