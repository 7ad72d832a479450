"""The flat form of a fragment: its leaves as one array, and back, on the devices where they are.

On one device that is a concatenation. On several devices it is `sharded_form`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import jax
import jax.numpy as jnp

from coordinator.fragments import Piece
from islands.mesh import Devices
from islands.sharded_form import ShardedFlatForm
from islands.windows import Lying

ROOM = 1 << 18
"""Elements that a window may always have: 1 MiB.

A window of that size takes about as long to move as the devices need to start.
"""


class FlatForm(Protocol):
    """Some pieces of leaves, one after the other, as one f32 array; for use in a compiled function.

    `leaves` in its methods are the leaves that the pieces belong to, in the order that `flat_form`
    was given.
    """

    def take(self, leaves: Sequence[jax.Array], over: jax.Array | None = None) -> jax.Array:
        """Return the flat form, a copy, with zeros behind its last piece.

        With `over`, [pieces], each piece is divided by its own element of it.
        """
        ...

    def put(self, leaves: Sequence[jax.Array], flat: jax.Array) -> list[jax.Array]:
        """Return the leaves with the pieces in their places."""
        ...

    def add(
        self, leaves: Sequence[jax.Array], flat: jax.Array, times: jax.Array
    ) -> list[jax.Array]:
        """Return the leaves with the pieces added in their places.

        Each piece is multiplied by its own element of `times`, [pieces].
        """
        ...


def flat_form(
    pieces: Sequence[Piece],
    leaves: Sequence[Lying],
    devices: Devices | None,
    wanted: Sequence[bool] | None = None,
    room: int = ROOM,
) -> FlatForm:
    """Return the flat form of pieces whose `leaf` counts in `leaves`.

    Pieces that are not `wanted` are zeros when taken, and `put` and `add` leave them unchanged.
    `devices`: None for one device.
    """
    wanted = [True] * len(pieces) if wanted is None else wanted
    if devices is None or not devices.several:
        return _OnOne(pieces, wanted)
    return ShardedFlatForm(pieces, leaves, devices, wanted, room)


def within(pieces: Sequence[Piece], touched: Sequence[int]) -> list[Piece]:
    """Return the pieces with their leaves counted among the touched ones, in order."""
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
