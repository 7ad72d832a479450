"""The weighted sum of payloads over a tile, decoded on the way, four at once if possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coordinator import kernels
from coordinator.array_sums import add_bf16, add_f32, add_four_bf16, add_four_f32
from coordinator.codec import (
    ADD_BLOCKS,
    Coded,
    Payload,
    Wire,
    blocks_of,
    coded_blocks,
    decoded,
    wire_of,
)
from coordinator.fragments import Flat
from coordinator.kernels import BLOCK, SCALES, frozen
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import Tile, TileRun, run_of

PLAIN: Mapping[np.dtype[Any] | None, tuple[Callable[..., None], Callable[..., None]]] = {
    np.dtype(np.float32): (add_f32, add_four_f32),
    np.dtype(np.uint16): (add_bf16, add_four_bf16),
}
"""The functions that add one and four payloads without blocks."""


def weighted(
    payloads: Sequence[Payload], weights: Flat, start: int, stop: int, size: int, room: Room
) -> Flat:
    """Return the sum of w v over elements `start` to `stop`, at most one tile, in `room`.

    See `WeightedParts.on`; `weights`: [payloads].
    """
    parts = WeightedParts.of(payloads, weights[:, None], size)
    return parts.on(run_of([Tile(0, start, stop)]), room)


class WeightedParts(NamedTuple):
    """Payloads with a weight for each piece of the fragment.

    Payloads of one wire go through the kernels of that wire. If wires differ, each payload is
    decoded first: a merge with the anchor CURRENT moves some contributions, which are f32 from then
    on.
    """

    payloads: Sequence[Payload]
    """Frozen payloads of `size` elements each (checked by `wire_of`)."""
    weights: Flat
    """[payloads, pieces]."""
    size: int
    word: np.dtype[Any] | None
    """The dtype of all payloads; None if their wires differ."""

    @classmethod
    def of(cls, payloads: Sequence[Payload], weights: Flat, size: int) -> WeightedParts:
        """Return the payloads with these weights, [payloads, pieces]."""
        word, length = payloads[0].dtype, payloads[0].size
        alike = all(each.dtype == word and each.size == length for each in payloads)
        return cls(payloads, np.ascontiguousarray(weights), size, word if alike else None)

    def on(self, run: TileRun, room: Room) -> Flat:
        """Return the sum of w v on a run of tiles, decoded on the way, in the order of payloads.

        The result is in `room`, until the next call. A run of several tiles has the bits that its
        tiles give one by one, but for numbers below 2**-126: a scale is a power of two, so it does
        not matter whether the weight is multiplied by it or by the decoded value.
        """
        if self.word in PLAIN:
            return self._plain(run, room)
        if self.word is not None and len(run.tiles) == 1:
            return self._coded(run, room)
        total = room.total[: run.stop - run.start]
        with room_of_my_own() as other:
            for row, payload in enumerate(self.payloads):
                values = frozen(decoded(payload, run.start, run.stop, self.size, other))
                add_f32(total, 0, run.bounds, run.pieces, self.weights, row, values)
        return total

    def _plain(self, run: TileRun, room: Room) -> Flat:
        """Return what `on` does, for f32 or bf16 alone."""
        payloads, weights, (_, bounds, pieces, start, stop) = self.payloads, self.weights, run
        total, fours = room.total[: stop - start], len(payloads) // 4 * 4
        add, add_four = PLAIN[self.word]
        for row in range(0, fours, 4):
            add_four(total, start, bounds, pieces, weights, row, *payloads[row : row + 4])
        for row in range(fours, len(payloads)):
            add(total, start, bounds, pieces, weights, row, payloads[row])
        return total

    def _coded(self, run: TileRun, room: Room) -> Flat:
        """Return what `on` does, for one tile of payloads in blocks, of one wire."""
        start, stop, weights = run.start, run.stop, self.weights[:, run.tiles[0].piece].copy()
        first, last = start // BLOCK * BLOCK, blocks_of(stop) * BLOCK  # whole blocks
        total = room.total[: last - first]
        total[:] = 0
        wire = wire_of(self.payloads[0], self.size)
        coded = [
            coded_blocks(payload.view(np.uint8), self.size, first, last)
            for payload in self.payloads
        ]
        fours = _add_four_int4(total, coded, weights) if wire is Wire.INT4 else 0
        add = ADD_BLOCKS[wire]
        for (exponents, codes), weight in zip(coded[fours:], weights[fours:], strict=True):
            add(total, weight, exponents, codes)
        return total[start - first : stop - first]


def _add_four_int4(total: Flat, coded: Sequence[Coded], weights: Flat) -> int:
    """Add weighted payloads four at a time; return how many were added, a multiple of four."""
    fours = len(coded) // 4 * 4
    for i in range(0, fours, 4):
        (a, b), (c, d), (e, f), (g, h) = coded[i : i + 4]
        kernels.add_four_int4(total, weights[i : i + 4], (a, c, e, g), (b, d, f, h), SCALES)
    return fours
