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
    """Adjacent tiles that go to a kernel together: one tile, or several of at most TILE in all."""

    tiles: tuple[Tile, ...]
    bounds: NDArray[np.int64]
    """The bounds of the tiles, one more than tiles, counted from the start of the run."""

    @property
    def start(self) -> int:
        """The first element."""
        return self.tiles[0].start

    @property
    def stop(self) -> int:
        """The end of the last tile."""
        return self.tiles[-1].stop


def run_of(tiles: Sequence[Tile]) -> TileRun:
    """Return a run of adjacent tiles."""
    start = tiles[0].start
    return TileRun((*tiles,), frozen(np.array([0, *(tile.stop - start for tile in tiles)])))


def is_looked_at(start: int) -> bool:
    """Return whether the tile that begins at this element is one of the measured ones."""
    return start // TILE % SHARE == 0


def jobs_of(sizes: Iterable[int], which: Iterable[int]) -> tuple[tuple[Tile, ...], ...]:
    """Cut the pieces `which`, of `sizes` elements, into tiles, in jobs of about JOB elements."""
    return _jobs(tuple(sizes), tuple(which))


def runs_of(
    sizes: Iterable[int], which: Iterable[int], *, measured: bool = False
) -> tuple[tuple[TileRun, ...], ...]:
    """Join the tiles of each job to runs, so that many small pieces cost few calls.

    `measured`: whether tiles that are looked at are runs of their own.
    """
    return _runs(tuple(sizes), tuple(which), measured)


@lru_cache(CACHED)
def _jobs(sizes: tuple[int, ...], which: tuple[int, ...]) -> tuple[tuple[Tile, ...], ...]:
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
    sizes: tuple[int, ...], which: tuple[int, ...], measured: bool
) -> tuple[tuple[TileRun, ...], ...]:
    return tuple(tuple(_joined(job, measured)) for job in _jobs(sizes, which))


def _joined(job: Iterable[Tile], measured: bool) -> Iterator[TileRun]:
    tiles, was_apart = list[Tile](), False
    for tile in job:
        apart = measured and is_looked_at(tile.start)
        joins = tiles and tile.start == tiles[-1].stop and tile.stop - tiles[0].start <= TILE
        if tiles and (was_apart or apart or not joins):
            yield run_of(tiles)
            tiles = []
        tiles.append(tile)
        was_apart = apart
    if tiles:
        yield run_of(tiles)
