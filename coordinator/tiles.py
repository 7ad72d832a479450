"""The division of the work on a fragment into tiles that fit a cache, and jobs of tiles.

The division does not depend on threads. A fixed sixteenth of the tiles stands for all where
directions and lengths are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

from coordinator.kernels import TILE

JOB = 8 * TILE
"""Elements that one thread works on before it asks for more: some 100 us of work."""
SHARE = 16
"""One tile in this many is measured."""

S = TypeVar("S")
T = TypeVar("T")


class Spread(Protocol):
    """A `map`, possibly over several threads, with results in the order of the items."""

    def __call__(self, work: Callable[[S], T], items: Iterable[S], /) -> Iterable[T]:
        """Return the results of `work` for each item, in order."""
        ...


class Tile(NamedTuple):
    """A range of elements of a fragment that lies in one piece of it, at most TILE long."""

    piece: int
    start: int
    stop: int


def is_looked_at(start: int) -> bool:
    """Return whether the tile that begins at this element is one of the measured ones."""
    return start // TILE % SHARE == 0


def jobs_of(sizes: Sequence[int], which: Iterable[int]) -> Iterator[list[Tile]]:
    """Cut the pieces `which`, of `sizes` elements, into tiles, in jobs of about JOB elements."""
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
