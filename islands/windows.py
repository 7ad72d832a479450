"""Which windows of a leaf go to its flat form, one after the other, and back: where each begins in
the leaf, who has it, and where in the flat form it lies. Whole numbers only, found before anything
is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jax.sharding import NamedSharding

from coordinator.fragments import Piece
from islands.mesh import names_of


class Lying(NamedTuple):
    """Shape of a leaf, and where it lies."""

    shape: tuple[int, ...]
    where: NamedSharding


class Window(NamedTuple):
    """Rows of a leaf that are moved at once, as numbers that differ from window to window.

    `at`: where they begin in what the owner has of the leaf, for each axis up to that of the rows.
    `owner`: who has them, along the axes of the mesh that those axes are split over. Their first
    element is number `rest` of the flat form of device `device`; of their elements those from
    `begin` to `end` are moved.
    """

    at: tuple[int, ...]
    owner: int
    device: int
    rest: int
    begin: int
    end: int
    piece: int


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


@dataclass(frozen=True, slots=True)
class Moves:
    """Windows of leaf `number` that are of one size: `rows` on axis `axis`, one on each before it.
    `each`: elements of the flat form that a device has."""

    number: int
    leaf: SplitLeaf
    axis: int
    rows: int
    each: int
    windows: tuple[Window, ...]

    @property
    def owners(self) -> tuple[str, ...]:
        """The axes of the mesh that the leaf is split over up to the axis of the rows."""
        return tuple(name for names in self.leaf.names[: self.axis + 1] for name in names)

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.leaf.shape[self.axis + 1 :]

    @property
    def own_row(self) -> tuple[int, ...]:
        """The shape of what one device has of a row."""
        return self.leaf.own[self.axis + 1 :]

    @property
    def row_names(self) -> tuple[tuple[str, ...], ...]:
        """Over which axes of the mesh a row is split, along each of its own."""
        return self.leaf.names[self.axis + 1 :]

    @property
    def size(self) -> int:
        """Elements of a window."""
        return self.rows * math.prod(self.row)


def moves_of(
    pieces: Sequence[Piece], leaves: Sequence[Lying], wanted: Sequence[bool], each: int, room: int
) -> list[Moves]:
    """All windows of the wanted pieces, those of one leaf and one size together.

    `each`: elements of the flat form that a device has; `room`: those of the largest window.
    """
    split, room, offset = [SplitLeaf.of(lying) for lying in leaves], min(each, room), 0
    found: dict[tuple[int, int, int], list[Window]] = {}
    for number, (piece, is_wanted) in enumerate(zip(pieces, wanted, strict=True)):
        if is_wanted:
            fixed = () if piece.layer is None else (piece.layer,)
            cut = _cut(split[piece.leaf], fixed, piece.start, piece.stop, offset, each, room)
            for axis, rows, window in cut:
                key = piece.leaf, axis, rows
                found.setdefault(key, []).append(window._replace(piece=number))
        offset += piece.size
    return [
        Moves(leaf, split[leaf], axis, rows, each, tuple(windows))
        for (leaf, axis, rows), windows in found.items()
    ]


def _cut(
    leaf: SplitLeaf,
    fixed: tuple[int, ...],
    start: int,
    stop: int,
    offset: int,
    each: int,
    room: int,
) -> Iterator[tuple[int, int, Window]]:
    """The windows of the rows `start` to `stop` of what the leaf has at `fixed` on its first axes,
    each with its axis and how many rows it has; a row that is too large is cut along its own."""
    axis = len(fixed)
    if axis == len(leaf.shape):  # one number to each place on the first axis
        fixed, start, stop, axis = fixed[:-1], fixed[-1], fixed[-1] + 1, axis - 1
    width = math.prod(leaf.shape[axis + 1 :])
    if width > room:
        for row in range(start, stop):
            begin = offset + (row - start) * width
            yield from _cut(leaf, (*fixed, row), 0, leaf.shape[axis + 1], begin, each, room)
        return
    depth = leaf.own[axis]
    owners = range(start // depth, -(-stop // depth))
    first, last = (0, depth) if len(owners) > 1 else (start % depth, (stop - 1) % depth + 1)
    rows = min(last - first, room // width)
    for owner in owners:
        for fresh in range(first, last, rows):
            at = min(fresh, last - rows)  # the last window has rows that were moved before
            row = owner * depth + at
            begin = max(fresh - at, start - row)
            end = min(rows, stop - row)
            if begin >= end:
                continue
            place = [*fixed, row]
            own = [x % side for x, side in zip(place, leaf.own, strict=False)]
            who = 0
            for x, side, ways in zip(place, leaf.own, leaf.ways, strict=False):
                who = who * ways + x // side
            # where the window begins may lie before the piece, even before the flat form
            device, rest = divmod(offset + (row - start) * width, each)
            yield (
                axis,
                rows,
                Window(tuple(own), who, device, rest, begin * width, end * width, -1),
            )
