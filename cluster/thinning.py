"""Growing series of a bounded length, evenly spread from their first point to their last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Point = TypeVar("Point")


def thin(points: list[Point], most: int, place: Callable[[Point], float]) -> None:
    """Delete inner points in place until at most `most` are left; the first and last one stay.

    `most`: at least 2. `place`: the position of a point on the axis of the series, in any unit; it
    grows from point to point. The point whose neighbors are the closest together is deleted first,
    the oldest of several. So a deletion leaves no gap above twice the mean gap, however often a
    point is added and one deleted, and equal series are thinned equally.
    """
    if len(points) <= most:
        return
    places = [place(each) for each in points]
    while len(points) > most:
        spans = [after - before for before, after in zip(places, places[2:], strict=False)]
        inner = 1 + spans.index(min(spans))
        del points[inner], places[inner]
