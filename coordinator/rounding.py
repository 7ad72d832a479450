"""The inner loops that quantize: a scale for each block, and the nearest code for each element.

coordinator/kernels.py decodes, and explains how such loops are written.
"""

from __future__ import annotations

import numpy as np

from coordinator.kernels import (
    BLOCK,
    F32,
    FRACTION,
    HALF,
    IMPLIED,
    MAGNITUDE,
    MANTISSA_BITS,
    NEAREST,
    NOT_FINITE,
    NOTHING,
    QUARTER,
    U8,
    U32,
    compiled,
)


@compiled
def choose_scales(exponents: U8, bits: U32, down: int, up: np.uint32) -> None:
    """Choose the scale of each block: `down` powers of two below its largest element.

    `bits`: the elements as integers. `up`: 0, or NEAREST for the power nearest to the largest.
    """
    for block in range(exponents.size):
        largest = np.uint32(0)
        for i in range(BLOCK):
            magnitude = bits[block * BLOCK + i] & MAGNITUDE
            if magnitude > largest:
                largest = magnitude
        exponent = np.int64(largest >> MANTISSA_BITS)
        scaled = NOTHING <= exponent < NOT_FINITE
        if scaled:
            exponent = min(np.int64((largest + up) >> MANTISSA_BITS), NOT_FINITE - 1)
        exponents[block] = exponent - down if scaled else (NOT_FINITE if exponent > NOTHING else 0)


@compiled
def lower_to_mean(exponents: U8, bits: U32) -> None:
    """Lower each block's exponent from its largest element to its scale for two bits an element.

    The scale is the power of two nearest to 1.25 times the mean magnitude, which for normally
    distributed numbers is the best distance of four even levels. Blocks of zeros and blocks that
    are not finite stay unchanged. The sum is of integers, in units of the largest element's last
    bit, so it does not depend on the order.
    """
    for block in range(exponents.size):
        exponent = np.int64(exponents[block])
        if not 0 < exponent < NOT_FINITE:
            continue
        total = np.uint32(0)
        for i in range(BLOCK):
            magnitude = bits[block * BLOCK + i] & MAGNITUDE
            down = np.uint32(min(exponent - np.int64(magnitude >> MANTISSA_BITS), 31))
            total += ((magnitude & FRACTION) | IMPLIED) >> down
        total += (total >> np.uint32(1)) + (total >> np.uint32(2))  # 1.75: 1.25 and sqrt(2)
        for power in range(24, 30):
            exponent += np.int64(total >= np.uint32(1 << power))
        exponents[block] = min(exponent - 5, NOT_FINITE - 1)


@compiled
def write_int8(exponents: U8, codes: U8, a: F32, inverses: F32) -> None:
    """Write whole blocks in steps of their scale, half to even, up to 127 either way, plus 128."""
    most = np.float32(127)
    for block in range(exponents.size):
        inverse, start = inverses[exponents[block]], block * BLOCK
        for i in range(HALF):
            low, high = a[start + i] * inverse, a[start + HALF + i] * inverse
            low, high = low if low < most else most, high if high < most else most
            low, high = low if low > -most else -most, high if high > -most else -most
            codes[start + i] = np.uint8(np.int32(np.rint(low)) + 128)
            codes[start + HALF + i] = np.uint8(np.int32(np.rint(high)) + 128)


@compiled
def write_int4(exponents: U8, codes: U8, a: F32, inverses: F32) -> None:
    """Write whole blocks in steps of their scale, half to even, at most 7 either way.

    Byte i of a block holds its elements i (low four bits) and i + HALF (high), each plus 8.
    """
    most = np.float32(7)
    for block in range(exponents.size):
        inverse, start = inverses[exponents[block]], block * BLOCK
        for i in range(HALF):
            low, high = a[start + i] * inverse, a[start + HALF + i] * inverse
            low, high = low if low < most else most, high if high < most else most
            low, high = low if low > -most else -most, high if high > -most else -most
            low_code, high_code = np.int32(np.rint(low)) + 8, np.int32(np.rint(high)) + 8
            codes[block * HALF + i] = np.uint8(low_code | (high_code << 4))


@compiled
def write_int2(exponents: U8, codes: U8, bits: U32) -> None:
    """Write whole blocks as the nearest of -1.5, -0.5, 0.5 and 1.5 steps of their scale.

    Ties go away from zero, and a zero goes by its sign. Byte i of a block holds its elements i, i +
    QUARTER, i + 2 QUARTER and i + 3 QUARTER, two bits each from the lowest on.
    """
    for block in range(exponents.size):
        scale, start = np.uint32(exponents[block]), block * BLOCK
        for i in range(QUARTER):
            four = np.int32(0)
            for k in range(4):
                element = bits[start + k * QUARTER + i]
                far = np.int32(((element & MAGNITUDE) >> MANTISSA_BITS) >= scale)
                code = 1 - far if element >> np.uint32(31) else 2 + far
                four |= code << (2 * k)
            codes[block * QUARTER + i] = np.uint8(four)


@compiled
def write_e3m0(exponents: U8, codes: U8, bits: U32) -> None:
    """Write each element as 0 or the nearest of seven powers of two, ties away from zero.

    A code is a sign bit and three bits of exponent, laid out as in `write_int4`.
    """
    for block in range(exponents.size):
        scale = np.int32(exponents[block])
        for i in range(HALF):
            both = np.int32(0)
            for half in range(2):
                element = bits[block * BLOCK + half * HALF + i]
                magnitude = element & MAGNITUDE
                power = np.int32((magnitude + NEAREST) >> MANTISSA_BITS) - scale + 1
                if power < 1:  # at most half of the smallest power
                    power = np.int32((magnitude >> MANTISSA_BITS) >= scale - 1)
                sign = np.int32(element >> np.uint32(31)) << 3
                both |= (min(power, 7) | sign) << (4 * half)
            codes[block * HALF + i] = np.uint8(both)
