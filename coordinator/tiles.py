"""The division of the work on a fragment into tiles that fit a cache, and jobs of tiles.

The division does not depend on threads. A fixed sixteenth of the tiles stands for all where
directions and lengths are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.kernels import TILE, frozen

JOB = 8 * TILE
"""Elements that one thread works on before it asks for more: some 100 us of work."""
SHARE = 16
"""One tile in this many is measured."""
CACHED = 128
"""Divisions that are kept: a fragment has few, and a merge uses them again each time."""

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


class TileRun(NamedTuple):
    """Adjacent tiles that go to a kernel together: one, or several with a limit on their total."""

    tiles: tuple[Tile, ...]
    bounds: NDArray[np.int64]
    """The bounds of the tiles, one more than tiles, counted from the start of the run."""
    pieces: NDArray[np.int64]
    """The piece of each tile."""
    start: int
    """The first element."""
    stop: int
    """The end of the last tile."""


def run_of(tiles: Sequence[Tile]) -> TileRun:
    """Return a run of adjacent tiles."""
    start, stop = tiles[0].start, tiles[-1].stop
    bounds = frozen(np.array([0, *(tile.stop - start for tile in tiles)]))
    return TileRun((*tiles,), bounds, np.array([tile.piece for tile in tiles]), start, stop)


def is_looked_at(start: int) -> bool:
    """Return whether the tile that begins at this element is one of the measured ones."""
    return start // TILE % SHARE == 0


def jobs_of(sizes: Iterable[int], which: Iterable[int]) -> tuple[tuple[Tile, ...], ...]:
    """Cut the pieces `which`, of `sizes` elements, into tiles, in jobs of about JOB elements."""
    return _jobs(tuple(sizes), _key(which))


def runs_of(
    sizes: Iterable[int], which: Iterable[int], *, measured: bool = False, most: int = TILE
) -> tuple[tuple[TileRun, ...], ...]:
    """Join the tiles of each job to runs, so that many small pieces cost few calls.

    `most`: the largest number of elements of a run of several tiles.
    `measured`: whether no run has both tiles that are looked at and others.
    """
    return _runs(tuple(sizes), _key(which), measured, most)


def _key(which: Iterable[int]) -> Sequence[int]:
    """Return the numbers in a form that is a key of a cache: a range, or a tuple."""
    return which if isinstance(which, range) else tuple(which)


@lru_cache(CACHED)
def _jobs(sizes: tuple[int, ...], which: Sequence[int]) -> tuple[tuple[Tile, ...], ...]:
    jobs, job, held = list[tuple[Tile, ...]](), list[Tile](), 0
    stops = list(accumulate(sizes))
    for i in which:
        for start in range(stops[i] - sizes[i], stops[i], TILE):
            job.append(Tile(i, start, min(stops[i], start + TILE)))
            held += job[-1].stop - start
            if held >= JOB:
                jobs.append((*job,))
                job, held = [], 0
    return (*jobs, (*job,)) if job else (*jobs,)


@lru_cache(CACHED)
def _runs(
    sizes: tuple[int, ...], which: Sequence[int], measured: bool, most: int
) -> tuple[tuple[TileRun, ...], ...]:
    return tuple(tuple(_joined(job, measured, most)) for job in _jobs(sizes, which))


def _joined(job: Iterable[Tile], measured: bool, most: int) -> Iterator[TileRun]:
    tiles = list[Tile]()
    for tile in job:
        if tiles:
            adjacent = tile.start == tiles[-1].stop and tile.stop - tiles[0].start <= most
            alike = is_looked_at(tile.start) == is_looked_at(tiles[0].start)
            if not adjacent or (measured and not alike):
                yield run_of(tiles)
                tiles = []
        tiles.append(tile)
    if tiles:
        yield run_of(tiles)
