"""The memory of a merging shard, by the shard's own count and by the kernel's."""

from __future__ import annotations

import os

import numpy as np

from archipelago.lab.bench import procfs
from archipelago.lab.bench.merge_workload import OUTER, Workload
from cluster.shard.arrays import ArrayArithmetic, fresh, warm_up
from cluster.shard.files import NoFiles
from cluster.shard.method import Method
from cluster.shard.retention import Retention
from cluster.shard.shard import Shard
from cluster.storage.fragments import Arrays
from coordinator.codec import Wire, encode
from coordinator.errors import UserMistake
from coordinator.fragments import Leaf, cut
from coordinator.merge import MergeRule
from coordinator.protocol import (
    Anchor,
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Merge,
    Progress,
    Publish,
    Version,
)

KEEP_DIFFERENCES = 16
"""The default of `sync.keep_differences`."""


def memory(workload: Workload) -> dict[str, float]:
    """Return the memory of a shard, after enough versions that it keeps all the differences it may.

    All figures are in bytes per parameter:

    - `shard_bytes_per_parameter`: between rounds, by the shard's own count.
    - `shard_in_flight_...`: with all contributions of a round.
    - `shard_process_...`: the growth of this process by then, by the kernel's count.

    Errors: `UserMistake` where the kernel has no such count (`procfs`).
    """
    m, n, wire = workload.contributions, workload.elements, workload.wire
    layout, p, pid = cut([Leaf("w", (n,))], 1), Fragment(0), os.getpid()
    delta = np.random.Generator(np.random.PCG64(0)).standard_normal(n, np.float32)
    warm_up({wire})
    try:
        before_bytes = procfs.own_bytes(pid)
    except OSError as error:
        raise UserMistake(f"memory is read off /proc, which is not as on Linux: {error}") from error
    method = Method(MergeRule.RDA, OUTER, wire, wire, KEEP_DIFFERENCES, None, 1.0)
    shard = Shard(
        lambda: (ArrayArithmetic(layout, method, map), FreeFiles()),
        Retention(Anchor.BASE, 0, every=1),
    )
    shard.seed(fresh([np.zeros(n, np.float32)]))

    def handed_in(learner: int, number: int) -> Item:
        life = Life(Island(f"bench-{learner}"), Incarnation(learner))
        contribution_id = ContributionId(life, p, number, number + 1)
        progress = Progress(number + 1, number + 1, Lease(0))
        facts = HandIn(contribution_id, Version(0, number), number, 1, layout.fingerprint, progress)
        payload = delta.copy() if wire is Wire.F32 else encode(wire, delta)
        return Item(shard.receive(facts, payload), 1 / m)

    in_flight_bytes = process_bytes = 0
    for number in range(KEEP_DIFFERENCES + 1):
        older, newer = Version(0, number), Version(0, number + 1)
        items = tuple(handed_in(learner, number) for learner in range(m))
        in_flight_bytes, process_bytes = shard.bytes_held, procfs.own_bytes(pid) - before_bytes
        shard.merge(Merge(p, newer, items, "all delivered"))
        shard.store(p, newer)
        shard.publish(Publish(p, newer, older, (), ()))
    return {
        "shard_bytes_per_parameter": shard.bytes_held / n,
        "shard_in_flight_bytes_per_parameter": in_flight_bytes / n,
        "shard_process_bytes_per_parameter": process_bytes / n,
    }


class FreeFiles(NoFiles):
    """Files that take no memory, for a shard that never goes back to a stored version."""

    def has(self, p: Fragment, version: Version) -> bool:
        """Return true: every version counts as stored."""
        return True

    def load(self, p: Fragment, version: Version) -> Arrays:
        """Raise `AssertionError`, since no merge of the benchmark is undone."""
        raise AssertionError("a merge of the bench is sound")
