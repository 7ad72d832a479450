"""The ways to train on a cluster: learners of each group, H, wire format and spares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.config.machines import ClusterFile, GroupTable

LEARNERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""The total numbers of learners to try; a group has the nearest number that its slices allow."""
INTERVALS = (24, 48, 96, 192)
"""The values of H to try. The paper uses 24; no shorter interval was published to learn as well."""
WIRES = ("bf16", "int8", "int4")
"""The wire formats to try, widest first; the first of equals is taken."""
FRAGMENTS = 24
SLACK = 0.99
"""The share of a link that may be used."""
UNEVEN = 1.35
"""The factor by which a group's learners may differ from its share to divide slices evenly."""
FLOPS_A_TOKEN = 6.0
"""FLOPs per active parameter and token, forward and backward (arXiv:2001.08361)."""


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


def tokens_per_s(group: GroupTable, cluster: ClusterFile) -> float:
    """Return a group's throughput without failures."""
    training = cluster.training
    if training.step_s is None:
        flops = group.chips * group.tflops * 1e12 * group.utilisation * group.speed
        return flops / (FLOPS_A_TOKEN * (training.active_parameters or training.parameters))
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
