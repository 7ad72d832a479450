"""Leaves of a tree to the flat form of a fragment, and back, on the devices that they lie on.

On one device that is a concatenation. On several a leaf is split along its own axes and the flat
form along its elements, and a compiler left alone gathers the whole fragment on every device in
between. Here some rows at a time go from the one to the other, and all devices take part in it:
beside its share of both a device holds no more than one such window, an eighth of its share of the
flat form or 4 MiB, and some copies of that while it is moved.

A window is made whole where it is needed: by a gather along the axes that its rows are split over,
and by a sum of bits, of which all devices but the one that has them add zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from coordinator.fragments import Piece
from islands.mesh import AXES, Devices
from islands.windows import Lying, Moves, Window, moves_of

ROOM = 1 << 20
"""Elements that a window has at least, if a device's share has as many: 4 MiB are moved in about
the time that it takes so many devices to begin."""


class FlatForm(Protocol):
    """Some pieces of leaves, one after the other, as one f32 array; for use in a compiled function.

    `leaves`: those that the pieces are of, in the order in which the form was told of them.
    """

    def take(self, leaves: Sequence[jax.Array], over: jax.Array | None = None) -> jax.Array:
        """The flat form, a copy, zeros behind its last piece; each piece divided by its own of
        `over`, [pieces]."""
        ...

    def put(self, leaves: Sequence[jax.Array], flat: jax.Array) -> list[jax.Array]:
        """The leaves with the pieces in their places."""
        ...

    def add(
        self, leaves: Sequence[jax.Array], flat: jax.Array, times: jax.Array
    ) -> list[jax.Array]:
        """The leaves with the pieces, each times its own of `times`, [pieces], added to what is in
        their places."""
        ...


def flat_form(
    pieces: Sequence[Piece],
    leaves: Sequence[Lying],
    devices: Devices | None,
    wanted: Sequence[bool] | None = None,
    room: int = ROOM,
) -> FlatForm:
    """The flat form of pieces whose `leaf` counts in `leaves`. Those that are not `wanted` are
    zeros when taken, and are left as they are by `put` and `add`. `devices`: None for one."""
    wanted = [True] * len(pieces) if wanted is None else wanted
    if devices is None or not devices.several:
        return _OnOne(pieces, wanted)
    return _OnSeveral(pieces, leaves, devices, wanted, room)


def within(pieces: Sequence[Piece], touched: Sequence[int]) -> list[Piece]:
    """The pieces with their leaves counted among those that are touched, in order."""
    return [replace(piece, leaf=touched.index(piece.leaf)) for piece in pieces]


class _OnOne:
    def __init__(self, pieces: Sequence[Piece], wanted: Sequence[bool]) -> None:
        self._pieces, self._wanted = pieces, wanted

    def take(self, leaves: Sequence[jax.Array], over: jax.Array | None = None) -> jax.Array:
        blocks = list[jax.Array]()
        for number, (piece, wanted) in enumerate(zip(self._pieces, self._wanted, strict=True)):
            if not wanted:
                blocks.append(jnp.zeros(piece.size, jnp.float32))
                continue
            block = leaves[piece.leaf][piece.index].reshape(-1)
            blocks.append(block if over is None else block / over[number])
        flat = jnp.concatenate(blocks)
        return jnp.array(flat, jnp.float32, copy=True)  # never the leaf itself: a step donates that

    def put(self, leaves: Sequence[jax.Array], flat: jax.Array) -> list[jax.Array]:
        fresh = list(leaves)
        for _, piece, block in self._blocks(flat):
            fresh[piece.leaf] = fresh[piece.leaf].at[piece.index].set(block)
        return fresh

    def add(
        self, leaves: Sequence[jax.Array], flat: jax.Array, times: jax.Array
    ) -> list[jax.Array]:
        fresh = list(leaves)
        for number, piece, block in self._blocks(flat):
            fresh[piece.leaf] = fresh[piece.leaf].at[piece.index].add(times[number] * block)
        return fresh

    def _blocks(self, flat: jax.Array) -> Iterator[tuple[int, Piece, jax.Array]]:
        offset = 0
        for number, (piece, wanted) in enumerate(zip(self._pieces, self._wanted, strict=True)):
            if wanted:
                yield number, piece, flat[offset : offset + piece.size].reshape(piece.shape)
            offset += piece.size


# --- on several devices ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mover:
    """What every device does for one window of `moves`, in step with all others."""

    moves: Moves

    def whole(self, leaf: jax.Array, window: Window) -> jax.Array:
        """The window out of a leaf, on every device, [size] f32."""
        block = self._block(leaf, window).astype(jnp.float32)
        for axis, names in enumerate(self.moves.row_names, 1):
            if names:
                block = lax.all_gather(block, names, axis=axis, tiled=True)
        flat, owners = block.reshape(-1), self.moves.owners
        return _from_one(flat, self._mine(window), owners) if owners else flat

    def into_flat(self, flat: jax.Array, whole: jax.Array, window: Window) -> jax.Array:
        """The flat form of one device with what it is to have of the window."""
        size, (place, shift) = self.moves.size, self._place(window)
        moved, at = _rolled(whole, shift), jnp.arange(size) - shift
        inside = (at >= window.begin) & (at < window.end)
        old = lax.dynamic_slice(flat, (place,), (size,))
        return lax.dynamic_update_slice(flat, jnp.where(inside, moved, old), (place,))

    def of_flat(self, flat: jax.Array, window: Window) -> jax.Array:
        """The window out of the flat form, on every device, [size]."""
        size, (place, shift) = self.moves.size, self._place(window)
        have = lax.dynamic_slice(flat, (place,), (size,))
        at = jnp.arange(size) + shift
        return _from_one(_rolled(have, -shift), (at >= 0) & (at < size), AXES)

    def into_leaf(
        self, leaf: jax.Array, whole: jax.Array, window: Window, times: jax.Array | None
    ) -> jax.Array:
        """What one device has of a leaf with its part of the window in its place, or, times a
        number, added to what is there."""
        moves = self.moves
        block = whole.reshape(moves.rows, *moves.row)
        for axis, (names, side) in enumerate(zip(moves.row_names, moves.own_row, strict=True), 1):
            if names:
                block = lax.dynamic_slice_in_dim(block, lax.axis_index(names) * side, side, axis)
        old, first = self._block(leaf, window), jnp.arange(moves.rows) * math.prod(moves.row)
        inside = (first >= window.begin) & (first < window.end) & self._mine(window)
        inside = inside.reshape(moves.rows, *[1] * len(moves.row))
        new = (block if times is None else old + times * block).astype(leaf.dtype)
        new = jnp.where(inside, new, old).reshape(*[1] * moves.axis, *new.shape)
        return lax.dynamic_update_slice(leaf, new, self._start(window))

    def _block(self, leaf: jax.Array, window: Window) -> jax.Array:
        """What one device has of the window's rows."""
        shape = self.moves.rows, *self.moves.own_row
        sizes = [*[1] * self.moves.axis, *shape]
        return lax.dynamic_slice(leaf, self._start(window), sizes).reshape(shape)

    def _start(self, window: Window) -> list[Any]:
        return [*window.at, *[jnp.int32(0)] * len(self.moves.row)]

    def _mine(self, window: Window) -> jax.Array:
        owners = self.moves.owners
        return lax.axis_index(owners) == window.owner if owners else jnp.bool_(True)

    def _place(self, window: Window) -> tuple[jax.Array, jax.Array]:
        """Where to read or write as many elements as the window has in a device's flat form, and
        how many further on the window begins; as many as it has, or more: there is nothing of it.
        """
        size, each = self.moves.size, self.moves.each
        away = jnp.clip(window.device - lax.axis_index(AXES), -2, 2)  # or a large model's overflows
        begins = away * each + window.rest
        place = jnp.clip(begins, 0, each - size)
        return place, jnp.clip(begins - place, -size, size)


class _OnSeveral:
    def __init__(
        self,
        pieces: Sequence[Piece],
        leaves: Sequence[Lying],
        devices: Devices,
        wanted: Sequence[bool],
        room: int,
    ) -> None:
        size = sum(piece.size for piece in pieces)
        self._each = each = devices.padded(size) // devices.mesh.size
        moves = moves_of(pieces, leaves, wanted, each, max(room, each // 8))
        self._movers = [_Mover(each) for each in moves]
        specs, mesh = [lying.where.spec for lying in leaves], devices.mesh
        flat, same = PartitionSpec(AXES), PartitionSpec()
        self._taking = jax.shard_map(
            self._take, mesh=mesh, in_specs=(specs, same), out_specs=flat, check_vma=False
        )
        self._putting = jax.shard_map(
            self._put, mesh=mesh, in_specs=(specs, flat, same), out_specs=specs, check_vma=False
        )

    def take(self, leaves: Sequence[jax.Array], over: jax.Array | None = None) -> jax.Array:
        return self._taking(list(leaves), over)

    def put(self, leaves: Sequence[jax.Array], flat: jax.Array) -> list[jax.Array]:
        return self._putting(list(leaves), flat, None)

    def add(
        self, leaves: Sequence[jax.Array], flat: jax.Array, times: jax.Array
    ) -> list[jax.Array]:
        return self._putting(list(leaves), flat, times)

    def _take(self, leaves: list[jax.Array], over: jax.Array | None) -> jax.Array:
        flat = jnp.zeros(self._each, jnp.float32)
        for mover in self._movers:
            leaf = _with_axes(leaves[mover.moves.number])

            def move(
                flat: jax.Array, window: Window, mover: _Mover = mover, leaf: jax.Array = leaf
            ) -> tuple[jax.Array, None]:
                whole = mover.whole(leaf, window)
                if over is not None:
                    whole = whole / over[window.piece]
                return mover.into_flat(flat, whole, window), None

            flat = _each_window(move, flat, mover.moves.windows)
        return flat

    def _put(
        self, leaves: list[jax.Array], flat: jax.Array, times: jax.Array | None
    ) -> list[jax.Array]:
        fresh = [_with_axes(leaf) for leaf in leaves]
        for mover in self._movers:

            def move(
                leaf: jax.Array, window: Window, mover: _Mover = mover, flat: jax.Array = flat
            ) -> tuple[jax.Array, None]:
                factor = None if times is None else times[window.piece]
                return mover.into_leaf(leaf, mover.of_flat(flat, window), window, factor), None

            leaf = _each_window(move, fresh[mover.moves.number], mover.moves.windows)
            # one after the other: the devices must come to their sums in the same order
            fresh[mover.moves.number], flat = lax.optimization_barrier((leaf, flat))
        pairs = zip(fresh, leaves, strict=True)
        return [leaf.reshape(old.shape) for leaf, old in pairs]


def _each_window(move: Any, into: jax.Array, windows: Sequence[Window]) -> jax.Array:
    """What `move` makes of it, window by window."""
    numbers = jax.tree.map(lambda *each: np.array(each, np.int32), *windows)
    if len(windows) == 1:
        return move(into, jax.tree.map(lambda each: jnp.asarray(each[0]), numbers))[0]
    return lax.scan(move, into, numbers)[0]


def _from_one(mine: jax.Array, is_mine: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """On all devices, to the bit, the elements that one of them has."""
    bits = lax.bitcast_convert_type(mine, jnp.uint32)
    bits = lax.psum(jnp.where(is_mine, bits, jnp.uint32(0)), names)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _rolled(array: jax.Array, by: jax.Array) -> jax.Array:
    """[n] with each element `by` places further on, -n to n, in a circle."""
    size = array.shape[0]
    return lax.dynamic_slice(jnp.concatenate([array, array]), ((-by) % size,), (size,))


def _with_axes(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(1) if not leaf.ndim else leaf
