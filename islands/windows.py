"""The windows in which a fragment is moved between its leaves and its flat form, one by one.

A window is a range of the flat form, with the rows of leaves that it is made of. All numbers are
integers, computed before anything is compiled.
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
    """The shape of a leaf, and its sharding."""

    shape: tuple[int, ...]
    where: NamedSharding


@dataclass(frozen=True, slots=True)
class SplitLeaf:
    """The split of a leaf over the mesh."""

    shape: tuple[int, ...]
    """The shape of the leaf; (1,) for a scalar."""
    names: tuple[tuple[str, ...], ...]
    """The names of the mesh's axes that split each axis of the leaf."""
    ways: tuple[int, ...]
    """The number of parts along each axis of the leaf."""

    @classmethod
    def of(cls, lying: Lying) -> SplitLeaf:
        """Return the split of a leaf; a scalar counts as one row."""
        shape = lying.shape or (1,)
        spec = [*lying.where.spec, *[None] * len(shape)][: len(shape)]
        names = tuple(names_of(part) for part in spec)
        sizes = lying.where.mesh.shape
        return cls(shape, names, tuple(math.prod(sizes[name] for name in each) for each in names))

    @property
    def own(self) -> tuple[int, ...]:
        """The shape of one device's share."""
        return tuple(side // ways for side, ways in zip(self.shape, self.ways, strict=True))

    @property
    def alone(self) -> tuple[str, ...]:
        """The axes of the mesh along which all devices have the same share."""
        named = {name for names in self.names for name in names}
        return tuple(name for name in AXES if name not in named)


@dataclass(frozen=True, slots=True)
class Rows:
    """A number of rows of one leaf, at one place on each axis before theirs."""

    number: int
    """Number of the leaf."""
    leaf: SplitLeaf
    axis: int
    """The axis of the rows."""
    count: int
    """Number of rows."""

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.leaf.shape[self.axis + 1 :]

    @property
    def own_row(self) -> tuple[int, ...]:
        """The shape of one device's share of a row."""
        return self.leaf.own[self.axis + 1 :]

    @property
    def size(self) -> int:
        """Elements of the rows."""
        return self.count * math.prod(self.row)


class WindowPlace(NamedTuple):
    """The place where rows begin."""

    at: tuple[int, ...]
    """The place on the axes before theirs, in the owner's share of the leaf."""
    owner: int
    """The owner, counted along the axes of the mesh that those are split over."""
    start: int
    """The first row, on the rows' own axis of the whole leaf."""
    piece: int
    """The number of the fragment's piece that they belong to."""


class Window(NamedTuple):
    """A range of the flat form that moves at once, as the numbers that differ between windows."""

    device: int
    """The device that has the window's first element."""
    rest: int
    """The number of that element in the device's range."""
    places: tuple[WindowPlace, ...]
    """The places of its rows."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The windows that are made of equally many rows of the same leaves."""

    rows: tuple[Rows, ...]
    windows: tuple[Window, ...]

    @property
    def size(self) -> int:
        """Elements of a window."""
        return sum(each.size for each in self.rows)


def moves_of(
    pieces: Sequence[Piece], leaves: Sequence[Lying], wanted: Sequence[bool], each: int, room: int
) -> list[Moves]:
    """Return all windows of the wanted pieces, in order.

    Consecutive windows that are alike form one `Moves`.

    `each`: elements of the flat form that a device has. `room`: elements of the largest window.
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
    groups = groupby(bundles, key=lambda bundle: tuple(rows for rows, _ in bundle[1]))
    return [
        Moves(
            rows,
            tuple(
                Window(*divmod(begins, each), tuple(place for _, place in parts))
                for begins, parts in bundles_alike
            ),
        )
        for rows, bundles_alike in groups
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
    """Yield the rows `start` to `stop` of a leaf at `fixed` on its first axes.

    Each item has as many rows as there is room for; a row that is too large is cut along its own
    axes.
    """
    axis = len(fixed)
    if axis == len(leaf.shape):  # one number at each place on the first axis
        fixed, start, stop, axis = fixed[:-1], fixed[-1], fixed[-1] + 1, axis - 1
    width = math.prod(leaf.shape[axis + 1 :])
    if width > room:
        for row in range(start, stop):
            yield from _cut(number, leaf, (*fixed, row), 0, leaf.shape[axis + 1], piece, room)
        return
    own = tuple(index % side for index, side in zip(fixed, leaf.own, strict=False))
    owner = 0
    for index, side, ways in zip(fixed, leaf.own, leaf.ways, strict=False):
        owner = owner * ways + index // side
    windows = -(-(stop - start) // (room // width))
    # About equal parts: windows that are alike are one loop.
    largest = -(-(stop - start) // windows)
    for begin in range(start, stop, largest):
        count = min(largest, stop - begin)
        yield Rows(number, leaf, axis, count), WindowPlace(own, owner, begin, piece)
