"""The workload of `bench merge`: merges of M contributions of N elements, and two yardsticks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.alignment import AlignmentPart
from coordinator.codec import Wire, encode
from coordinator.fragments import Flat, Leaf, Piece, cut
from coordinator.kernels import frozen
from coordinator.merge import MergeRule, merge_into, norms
from coordinator.outer import OuterRule
from coordinator.tiles import JOB, Spread

OUTER = OuterRule(learning_rate=0.7, momentum=0.9, nesterov=True)
"""The outer optimizer of the measured merges."""
SUM_TILE = 1 << 12
"""Elements in a tile of the sum: 16 kB of f32, which stay in the first-level cache."""
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workload:
    """M contributions of N elements, in f32 and in the wire's encoding.

    They are merged into one tensor, and into a fragment of many pieces.
    """

    contributions: int
    """The number of contributions, M."""
    elements: int
    """The number of elements of each, N."""
    wire: Wire
    """The encoding to compare with f32."""
    threads: int
    """The number of threads."""
    pieces: int = 1
    """The number of pieces of the fragment of many pieces."""

    @property
    def moved_bytes(self) -> dict[str, int]:
        """The bytes of reads and writes that cannot be avoided, with contributions counted as f32.

        Master and momentum are read and written; RDA reads the contributions twice.
        """
        m, n = self.contributions, 4 * self.elements
        return {"memcpy": 2 * n, "mean": (m + 4) * n, "rda": (2 * m + 4) * n, "gate": m * n}

    @property
    def streams(self) -> dict[str, int]:
        """The number of streams of f32 elements that move.

        This counts memory that is read because it will be written, and RDA's third read of the
        contributions, for their norms, when they arrive.
        """
        m = self.contributions
        return {"sum": m + 2, "mean": m + 4, "rda": 3 * m + 4}

    @property
    def leaves(self) -> list[Leaf]:
        """The tensors of the fragment of many pieces, as equal in size as possible."""
        cuts = [self.elements * i // self.pieces for i in range(self.pieces + 1)]
        return [Leaf(f"w{i}", (b - a,)) for i, (a, b) in enumerate(pairwise(cuts)) if b > a]


def tasks_of(workload: Workload, spread: Spread) -> dict[str, Callable[[], object]]:
    """Return the tasks to time, by name; each call merges, sums or copies once."""
    m, n, wire = workload.contributions, workload.elements, workload.wire
    single_piece, many_pieces = (
        cut(leaves, 1).fragments[0] for leaves in ([Leaf("w", (n,))], workload.leaves)
    )
    rng = np.random.Generator(np.random.PCG64(0))
    flats = rng.standard_normal((m, n), np.float32)
    master, momentum = flats[0].copy(), np.zeros(n, np.float32)
    source, target = flats[0], np.zeros(n, np.float32)
    by_wire = {w: [frozen(encode(w, flat)) for flat in flats] for w in {Wire.F32, wire}}

    def copy(start: int) -> None:
        np.copyto(target[start : start + JOB], source[start : start + JOB])

    def merging(
        rule: MergeRule, w: Wire, pieces: Sequence[Piece], *, measure: bool = True
    ) -> Callable[[], object]:
        parts = [AlignmentPart(payload, 1 / m, norms(payload, pieces)) for payload in by_wire[w]]
        return lambda: merge_into(
            master,
            momentum,
            rule=rule,
            outer=OUTER,
            pieces=pieces,
            parts=parts,
            spread=spread,
            trial=() if measure else None,  # a run measures directions
        )

    def gating(w: Wire, pieces: Sequence[Piece]) -> Callable[[], object]:
        return lambda: [norms(payload, pieces, spread) for payload in by_wire[w]]

    summed = _summing(flats, target)
    return {
        "memcpy": lambda: list(spread(copy, range(0, n, JOB))),
        "sum": lambda: list(spread(summed, range(0, n, JOB))),
        "mean": merging(MergeRule.MEAN, Wire.F32, single_piece),
        "mean_alone": merging(MergeRule.MEAN, Wire.F32, single_piece, measure=False),
        "rda": merging(MergeRule.RDA, Wire.F32, single_piece),
        "gate": gating(Wire.F32, single_piece),
        "mean_in_pieces": merging(MergeRule.MEAN, Wire.F32, many_pieces),
        "rda_in_pieces": merging(MergeRule.RDA, Wire.F32, many_pieces),
        "gate_in_pieces": gating(Wire.F32, many_pieces),
        "wire_rda": merging(MergeRule.RDA, wire, single_piece),
        "wire_gate": gating(wire, single_piece),
    }


def _summing(streams: NDArray[np.float32], target: Flat) -> Callable[[int], None]:
    """Return a function that adds one job of all streams [M, N] to the target [N].

    It is one call without the GIL. It reads each stream once, writes the sum once, and does nothing
    else.
    """
    import numba

    def add_up(total: Flat, rows: NDArray[np.float32], start: int, stop: int) -> None:
        for first in range(start, stop, SUM_TILE):
            last = min(first + SUM_TILE, stop)
            tile = total[first:last]
            tile[:] = 0
            full_stop = rows.shape[0] // 4 * 4
            for row in range(0, full_stop, 4):
                a, b = rows[row, first:last], rows[row + 1, first:last]
                c, d = rows[row + 2, first:last], rows[row + 3, first:last]
                for i in range(tile.size):
                    tile[i] += (a[i] + b[i]) + (c[i] + d[i])
            for row in range(full_stop, rows.shape[0]):
                a = rows[row, first:last]
                for i in range(tile.size):
                    tile[i] += a[i]

    quick: Callable[..., None] = numba.njit(nogil=True)(add_up)
    return lambda job: quick(target, streams, job, min(job + JOB, target.size))


def spread_over(pool: ThreadPoolExecutor, threads: int) -> Spread:
    """Return a function that spreads work over the threads of a pool."""

    def spread(work: Callable[[S], T], items: Iterable[S]) -> Iterable[T]:
        return map(work, items) if threads == 1 else pool.map(work, items)

    return spread


def threads_here() -> int:
    """Return the number of threads that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
