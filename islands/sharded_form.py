"""The flat form of a fragment on several devices, to which leaves are moved window by window.

A leaf is split along its own axes and the flat form along its elements. A compiler left alone
gathers the whole fragment on every device in between. Here one window at a time goes from the one
to the other, and all devices take part. Beside its share of both, a device holds no more than one
such window (an eighth of its share of the flat form, or 1 MiB) and some copies of it while it is
moved.

A window is made whole on all devices by one sum of bits: all devices but the one that has an
element add zeros. Each sum waits for all hosts, so small leaves share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from coordinator.fragments import Piece
from islands.mesh import Devices
from islands.mesh_shape import AXES
from islands.windows import Lying, Moves, Rows, Window, WindowPlace, moves_of

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Cutter:
    """One device's share of some rows of a leaf, among whole rows."""

    rows: Rows

    def out(self, leaf: jax.Array, place: WindowPlace) -> jax.Array:
        """Return the bits of the rows, [size], with zeros for those of other devices."""
        rows, depth = self.rows, self.rows.leaf.own[self.rows.axis]
        local = place.start + jnp.arange(rows.count) - self._first_row
        held = leaf
        for at in place.at:
            held = lax.dynamic_index_in_dim(held, at, keepdims=False)
        block = held[jnp.clip(local, 0, depth - 1)].astype(jnp.float32)
        is_own = (local >= 0) & (local < depth) & self._mine(place)
        is_own &= lax.axis_index(rows.leaf.alone) == 0 if rows.leaf.alone else True
        bits = lax.bitcast_convert_type(block, jnp.uint32)
        bits = jnp.where(self._along_rows(is_own), bits, jnp.uint32(0))
        if rows.own_row != rows.row:
            rows_bits = jnp.zeros((rows.count, *rows.row), jnp.uint32)
            bits = lax.dynamic_update_slice(rows_bits, bits, [jnp.int32(0), *self._first_of_row])
        return bits.reshape(-1)

    def into(
        self, leaf: jax.Array, whole: jax.Array, place: WindowPlace, times: jax.Array | None
    ) -> jax.Array:
        """Return one device's share of a leaf with its share of the rows, [size], put in place.

        With `times`, the rows are multiplied by it and added instead.
        """
        rows, depth = self.rows, self.rows.leaf.own[self.rows.axis]
        count = min(rows.count, depth)
        begin = jnp.clip(place.start - self._first_row, 0, depth - count)
        start = [*place.at, begin, *[jnp.int32(0)] * len(rows.row)]
        old = lax.dynamic_slice(leaf, start, [*[1] * rows.axis, count, *rows.own_row])
        old = old.reshape(count, *rows.own_row)
        block = whole.reshape(rows.count, *rows.row)
        if rows.own_row != rows.row:
            sizes = rows.count, *rows.own_row
            block = lax.dynamic_slice(block, [jnp.int32(0), *self._first_of_row], sizes)
        row_numbers = self._first_row + begin + jnp.arange(count) - place.start
        block = block[jnp.clip(row_numbers, 0, rows.count - 1)]
        new = (block if times is None else old + times * block).astype(leaf.dtype)
        inside = (row_numbers >= 0) & (row_numbers < rows.count) & self._mine(place)
        new = jnp.where(self._along_rows(inside), new, old).reshape(*[1] * rows.axis, *new.shape)
        return lax.dynamic_update_slice(leaf, new, start)

    @property
    def _first_row(self) -> jax.Array | int:
        """The number in the whole leaf of this device's first row."""
        names = self.rows.leaf.names[self.rows.axis]
        return lax.axis_index(names) * self.rows.leaf.own[self.rows.axis] if names else 0

    @property
    def _first_of_row(self) -> list[Any]:
        """The start of this device's share of a row, along each of the row's axes."""
        names = self.rows.leaf.names[self.rows.axis + 1 :]
        return [
            lax.axis_index(axes) * side if axes else jnp.int32(0)
            for axes, side in zip(names, self.rows.own_row, strict=True)
        ]

    def _mine(self, place: WindowPlace) -> jax.Array:
        """Return whether this device has a share at this place, on the axes before the rows'."""
        names = tuple(name for axes in self.rows.leaf.names[: self.rows.axis] for name in axes)
        return lax.axis_index(names) == place.owner if names else jnp.bool_(True)

    def _along_rows(self, mask: jax.Array) -> jax.Array:
        return mask.reshape(-1, *[1] * len(self.rows.row))


@dataclass(frozen=True, slots=True)
class _Slider:
    """A device's range of the flat form, of `each` elements, beside a window of `size`."""

    each: int
    size: int

    def out(self, flat: jax.Array, window: Window) -> jax.Array:
        """Return the bits of the window, [size], with zeros for those of other devices."""
        count, begin, place, shift = self._both(window)
        held = _rolled(lax.dynamic_slice(flat, (place,), (count,)), -shift)
        elements = begin + jnp.arange(count) + self._begins(window)  # in the device's range
        bits = lax.bitcast_convert_type(held, jnp.uint32)
        bits = jnp.where((elements >= 0) & (elements < self.each), bits, jnp.uint32(0))
        if count == self.size:
            return bits
        return lax.dynamic_update_slice(jnp.zeros(self.size, jnp.uint32), bits, (begin,))

    def into(self, flat: jax.Array, whole: jax.Array, window: Window) -> jax.Array:
        """Return the device's range with its share of the window put in place."""
        count, begin, place, shift = self._both(window)
        moved = _rolled(lax.dynamic_slice(whole, (begin,), (count,)), shift)
        elements = place + jnp.arange(count) - self._begins(window)  # in the window
        old = lax.dynamic_slice(flat, (place,), (count,))
        new = jnp.where((elements >= 0) & (elements < self.size), moved, old)
        return lax.dynamic_update_slice(flat, new, (place,))

    def _begins(self, window: Window) -> jax.Array:
        """Return where the window begins, counted from the first element of the device's range.

        The number is clipped to what matters, since the whole one would be too large for a large
        model.
        """
        limit = self.size // self.each + 2
        devices_away = jnp.clip(window.device - lax.axis_index(AXES), -limit, limit)
        return devices_away * self.each + window.rest

    def _both(self, window: Window) -> tuple[int, jax.Array, jax.Array, jax.Array]:
        """Return the numbers of a copy between the window and the device's range.

        They are: elements to copy, their start in the window, their start in the range, and how
        many places further they are in the range, with wrap-around.
        """
        count, offset = min(self.each, self.size), self._begins(window)
        begin = jnp.clip(-offset, 0, self.size - count)
        place = jnp.clip(offset, 0, self.each - count)
        return count, begin, place, jnp.clip(offset + begin - place, -count, count)


class ShardedFlatForm:
    """A `FlatForm` whose leaves and whose flat form are split over several devices."""

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
        self._moves = moves_of(pieces, leaves, wanted, each, max(room, each // 8))
        specs, mesh = [lying.where.spec for lying in leaves], devices.mesh
        flat, same = PartitionSpec(AXES), PartitionSpec()
        self._taking = jax.shard_map(
            self._take, mesh=mesh, in_specs=(specs, same), out_specs=flat, check_vma=False
        )
        self._putting = jax.shard_map(
            self._put, mesh=mesh, in_specs=(specs, flat, same), out_specs=specs, check_vma=False
        )

    def take(self, leaves: Sequence[jax.Array], over: jax.Array | None = None) -> jax.Array:
        """Return the flat form of the leaves, as `FlatForm.take` does."""
        return self._taking(list(leaves), over)

    def put(self, leaves: Sequence[jax.Array], flat: jax.Array) -> list[jax.Array]:
        """Return the leaves with the pieces in their places."""
        return self._putting(list(leaves), flat, None)

    def add(
        self, leaves: Sequence[jax.Array], flat: jax.Array, times: jax.Array
    ) -> list[jax.Array]:
        """Return the leaves with the pieces added, as `FlatForm.add` does."""
        return self._putting(list(leaves), flat, times)

    def _take(self, leaves: list[jax.Array], over: jax.Array | None) -> jax.Array:
        flat, held = jnp.zeros(self._each, jnp.float32), [_with_axes(leaf) for leaf in leaves]
        for moves in self._moves:
            slider = _Slider(self._each, moves.size)

            def move(
                flat: jax.Array,
                window: Window,
                moves: Moves = moves,
                slider: _Slider = slider,
                held: list[jax.Array] = held,
            ) -> jax.Array:
                pairs = zip(moves.rows, window.places, strict=True)
                bits = [_Cutter(rows).out(held[rows.number], place) for rows, place in pairs]
                values = _summed(jnp.concatenate(bits))
                if over is not None:
                    placed = zip(moves.rows, window.places, strict=True)
                    divisors = [jnp.full(rows.size, over[place.piece]) for rows, place in placed]
                    values = values / jnp.concatenate(divisors)
                return slider.into(flat, values, window)

            flat = _each_window(move, flat, moves.windows)
            flat, held = _after(flat, held)
        return flat

    def _put(
        self, leaves: list[jax.Array], flat: jax.Array, times: jax.Array | None
    ) -> list[jax.Array]:
        fresh = [_with_axes(leaf) for leaf in leaves]
        for moves in self._moves:
            slider, numbers = _Slider(self._each, moves.size), {each.number for each in moves.rows}

            def move(
                held: dict[int, jax.Array],
                window: Window,
                moves: Moves = moves,
                slider: _Slider = slider,
                flat: jax.Array = flat,
            ) -> dict[int, jax.Array]:
                values, offset = _summed(slider.out(flat, window)), 0
                for rows, place in zip(moves.rows, window.places, strict=True):
                    share = values[offset : offset + rows.size]
                    factor = None if times is None else times[place.piece]
                    held[rows.number] = _Cutter(rows).into(held[rows.number], share, place, factor)
                    offset += rows.size
                return held

            changed = {number: fresh[number] for number in numbers}
            changed = _each_window(move, changed, moves.windows)
            changed, flat = _after(changed, flat)
            for number, leaf in changed.items():
                fresh[number] = leaf
        pairs = zip(fresh, leaves, strict=True)
        return [leaf.reshape(old.shape) for leaf, old in pairs]


def _each_window(move: Callable[[T, Window], T], carried: T, windows: Sequence[Window]) -> T:
    """Apply `move` for one window after another, and return the result."""
    numbers = jax.tree.map(lambda *each: np.array(each, np.int32), *windows)
    if len(windows) == 1:
        return move(carried, jax.tree.map(lambda each: jnp.asarray(each[0]), numbers))
    return lax.scan(lambda each, window: (move(each, window), None), carried, numbers)[0]


def _after(first: T, then: S) -> tuple[T, S]:
    """Return both unchanged, and order all further work on either after `first`.

    One window then follows the other, so that all devices come to their sums in the same order, and
    only one window takes memory.
    """
    return lax.optimization_barrier((first, then))


def _summed(bits: jax.Array) -> jax.Array:
    """Return the sum of bits over all devices as f32, exact to the bit.

    One device has the bits of an element, and the others have zeros.
    """
    return lax.bitcast_convert_type(lax.psum(bits, AXES), jnp.float32)


def _rolled(array: jax.Array, by: jax.Array) -> jax.Array:
    """Return [n] with each element moved on by `by` places, -n to n, in a circle."""
    size = array.shape[0]
    return lax.dynamic_slice(jnp.concatenate([array, array]), ((-by) % size,), (size,))


def _with_axes(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(1) if not leaf.ndim else leaf
