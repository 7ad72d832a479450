"""The inner loops over elements, compiled by numba: each runs over one tile that stays in cache.

The loops hold no GIL, and nothing is reordered or fused (no `fastmath`): the same inputs give the
same bits with any number of threads and on any processor. Arrays that are only read come as
read-only views (`frozen`), since a function is compiled again for each kind of argument. Callers
walk over a fragment in tiles of `TILE` elements: larger ones leave the cache, smaller ones cost
more to call than to compute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")
F32: TypeAlias = NDArray[np.float32]
U8: TypeAlias = NDArray[np.uint8]
U16: TypeAlias = NDArray[np.uint16]
U32: TypeAlias = NDArray[np.uint32]
I64: TypeAlias = NDArray[np.int64]

TILE = 1 << 16
"""Elements of a tile: 256 kB of f32, which stay in the second level cache. A multiple of BLOCK."""
BLOCK = 32
"""Elements that share a scale, as in the Open Compute Project's Microscaling formats (MX v1.0)."""
HALF, QUARTER = BLOCK // 2, BLOCK // 4
MAGNITUDE, MANTISSA_BITS, BIAS = np.uint32(0x7FFFFFFF), np.uint32(23), 127
"""Parts of an f32: all bits but the sign, the number of fraction bits, and the exponent's bias."""
FRACTION, IMPLIED = np.uint32(0x7FFFFF), np.uint32(1 << 23)
"""The fraction bits of an f32, and the implied one above them, which is not stored."""
INT8_DOWN, INT4_DOWN, E3M0_DOWN = 6, 2, 6
"""Powers of two by which a scale lies below the largest element of its block."""
NEAREST = np.uint32(1 << 22)
"""An addend to the bits of an f32 that rounds its exponent to the nearest power of two."""
NOTHING = 27
"""The least exponent of a block that is not zero, 2**-100, so that nothing is ever denormal."""
NOT_FINITE = 255
"""The scale of a block that holds NaN or infinity, as in MX; all of it decodes to NaN."""


def _powers(sign: int, not_finite: float) -> F32:
    powers = np.exp2(sign * (np.arange(1.0, NOT_FINITE) - BIAS))
    values = np.array([0, *powers, not_finite], np.float32)
    values.flags.writeable = False
    return values


SCALES, INVERSES = _powers(1, np.nan), _powers(-1, 0)
"""[256] f32: exponent byte e -> the scale 2**(e - 127), and one over it; 0 for a block of zeros."""


E3M0 = np.array([0, *np.exp2(np.arange(7)), 0, *-np.exp2(np.arange(7))], np.float32)
"""[16] f32: sign and three bits of exponent -> 0, 1, 2, 4 ... 64, and the same below zero."""
E3M0.flags.writeable = False


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array contiguous, aligned and read-only for kernels; copy only if needed."""
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned:
        array = np.require(array, requirements=["C", "A"])
    elif not flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile the function at its first call, or read the cache beside its file.

    numba is imported no sooner: a learner that sends f32 or bf16 does not need it.
    """

    @functools.cache
    def machine_code() -> Callable[P, R]:
        import numba

        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        return machine_code()(*arguments, **named)

    return call


# --- decoding ------------------------------------------------------------------------------------


@compiled
def add_int8(total: F32, weight: np.float32, exponents: U8, codes: U8, scales: F32) -> None:
    """Add weight * decoded to the total, in whole blocks of BLOCK bytes (`rounding.write_int8`)."""
    for block in range(exponents.size):
        scale, start = weight * scales[exponents[block]], block * BLOCK
        for i in range(HALF):
            low, high = np.int32(codes[start + i]), np.int32(codes[start + HALF + i])
            total[start + i] += scale * np.float32(low - 128)
            total[start + HALF + i] += scale * np.float32(high - 128)


@compiled
def add_int4(total: F32, weight: np.float32, exponents: U8, codes: U8, scales: F32) -> None:
    """Add weight * decoded to the total, in whole blocks of HALF bytes (`rounding.write_int4`)."""
    for block in range(exponents.size):
        scale = weight * scales[exponents[block]]
        for i in range(HALF):
            both = codes[block * HALF + i]
            total[block * BLOCK + i] += scale * np.float32(np.int32(both & 15) - 8)
            total[block * BLOCK + HALF + i] += scale * np.float32(np.int32(both >> 4) - 8)


@compiled
def add_four_int4(
    total: F32,
    weights: F32,
    exponents: tuple[U8, U8, U8, U8],
    codes: tuple[U8, U8, U8, U8],
    scales: F32,
) -> None:
    """Compute four times `add_int4`, in this order."""
    (ea, eb, ec, ed), (a, b, c, d) = exponents, codes
    for block in range(ea.size):
        s, t = weights[0] * scales[ea[block]], weights[1] * scales[eb[block]]
        u, v = weights[2] * scales[ec[block]], weights[3] * scales[ed[block]]
        start = block * BLOCK
        for i in range(HALF):
            w, x = np.int32(a[block * HALF + i]), np.int32(b[block * HALF + i])
            y, z = np.int32(c[block * HALF + i]), np.int32(d[block * HALF + i])
            low = total[start + i] + s * np.float32((w & 15) - 8)
            low = (low + t * np.float32((x & 15) - 8)) + u * np.float32((y & 15) - 8)
            total[start + i] = low + v * np.float32((z & 15) - 8)
            high = total[start + HALF + i] + s * np.float32((w >> 4) - 8)
            high = (high + t * np.float32((x >> 4) - 8)) + u * np.float32((y >> 4) - 8)
            total[start + HALF + i] = high + v * np.float32((z >> 4) - 8)


@compiled
def add_int2(total: F32, weight: np.float32, exponents: U8, codes: U8, scales: F32) -> None:
    """Add weight * decoded to the total, in blocks of QUARTER bytes (`rounding.write_int2`)."""
    middle = np.float32(1.5)
    for block in range(exponents.size):
        scale, start = weight * scales[exponents[block]], block * BLOCK
        for i in range(QUARTER):
            four = np.int32(codes[block * QUARTER + i])
            for k in range(4):
                code = np.float32((four >> (2 * k)) & 3)
                total[start + k * QUARTER + i] += scale * (code - middle)


@compiled
def add_e3m0(
    total: F32, weight: np.float32, exponents: U8, codes: U8, scales: F32, table: F32
) -> None:
    """Add weight * decoded to the total, in whole blocks of HALF bytes (`rounding.write_e3m0`)."""
    for block in range(exponents.size):
        scale = weight * scales[exponents[block]]
        for i in range(HALF):
            both = codes[block * HALF + i]
            total[block * BLOCK + i] += scale * table[both & 15]
            total[block * BLOCK + HALF + i] += scale * table[both >> 4]


# --- stepping -------------------------------------------------------------------------------------


@compiled
def step(
    master: F32,
    momentum: F32,
    delta: F32,
    bounds: I64,
    factors: F32,
    eta: np.float32,
    mu: np.float32,
    nesterov: bool,
) -> None:
    """Take one outer step by `factor * delta`; see coordinator/outer.py.

    There is a factor for each stretch between two bounds.
    """
    for j in range(factors.size):
        factor, start, stop = factors[j], bounds[j], bounds[j + 1]
        theta, b, moves = master[start:stop], momentum[start:stop], delta[start:stop]
        for i in range(theta.size):
            move = factor * moves[i]
            kept = mu * b[i] - move
            b[i] = kept
            move = move - mu * kept if nesterov else -kept
            theta[i] += eta * move
