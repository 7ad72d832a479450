"""The encoding of a fragment on the wire.

A payload is one contiguous NumPy array of a plain dtype, because Ray moves those without a copy (a
bf16 array of ml_dtypes would be pickled in band). The rounding error stays with the sender as a
residual that the next message carries (error feedback, arXiv:1901.09847).

int8, int4, int2 and e3m0 are written in blocks of 32 elements that share a scale, a power of two
(as in the Open Compute Project's Microscaling formats, MX v1.0). A payload has [n] exponent bytes,
then [n * 32], [n * 16] or [n * 8] bytes of codes, with n = ceil(size / 32) and the last block
padded with zeros.

- int8, int4: an element is off by at most half a step of its block; the largest ones (above 127.5
  or 7.5 steps) by less than a whole step.
- int2 has four levels, 0.5 and 1.5 steps either way, and its step comes from the mean magnitude of
  the block. An element of up to two steps is off by at most half a step. A longer one is off by its
  excess over 1.5 steps, which error feedback sends later.
- e3m0 is the 4-bit float of Streaming DiLoCo (arXiv:2501.18512): powers of two, off by at most a
  third, and zero below a 128th of the block's largest element. Its bytes are signed, which
  distinguishes it from int4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from coordinator import kernels, rounding
from coordinator.array_sums import widen_bf16
from coordinator.errors import CorruptPayload
from coordinator.fragments import Flat
from coordinator.inner_products import sum_of_squares
from coordinator.kernels import BLOCK, INVERSES, SCALES, TILE, U8, frozen
from coordinator.scratch import Room, room_of_my_own

Payload = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.uint8] | NDArray[np.int8]
Coded = tuple[U8, U8]
"""The exponents and codes of a stretch of whole blocks."""


class Wire(StrEnum):
    """The encoding of the elements of a fragment."""

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"
    E3M0 = "e3m0"

    def bytes_of(self, size: int) -> int:
        """Return the bytes of a payload with `size` elements."""
        match self:
            case Wire.F32:
                return 4 * size
            case Wire.BF16:
                return 2 * size
            case Wire.INT8:
                return blocks_of(size) * (1 + BLOCK)
            case Wire.INT4 | Wire.E3M0:
                return blocks_of(size) * (1 + BLOCK // 2)
            case Wire.INT2:
                return blocks_of(size) * (1 + BLOCK // 4)


_WORDS: Mapping[Wire, np.dtype[Any]] = {
    Wire.F32: np.dtype(np.float32),
    Wire.BF16: np.dtype(np.uint16),
    Wire.INT8: np.dtype(np.uint8),
    Wire.INT4: np.dtype(np.uint8),
    Wire.INT2: np.dtype(np.uint8),
    Wire.E3M0: np.dtype(np.int8),
}
ONE = np.float32(1)


class WithMoments(NamedTuple):
    """An encoded delta of a fragment together with its encoded first moments."""

    difference: Payload
    moments: Payload

    @property
    def nbytes(self) -> int:
        """The bytes of the delta and the moments together."""
        return self.difference.nbytes + self.moments.nbytes


Sent: TypeAlias = Payload | WithMoments
"""The payload of a fragment in a message, up or down."""


def split(sent: Sent) -> tuple[Payload, Payload | None]:
    """Return the encoded delta, and the moments beside it, if there are any."""
    return sent if isinstance(sent, WithMoments) else (sent, None)


def joined(difference: Payload, moments: Payload | None) -> Sent:
    """Return the payload that `split` takes apart."""
    return difference if moments is None else WithMoments(difference, moments)


def blocks_of(size: int) -> int:
    """Return the number of blocks in a fragment of `size` elements."""
    return -(-size // BLOCK)


def encode(wire: Wire, values: Flat) -> Payload:
    """Encode the values, rounded to nearest even; f32 is passed through without a copy."""
    match wire:
        case Wire.F32:
            return values
        case Wire.BF16:
            return values.astype(ml_dtypes.bfloat16).view(np.uint16)
        case Wire.INT8 | Wire.INT4 | Wire.INT2 | Wire.E3M0:
            payload = _blank(wire, values.size)
            for start in range(0, values.size, TILE):
                encode_tile(wire, payload, values[start : start + TILE], start, values.size)
            return payload


def _blank(wire: Wire, size: int) -> Payload:
    return np.empty(wire.bytes_of(size) // _WORDS[wire].itemsize, _WORDS[wire])


def encode_tile(wire: Wire, payload: NDArray[Any], values: Flat, start: int, size: int) -> None:
    """Encode one tile, whose first element is `start`, into a payload of `size` elements."""
    stop = start + values.size
    if wire is Wire.F32:
        payload[start:stop] = values
    elif wire is Wire.BF16:
        payload[start:stop] = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    else:
        if values.size % BLOCK:
            values = np.append(values, np.zeros(-values.size % BLOCK, np.float32))
        exponents, codes = coded_blocks(payload.view(np.uint8), size, start, start + values.size)
        values = frozen(values)
        bits = values.view(np.uint32)
        if wire is Wire.INT8:
            rounding.choose_scales(exponents, bits, kernels.INT8_DOWN, np.uint32(0))
            rounding.write_int8(exponents, codes, values, INVERSES)
        elif wire is Wire.INT4:
            rounding.choose_scales(exponents, bits, kernels.INT4_DOWN, np.uint32(0))
            rounding.write_int4(exponents, codes, values, INVERSES)
        elif wire is Wire.INT2:
            rounding.choose_scales(exponents, bits, 0, np.uint32(0))
            rounding.lower_to_mean(exponents, bits)
            rounding.write_int2(exponents, codes, bits)
        else:
            rounding.choose_scales(exponents, bits, kernels.E3M0_DOWN, kernels.NEAREST)
            rounding.write_e3m0(exponents, codes, bits)


def decode(payload: Payload, size: int) -> Flat:
    """Decode `size` values; dtype and length of the payload determine the wire format.

    Errors: `CorruptPayload` if the payload cannot be such a fragment.
    """
    wire = wire_of(payload, size)
    if wire is Wire.F32:
        return payload.view(np.float32)
    if wire is Wire.BF16:
        return payload.view(ml_dtypes.bfloat16).astype(np.float32)
    values, payload = np.empty(size, np.float32), frozen(payload)
    with room_of_my_own() as room:
        for start in range(0, size, TILE):
            stop = min(size, start + TILE)
            values[start:stop] = decoded(payload, start, stop, size, room)
    return values


class Difference(NamedTuple):
    """An encoded delta with its Euclidean norm before encoding.

    The norm is not finite exactly if an element of the delta is not.
    """

    payload: Payload
    norm: float


def encode_difference(wire: Wire, newer: Flat, older: Flat) -> Difference:
    """Return `encode(newer - older)` and the norm of newer - older, tile by tile."""
    size, squares = newer.size, 0.0
    payload = _blank(wire, size)
    with room_of_my_own() as room, np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, size, TILE):
            stop = min(size, start + TILE)
            target = room.total[: stop - start]
            difference = np.subtract(newer[start:stop], older[start:stop], out=target)
            squares += sum_of_squares(frozen(difference))
            encode_tile(wire, payload, difference, start, size)
    return Difference(payload, math.sqrt(squares))


def add_decoded(total: Flat, payload: Payload) -> None:
    """Compute total += decode(payload), tile by tile."""
    size, payload = total.size, frozen(payload)
    with room_of_my_own() as room:
        for start in range(0, size, TILE):
            stop = min(size, start + TILE)
            total[start:stop] += decoded(payload, start, stop, size, room)


def wire_of(payload: Payload, size: int) -> Wire:
    """Return the wire format of a payload with this many elements.

    Errors: `CorruptPayload` if the payload fits no format.
    """
    for wire, word in _WORDS.items():
        if payload.dtype == word and payload.shape == (wire.bytes_of(size) // word.itemsize,):
            return wire
    raise CorruptPayload(
        f"payload of dtype {payload.dtype} and shape {payload.shape}, the fragment has {size} "
        "elements; known are float32, uint16 (bf16), uint8 (int8, int4, int2) and int8 (e3m0)"
    )


def coded_blocks(payload: NDArray[np.uint8], size: int, start: int, stop: int) -> Coded:
    """Return the exponents and codes of the whole blocks from `start` to `stop`."""
    blocks = blocks_of(size)
    each = payload.size // blocks - 1
    first, last = start // BLOCK, stop // BLOCK
    return payload[first:last], payload[blocks + first * each : blocks + last * each]


def decoded(payload: Payload, start: int, stop: int, size: int, room: Room) -> Flat:
    """Decode elements `start` to `stop` of a frozen payload, at most a tile.

    The result is a view: of the payload if that is f32, else of `room`, which the next call
    overwrites.
    """
    if payload.dtype == np.float32:
        return payload[start:stop].view(np.float32)
    if payload.dtype == np.uint16:
        total = room.total[: stop - start]
        widen_bf16(total, payload[start:stop].view(np.uint16))
        return total
    first, last = start // BLOCK * BLOCK, blocks_of(stop) * BLOCK
    total = room.total[: last - first]
    total[:] = 0
    exponents, codes = coded_blocks(payload.view(np.uint8), size, first, last)
    ADD_BLOCKS[wire_of(payload, size)](total, ONE, exponents, codes)
    return total[start - first : stop - first]


def _add_int8(total: Flat, weight: np.float32, exponents: U8, codes: U8) -> None:
    kernels.add_int8(total, weight, exponents, codes, SCALES)


def _add_int4(total: Flat, weight: np.float32, exponents: U8, codes: U8) -> None:
    kernels.add_int4(total, weight, exponents, codes, SCALES)


def _add_int2(total: Flat, weight: np.float32, exponents: U8, codes: U8) -> None:
    kernels.add_int2(total, weight, exponents, codes, SCALES)


def _add_e3m0(total: Flat, weight: np.float32, exponents: U8, codes: U8) -> None:
    kernels.add_e3m0(total, weight, exponents, codes, SCALES, kernels.E3M0)


ADD_BLOCKS: Mapping[Wire, Callable[[Flat, np.float32, U8, U8], None]] = {
    Wire.INT8: _add_int8,
    Wire.INT4: _add_int4,
    Wire.INT2: _add_int2,
    Wire.E3M0: _add_e3m0,
}
"""The loop that adds weight * decoded to a total, in whole blocks, for each wire of such blocks."""
