"""In which windows a fragment goes from its leaves to its flat form, one after the other, and back:
ranges of the flat form, and the rows of leaves that each is made of. Whole numbers only, found
before anything is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from jax.sharding import NamedSharding

from coordinator.fragments import Piece
from islands.mesh_shape import AXES, names_of


class Lying(NamedTuple):
    """Shape of a leaf, and where it lies."""

    shape: tuple[int, ...]
    where: NamedSharding


@dataclass(frozen=True, slots=True)
class SplitLeaf:
    """How a leaf is split: along each of its axes the names of the mesh's axes, and in how many."""

    shape: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]
    ways: tuple[int, ...]

    @classmethod
    def of(cls, lying: Lying) -> SplitLeaf:
        """A number counts as one row."""
        shape = lying.shape or (1,)
        spec = [*lying.where.spec, *[None] * len(shape)][: len(shape)]
        names = tuple(names_of(part) for part in spec)
        sizes = lying.where.mesh.shape
        return cls(shape, names, tuple(math.prod(sizes[name] for name in each) for each in names))

    @property
    def own(self) -> tuple[int, ...]:
        """The shape of what one device has."""
        return tuple(side // ways for side, ways in zip(self.shape, self.ways, strict=True))

    @property
    def alone(self) -> tuple[str, ...]:
        """The axes of the mesh along which all devices have the same of it."""
        named = {name for names in self.names for name in names}
        return tuple(name for name in AXES if name not in named)


@dataclass(frozen=True, slots=True)
class Rows:
    """So many rows, on axis `axis`, of leaf `number`, at one place on each axis before it."""

    number: int
    leaf: SplitLeaf
    axis: int
    count: int

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.leaf.shape[self.axis + 1 :]

    @property
    def own_row(self) -> tuple[int, ...]:
        """The shape of what one device has of a row."""
        return self.leaf.own[self.axis + 1 :]

    @property
    def size(self) -> int:
        """Elements."""
        return self.count * math.prod(self.row)


class WindowPlace(NamedTuple):
    """Where rows begin. `at`: on the axes before theirs, in what `owner` has of the leaf, who is
    counted along the axes of the mesh that those are split over; `start`: on their own, of the
    whole leaf; `piece`: of which piece of the fragment they are."""

    at: tuple[int, ...]
    owner: int
    start: int
    piece: int


class Window(NamedTuple):
    """A range of the flat form that is moved at once, as numbers that differ from window to window:
    its first element is number `rest` of what device `device` has. `places`: of its rows."""

    device: int
    rest: int
    places: tuple[WindowPlace, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """Windows that are made of rows of the same leaves, as many of each."""

    rows: tuple[Rows, ...]
    windows: tuple[Window, ...]

    @property
    def size(self) -> int:
        """Elements of a window."""
        return sum(each.size for each in self.rows)


def moves_of(
    pieces: Sequence[Piece], leaves: Sequence[Lying], wanted: Sequence[bool], each: int, room: int
) -> list[Moves]:
    """All windows of the wanted pieces, in their order; those that follow each other and are alike
    are moves of one kind.

    `each`: elements of the flat form that a device has; `room`: those of the largest window.
    """
    split, offset = [SplitLeaf.of(lying) for lying in leaves], 0
    bundles = list[tuple[int, list[tuple[Rows, WindowPlace]]]]()
    size, end = 0, -1
    for number, (piece, is_wanted) in enumerate(zip(pieces, wanted, strict=True)):
        fixed = () if piece.layer is None else (piece.layer,)
        cut = _cut(piece.leaf, split[piece.leaf], fixed, piece.start, piece.stop, number, room)
        for rows, place in cut if is_wanted else ():
            if not bundles or end != offset or size + rows.size > room:
                bundles.append((offset, []))
                size = 0
            bundles[-1][1].append((rows, place))
            offset, size = offset + rows.size, size + rows.size
            end = offset
        offset += 0 if is_wanted else piece.size
    alike = groupby(bundles, key=lambda bundle: tuple(rows for rows, _ in bundle[1]))
    return [
        Moves(
            rows,
            tuple(
                Window(*divmod(begins, each), tuple(place for _, place in parts))
                for begins, parts in found
            ),
        )
        for rows, found in alike
    ]


def _cut(
    number: int,
    leaf: SplitLeaf,
    fixed: tuple[int, ...],
    start: int,
    stop: int,
    piece: int,
    room: int,
) -> Iterator[tuple[Rows, WindowPlace]]:
    """The rows `start` to `stop` of what the leaf has at `fixed` on its first axes, as many at a
    time as there is room for; a row that is too large is cut along its own."""
    axis = len(fixed)
    if axis == len(leaf.shape):  # one number to each place on the first axis
        fixed, start, stop, axis = fixed[:-1], fixed[-1], fixed[-1] + 1, axis - 1
    width = math.prod(leaf.shape[axis + 1 :])
    if width > room:
        for row in range(start, stop):
            yield from _cut(number, leaf, (*fixed, row), 0, leaf.shape[axis + 1], piece, room)
        return
    own = tuple(x % side for x, side in zip(fixed, leaf.own, strict=False))
    owner = 0
    for x, side, ways in zip(fixed, leaf.own, leaf.ways, strict=False):
        owner = owner * ways + x // side
    windows = -(-(stop - start) // (room // width))
    most = -(-(stop - start) // windows)  # in about equal parts: those that are alike are one loop
    for begin in range(start, stop, most):
        count = min(most, stop - begin)
        yield Rows(number, leaf, axis, count), WindowPlace(own, owner, begin, piece)
