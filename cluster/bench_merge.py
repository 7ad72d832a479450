"""`archipelago bench merge`: how near the merge comes to moving the bytes that it must move."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cluster import meter
from cluster.bench import median, told
from cluster.shard import Shard, fresh, warm_up
from coordinator.codec import Wire, encode
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Leaf, cut
from coordinator.kernels import frozen
from coordinator.merge import JOB, MergeRule, Part, Spread, merge_into, norms
from coordinator.outer import OuterRule
from coordinator.protocol import (
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

OUTER = OuterRule(learning_rate=0.7, momentum=0.9)
KEEP_DIFFERENCES = 4
"""As a configuration has it where it says nothing."""
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workload:
    """M contributions of N elements to one tensor, in f32 and as they come over the wire."""

    contributions: int
    elements: int
    wire: Wire
    threads: int

    @property
    def moved_bytes(self) -> dict[str, int]:
        """Reads and writes that cannot be avoided, contributions counted as f32 whatever the wire:
        master and momentum are read and written, RDA reads the contributions twice."""
        m, n = self.contributions, 4 * self.elements
        return {"memcpy": 2 * n, "mean": (m + 4) * n, "rda": (2 * m + 4) * n, "gate": m * n}


def merge(workload: Workload, *, repeats: int, say: Callable[[str], None]) -> dict[str, object]:
    """Memcpy, mean, RDA and the gate's norms in turn, `repeats` times, by the same threads.

    GB/s are of `moved_bytes`; a fraction is that of a merge to that of the memcpy beside it.
    `f32_contributions_per_s` and `wire_...` are merged by RDA, in f32 and as the wire has them.
    `shard_...`: what a shard of such a tensor holds, and `memory` says how it is counted.
    """
    held = memory(workload)
    seconds: dict[str, list[float]] = {}
    with ThreadPoolExecutor(workload.threads) as pool:
        tasks = _tasks(workload, _spread(pool, workload.threads))
        for task in tasks.values():
            task()  # compiled, and every page touched
        for turn in range(repeats):
            for name, task in tasks.items():
                began_s = time.perf_counter()
                task()
                seconds.setdefault(name, []).append(time.perf_counter() - began_s)
            say(f"turn {turn + 1} of {repeats}: " + _line(workload, seconds))
    return _figures(workload, seconds) | held


def memory(workload: Workload) -> dict[str, float]:
    """Bytes of a shard after enough versions that as many differences are kept as ever will be.

    `shard_bytes_per_parameter`: between rounds, by its own count. `shard_in_flight_...`: with all
    contributions of a round. `shard_process_...`: by how much the memory of this process has grown
    then, by the kernel's count.

    Errors: `UserMistake` where the kernel has none (`cluster.meter`).
    """
    m, n, wire = workload.contributions, workload.elements, workload.wire
    layout, p, pid = cut([Leaf("w", (n,))], 1), Fragment(0), os.getpid()
    delta = np.random.Generator(np.random.PCG64(0)).standard_normal(n, np.float32)
    warm_up({wire})
    try:
        before_bytes = meter.own_bytes(pid)
    except OSError as error:
        raise UserMistake(f"memory is read off /proc, which is not as on Linux: {error}") from error
    shard = Shard(
        layout,
        fresh([np.zeros(n, np.float32)]),
        merge_rule=MergeRule.RDA,
        outer=OUTER,
        wire_up=wire,
        wire_down=wire,
        keep_differences=KEEP_DIFFERENCES,
    )

    def handed_in(learner: int, number: int) -> Item:
        life = Life(Island(f"bench-{learner}"), Incarnation(learner))
        said = ContributionId(life, p, number, number + 1)
        progress = Progress(number + 1, number + 1, Lease(0))
        facts = HandIn(said, Version(0, number), number, 1, layout.fingerprint, progress)
        payload = delta.copy() if wire is Wire.F32 else encode(wire, delta)
        return Item(shard.receive(facts, payload), 1 / m)

    in_flight_bytes = process_bytes = 0
    for number in range(KEEP_DIFFERENCES + 1):
        older, newer = Version(0, number), Version(0, number + 1)
        items = tuple(handed_in(learner, number) for learner in range(m))
        in_flight_bytes, process_bytes = shard.bytes_held, meter.own_bytes(pid) - before_bytes
        shard.merge(Merge(p, newer, items, "all delivered"))
        shard.publish(Publish(p, newer, older, (), ()))
    return {
        "shard_bytes_per_parameter": shard.bytes_held / n,
        "shard_in_flight_bytes_per_parameter": in_flight_bytes / n,
        "shard_process_bytes_per_parameter": process_bytes / n,
    }


def _tasks(workload: Workload, spread: Spread) -> dict[str, Callable[[], object]]:
    m, n, wire = workload.contributions, workload.elements, workload.wire
    pieces = cut([Leaf("w", (n,))], 1).fragments[0]
    chance = np.random.Generator(np.random.PCG64(0))
    flats: list[Flat] = [chance.standard_normal(n, np.float32) for _ in range(m)]
    master, momentum = flats[0].copy(), np.zeros(n, np.float32)
    source, target = flats[0], np.zeros(n, np.float32)
    by_wire = {w: [frozen(encode(w, flat)) for flat in flats] for w in {Wire.F32, wire}}
    parts = {
        w: [Part(payload, 1 / m, norms(payload, pieces)) for payload in payloads]
        for w, payloads in by_wire.items()
    }

    def copy(start: int) -> None:
        np.copyto(target[start : start + JOB], source[start : start + JOB])

    def merging(rule: MergeRule, w: Wire) -> Callable[[], None]:
        return lambda: merge_into(
            master,
            momentum,
            rule=rule,
            outer=OUTER,
            pieces=pieces,
            parts=parts[w],
            spread=spread,
        )

    return {
        "memcpy": lambda: list(spread(copy, range(0, n, JOB))),
        "mean": merging(MergeRule.MEAN, Wire.F32),
        "rda": merging(MergeRule.RDA, Wire.F32),
        "gate": lambda: [norms(payload, pieces, spread) for payload in by_wire[Wire.F32]],
        "wire_rda": merging(MergeRule.RDA, wire),
        "wire_gate": lambda: [norms(payload, pieces, spread) for payload in by_wire[wire]],
    }


def _spread(pool: ThreadPoolExecutor, threads: int) -> Spread:
    def spread(work: Callable[[S], T], items: Iterable[S]) -> Iterable[T]:
        return map(work, items) if threads == 1 else pool.map(work, items)

    return spread


def _line(workload: Workload, seconds: dict[str, list[float]]) -> str:
    moved = workload.moved_bytes
    return ", ".join(f"{name} {moved[name] / seconds[name][-1] / 1e9:.1f} GB/s" for name in moved)


def _figures(workload: Workload, seconds: dict[str, list[float]]) -> dict[str, object]:
    moved, m = workload.moved_bytes, workload.contributions
    figures: dict[str, object] = {
        "contributions": m,
        "elements": workload.elements,
        "threads": workload.threads,
        "wire": str(workload.wire),
        "samples": len(seconds["memcpy"]),
    }
    speeds = {name: [moved[name] / s / 1e9 for s in seconds[name]] for name in moved}
    for name, speed in speeds.items():
        figures[f"{name}_gb_s"] = median(speed).value
    for name in ("mean", "rda"):
        pairs = zip(speeds[name], speeds["memcpy"], strict=True)
        middle = median([ours / copied for ours, copied in pairs])
        figures |= told(f"{name}_fraction", middle) | {"coverage": middle.coverage}
    for name, task in (("f32", "rda"), ("wire", "wire_rda")):
        figures[f"{name}_contributions_per_s"] = median([m / s for s in seconds[task]]).value
    figures["wire_gate_gb_s"] = median(
        [moved["gate"] / s / 1e9 for s in seconds["wire_gate"]]
    ).value
    return figures


def threads_here() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
