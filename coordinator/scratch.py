"""The scratch arrays of a thread that works on a tile."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.inner_products import LANES
from coordinator.kernels import BLOCK, TILE


class Room(NamedTuple):
    """The scratch arrays of one thread."""

    total: NDArray[np.float32]
    """A total of decoded values."""
    lanes: NDArray[np.float64]
    """Partial sums in f64."""


_FREE: list[Room] = []
"""Free scratch arrays, for reuse: the first use of a page costs more than the work on it."""


@contextmanager
def room_of_my_own() -> Generator[Room]:
    """Lend this thread scratch arrays that no other thread uses."""
    try:
        room = _FREE.pop()
    except IndexError:
        tile = TILE + 2 * BLOCK  # a tile that begins and ends within blocks
        room = Room(np.empty(tile, np.float32), np.empty(LANES))
    try:
        yield room
    finally:
        _FREE.append(room)
