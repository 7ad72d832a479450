"""`archipelago bench merge`: how near the merge comes to moving the bytes that it must move.

Two yardsticks run beside it. A copy moves one stream in and one out; it is counted as two, though
what is written is read first. A sum of M streams into one is what a merge could be at best: nearly
all of it reads. Against that every stream is counted that moves (`Workload.streams`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from archipelago.lab.bench import procfs
from archipelago.lab.bench.stats import median, told
from cluster.shard.arrays import ArrayArithmetic, Method, fresh, warm_up
from cluster.shard.files import NoFiles
from cluster.shard.retention import Retention
from cluster.shard.shard import Shard
from cluster.storage.fragments import Arrays
from coordinator.alignment import Part
from coordinator.codec import Wire, encode
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Leaf, Piece, cut
from coordinator.kernels import frozen
from coordinator.merge import MergeRule, merge_into, norms
from coordinator.outer import OuterRule
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
from coordinator.tiles import JOB, Spread

OUTER = OuterRule(learning_rate=0.7, momentum=0.9, nesterov=True)
SUM_TILE = 1 << 12
"""Elements of a tile of the sum: 16 kB of f32, which stay in the first level cache."""
KEEP_DIFFERENCES = 4
"""As a configuration has it where it says nothing."""
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workload:
    """M contributions of N elements, in f32 and as they come over the wire: to one tensor, and to a
    fragment of as many `pieces`."""

    contributions: int
    elements: int
    wire: Wire
    threads: int
    pieces: int = 1

    @property
    def moved_bytes(self) -> dict[str, int]:
        """Reads and writes that cannot be avoided, contributions counted as f32 whatever the wire:
        master and momentum are read and written, RDA reads the contributions twice."""
        m, n = self.contributions, 4 * self.elements
        return {"memcpy": 2 * n, "mean": (m + 4) * n, "rda": (2 * m + 4) * n, "gate": m * n}

    @property
    def streams(self) -> dict[str, int]:
        """Count the streams of f32 elements that move: also those read because they will be
        written, and RDA's third read of the contributions, for their norms, when they arrive."""
        m = self.contributions
        return {"sum": m + 2, "mean": m + 4, "rda": 3 * m + 4}

    @property
    def leaves(self) -> list[Leaf]:
        """The tensors of the fragment of many pieces, as equal as can be."""
        cuts = [self.elements * i // self.pieces for i in range(self.pieces + 1)]
        return [Leaf(f"w{i}", (b - a,)) for i, (a, b) in enumerate(pairwise(cuts)) if b > a]


def merge(workload: Workload, *, repeats: int, say: Callable[[str], None]) -> dict[str, object]:
    """Memcpy, sum, mean, RDA and the gate's norms in turn, `repeats` times, by the same threads.

    GB/s are of `moved_bytes`; a fraction is that of a merge to that of the memcpy beside it.
    `roofline_gb_s` and `..._of_roofline` are of `streams`, RDA's with the gate that goes before it;
    `..._in_pieces` of a fragment of so many pieces.
    `f32_contributions_per_s` and `wire_...` are merged by RDA, in f32 and as the wire has them, and
    `wire_speedup` is the ratio.
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

    Errors: `UserMistake` where the kernel has none (`procfs`).
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
        lambda: (ArrayArithmetic(layout, method, map), Stored()), Retention(Anchor.BASE, 0, every=1)
    )
    shard.seed(fresh([np.zeros(n, np.float32)]))

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
        in_flight_bytes, process_bytes = shard.bytes_held, procfs.own_bytes(pid) - before_bytes
        shard.merge(Merge(p, newer, items, "all delivered"))
        shard.store(p, newer)
        shard.publish(Publish(p, newer, older, (), ()))
    return {
        "shard_bytes_per_parameter": shard.bytes_held / n,
        "shard_in_flight_bytes_per_parameter": in_flight_bytes / n,
        "shard_process_bytes_per_parameter": process_bytes / n,
    }


class Stored(NoFiles):
    """Files that cost nothing until a shard goes back to what is stored, which none does here."""

    def has(self, p: Fragment, version: Version) -> bool:
        return True

    def load(self, p: Fragment, version: Version) -> Arrays:
        raise AssertionError("a merge of the bench is sound")


def _tasks(workload: Workload, spread: Spread) -> dict[str, Callable[[], object]]:
    m, n, wire = workload.contributions, workload.elements, workload.wire
    one, many = (cut(leaves, 1).fragments[0] for leaves in ([Leaf("w", (n,))], workload.leaves))
    chance = np.random.Generator(np.random.PCG64(0))
    flats = chance.standard_normal((m, n), np.float32)
    master, momentum = flats[0].copy(), np.zeros(n, np.float32)
    source, target = flats[0], np.zeros(n, np.float32)
    by_wire = {w: [frozen(encode(w, flat)) for flat in flats] for w in {Wire.F32, wire}}

    def copy(start: int) -> None:
        np.copyto(target[start : start + JOB], source[start : start + JOB])

    def merging(
        rule: MergeRule, w: Wire, pieces: Sequence[Piece], *, measure: bool = True
    ) -> Callable[[], object]:
        parts = [Part(payload, 1 / m, norms(payload, pieces)) for payload in by_wire[w]]
        return lambda: merge_into(
            master,
            momentum,
            rule=rule,
            outer=OUTER,
            pieces=pieces,
            parts=parts,
            spread=spread,
            trial=() if measure else None,  # directions are measured, as in a run
        )

    def gating(w: Wire, pieces: Sequence[Piece]) -> Callable[[], object]:
        return lambda: [norms(payload, pieces, spread) for payload in by_wire[w]]

    summed = _summing(flats, target)
    return {
        "memcpy": lambda: list(spread(copy, range(0, n, JOB))),
        "sum": lambda: list(spread(summed, range(0, n, JOB))),
        "mean": merging(MergeRule.MEAN, Wire.F32, one),
        "mean_alone": merging(MergeRule.MEAN, Wire.F32, one, measure=False),
        "rda": merging(MergeRule.RDA, Wire.F32, one),
        "gate": gating(Wire.F32, one),
        "mean_in_pieces": merging(MergeRule.MEAN, Wire.F32, many),
        "rda_in_pieces": merging(MergeRule.RDA, Wire.F32, many),
        "gate_in_pieces": gating(Wire.F32, many),
        "wire_rda": merging(MergeRule.RDA, wire, one),
        "wire_gate": gating(wire, one),
    }


def _summing(streams: NDArray[np.float32], target: Flat) -> Callable[[int], None]:
    """Add up one job of all streams [M, N] into the target [N], in one call that holds no GIL: each
    stream is read once, the sum is written once, and nothing else is done on the way."""
    import numba

    def add_up(total: Flat, rows: NDArray[np.float32], start: int, stop: int) -> None:
        for first in range(start, stop, SUM_TILE):
            last = min(first + SUM_TILE, stop)
            into = total[first:last]
            into[:] = 0
            fours = rows.shape[0] // 4 * 4
            for row in range(0, fours, 4):
                a, b = rows[row, first:last], rows[row + 1, first:last]
                c, d = rows[row + 2, first:last], rows[row + 3, first:last]
                for i in range(into.size):
                    into[i] += (a[i] + b[i]) + (c[i] + d[i])
            for row in range(fours, rows.shape[0]):
                a = rows[row, first:last]
                for i in range(into.size):
                    into[i] += a[i]

    quick: Callable[..., None] = numba.njit(nogil=True)(add_up)
    return lambda job: quick(target, streams, job, min(job + JOB, target.size))


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
        "pieces": len(workload.leaves),
        "samples": len(seconds["memcpy"]),
    }
    speeds = {name: [moved[name] / s / 1e9 for s in seconds[name]] for name in moved}
    for name, speed in speeds.items():
        figures[f"{name}_gb_s"] = median(speed).value
    for name in ("mean", "rda"):
        pairs = zip(speeds[name], speeds["memcpy"], strict=True)
        middle = median([ours / copied for ours, copied in pairs])
        figures |= told(f"{name}_fraction", middle) | {"coverage": middle.coverage}
    figures |= _against_roofline(workload, seconds)
    pairs = zip(seconds["mean"], seconds["mean_alone"], strict=True)
    figures |= told("directions_cost", median([whole_s / alone_s for whole_s, alone_s in pairs]))
    for name, task in (("f32", "rda"), ("wire", "wire_rda")):
        figures[f"{name}_contributions_per_s"] = median([m / s for s in seconds[task]]).value
    pairs = zip(seconds["rda"], seconds["wire_rda"], strict=True)
    figures |= told("wire_speedup", median([plain_s / wire_s for plain_s, wire_s in pairs]))
    figures["wire_gate_gb_s"] = median(
        [moved["gate"] / s / 1e9 for s in seconds["wire_gate"]]
    ).value
    return figures


def _against_roofline(workload: Workload, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Bytes of all streams per second, and their share of the same of the sum beside it."""
    streams, n = workload.streams, 4 * workload.elements
    roofline = [streams["sum"] * n / s / 1e9 for s in seconds["sum"]]
    figures: dict[str, object] = {"roofline_gb_s": median(roofline).value}
    for where in ("", "_in_pieces"):
        took_s = {
            "mean": seconds[f"mean{where}"],
            "rda": [
                gate_s + merge_s
                for gate_s, merge_s in zip(
                    seconds[f"gate{where}"], seconds[f"rda{where}"], strict=True
                )
            ],
        }
        for name, samples in took_s.items():
            speeds = [streams[name] * n / s / 1e9 for s in samples]
            shares = [ours / top for ours, top in zip(speeds, roofline, strict=True)]
            figures[f"{name}{where}_streams_gb_s"] = median(speeds).value
            figures |= told(f"{name}{where}_of_roofline", median(shares))
    return figures


def threads_here() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
