"""The weighted sum of payloads over a tile, decoded on the way, four at once if possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordinator import kernels
from coordinator.codec import (
    ADD_BLOCKS,
    Coded,
    Payload,
    Wire,
    add_bf16,
    blocks_of,
    coded_blocks,
    decoded,
    wire_of,
)
from coordinator.fragments import Flat
from coordinator.kernels import BLOCK, SCALES, frozen
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import TileRun


def weighted(
    payloads: Sequence[Payload], weights: Flat, start: int, stop: int, size: int, room: Room
) -> Flat:
    """Return the sum of w v over elements `start` to `stop`, at most one tile, decoded on the way.

    The payloads are frozen, have `size` elements each (checked by `wire_of`), and are added in the
    order given. Payloads of one wire go through the kernels of that wire. If wires differ, each
    payload is decoded first: a merge with the anchor CURRENT moves some contributions, which are
    f32 from then on. The result is in `room`, until the next call.
    """
    word, first, last = payloads[0].dtype, start, stop
    if any(each.dtype != word or each.size != payloads[0].size for each in payloads):
        return _weighted_apart(payloads, weights, start, stop, size, room)
    if word.itemsize == 1:  # whole blocks
        first, last = start // BLOCK * BLOCK, blocks_of(stop) * BLOCK
    total = room.total[: last - first]
    total[:] = 0
    if word == np.float32:
        flats = [payload[start:stop].view(np.float32) for payload in payloads]
        _add_floats(total, flats, weights)
    elif word == np.uint16:
        for payload, weight in zip(payloads, weights, strict=True):
            add_bf16(total, weight, payload[start:stop].view(np.uint16), room)
    else:
        wire = wire_of(payloads[0], size)
        coded = [coded_blocks(payload.view(np.uint8), size, first, last) for payload in payloads]
        fours = _add_four_int4(total, coded, weights) if wire is Wire.INT4 else 0
        add = ADD_BLOCKS[wire]
        for (exponents, codes), weight in zip(coded[fours:], weights[fours:], strict=True):
            add(total, weight, exponents, codes)
    return total[start - first : stop - first]


def weighted_run(
    payloads: Sequence[Payload], weights: Flat, run: TileRun, size: int, room: Room
) -> Flat:
    """Return the sum of w v over a run of tiles, with weights of their own, in `room`.

    `weights`: [contributions, tiles]. The result has the bits that `weighted` gives tile by tile,
    but for numbers below 2**-126: a scale is a power of two, so it does not matter whether the
    weight is multiplied by it or by the decoded value.
    """
    total, bounds, fours = room.total[: run.stop - run.start], run.bounds, 0
    total[:] = 0
    if all(each.dtype == np.float32 for each in payloads):
        flats = [payload[run.start : run.stop].view(np.float32) for payload in payloads]
        fours = len(flats) // 4 * 4
        for i in range(0, fours, 4):
            a, b, c, d = weights[i : i + 4]
            kernels.add_four_run(total, bounds, (a, b, c, d), *flats[i : i + 4])
    with room_of_my_own() as other:
        for payload, some in zip(payloads[fours:], weights[fours:], strict=True):
            values = decoded(payload, run.start, run.stop, size, other)
            kernels.add_run(total, bounds, some, frozen(values))
    return total


def _weighted_apart(
    payloads: Sequence[Payload], weights: Flat, start: int, stop: int, size: int, room: Room
) -> Flat:
    """Return what `weighted` does, for payloads of any wires."""
    total = room.total[: stop - start]
    total[:] = 0
    with room_of_my_own() as other:
        for payload, weight in zip(payloads, weights, strict=True):
            values = decoded(payload, start, stop, size, other)
            kernels.add(total, weight, frozen(values))
    return total


def _add_floats(total: Flat, flats: Sequence[Flat], weights: Flat) -> None:
    fours = len(flats) // 4 * 4
    for i in range(0, fours, 4):
        kernels.add_four(total, weights[i : i + 4], *flats[i : i + 4])
    for flat, weight in zip(flats[fours:], weights[fours:], strict=True):
        kernels.add(total, weight, flat)


def _add_four_int4(total: Flat, coded: Sequence[Coded], weights: Flat) -> int:
    """Add weighted payloads four at a time; return how many were added, a multiple of four."""
    fours = len(coded) // 4 * 4
    for i in range(0, fours, 4):
        (a, b), (c, d), (e, f), (g, h) = coded[i : i + 4]
        kernels.add_four_int4(total, weights[i : i + 4], (a, c, e, g), (b, d, f, h), SCALES)
    return fours
