"""How the work on a fragment is cut, whoever does it: tiles that fit a cache, and jobs of them.

A sixteenth of the tiles, the same for everyone, stands for all where a fragment is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

from coordinator.kernels import TILE

JOB = 8 * TILE
"""Elements that one thread works on before it asks for more: some 100 us."""
SHARE = 16
"""One tile in so many is looked at to learn where contributions point."""

S = TypeVar("S")
T = TypeVar("T")


class Spread(Protocol):
    """`map`, or one that uses several threads: results in the order of the items."""

    def __call__(self, work: Callable[[S], T], items: Iterable[S], /) -> Iterable[T]: ...


class Tile(NamedTuple):
    """Elements of a fragment that belong to one piece of it, at most TILE."""

    piece: int
    start: int
    stop: int


def is_looked_at(start: int) -> bool:
    """Is a tile that begins at this element one of those that stand for all?"""
    return start // TILE % SHARE == 0


def jobs_of(sizes: Sequence[int], which: Iterable[int]) -> Iterator[list[Tile]]:
    """Cut these of the pieces of `sizes` elements into tiles, in order, by some JOB elements."""
    job, held = list[Tile](), 0
    stops = list(accumulate(sizes))
    for i in which:
        for start in range(stops[i] - sizes[i], stops[i], TILE):
            job.append(Tile(i, start, min(stops[i], start + TILE)))
            held += job[-1].stop - start
            if held >= JOB:
                yield job
                job, held = [], 0
    if job:
        yield job
