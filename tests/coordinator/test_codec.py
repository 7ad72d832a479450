"""A fragment survives the wire within the error bound of its encoding.

The quantized wires are compared with a naive reference, `written`, in f64 and one block at a time.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coordinator.codec import (
    Payload,
    Wire,
    add_decoded,
    decode,
    decoded,
    encode,
    encode_difference,
)
from coordinator.errors import CorruptPayload
from coordinator.fragments import Flat
from coordinator.kernels import TILE, frozen
from coordinator.scratch import room_of_my_own

BF16_HALF_STEP = 2.0**-8
"""Half of the relative distance between neighbours: bf16 has an 8-bit significand."""
BF16_HALF_STEP_AT_ZERO = 2.0**-134
"""The absolute bound, for denormal numbers."""
BF16_MAX = 3.3895313892515355e38

LENGTHS = st.integers(0, 20)
anything = hnp.arrays(np.float32, LENGTHS, elements=st.floats(width=32))
finite = hnp.arrays(np.float32, LENGTHS, elements=st.floats(-(2.0**127), 2.0**127, width=32))
moderate = st.floats(-100, 100, width=32)


CODED = [Wire.INT8, Wire.INT4, Wire.INT2, Wire.E3M0]
coded = pytest.mark.parametrize("wire", CODED)
in_steps = pytest.mark.parametrize("wire", [Wire.INT8, Wire.INT4])
MOST = {Wire.INT8: 127, Wire.INT4: 7}
"""The largest number of quantization steps in either direction."""
BLOCK = 32
sizes = st.sampled_from([1, 2, 31, 32, 33, 64, 95, 200])
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def written(wire: Wire, values: Flat) -> np.ndarray:
    """Return the decoded form of finite values, as the format defines it."""
    found: list[float] = []
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        largest = float(np.max(np.abs(block)))
        if largest < 2.0**-100:
            found += [0.0] * block.size
            continue
        if wire is Wire.E3M0:
            found += list(written_in_powers(block, largest))
            continue
        if wire is Wire.INT2:
            found += list(written_in_two_bits(block, largest))
            continue
        scale = 2.0 ** (math.floor(math.log2(largest)) - (6 if wire is Wire.INT8 else 2))
        steps = np.clip(np.rint(block / scale), -MOST[wire], MOST[wire])
        found += list(steps * scale)
    return np.array(found)


def written_in_powers(block: np.ndarray, largest: float) -> np.ndarray:
    """Return the nearest of zero and seven powers of two.

    The largest of the powers is the one nearest to the largest element, at most 2^127 (f32). Ties
    round away from zero.
    """
    top = min(nearest_power(largest), 127)
    levels = np.array([*(2.0 ** np.arange(top, top - 7, -1)), 0])
    apart = np.abs(np.abs(block)[:, None] - levels)
    return np.copysign(levels[np.argmin(apart, axis=1)], block)


def written_in_two_bits(block: np.ndarray, largest: float) -> np.ndarray:
    """Return half a step or one and a half, whichever is nearer; ties round away from zero.

    A step is the power of two next to 1.25 times the mean magnitude of 32 elements; 1.75
    approximates 1.25 sqrt(2). Each magnitude is first truncated below the last bit of the largest
    one.
    """
    last_bit = 2.0 ** (math.floor(math.log2(largest)) - 23)
    total = sum(int(number // last_bit) for number in np.abs(block))
    total += total // 2 + total // 4
    step = min(2.0 ** (total.bit_length() - 1) * last_bit / BLOCK, 2.0**127)
    return np.copysign(np.where(np.abs(block) < step, 0.5, 1.5) * step, block)


def nearest_power(number: float) -> int:
    below = math.floor(math.log2(number))
    return below + (number >= 1.5 * 2.0**below)


@coded
@given(sizes.flatmap(lambda size: hnp.arrays(np.float32, size, elements=numbers)))
def test_quantized_values_match_a_naive_reference(wire: Wire, values: Flat) -> None:
    np.testing.assert_array_equal(sent(wire, values), written(wire, values))


@in_steps
@given(st.integers(0, 2**32 - 1), st.integers(-90, 90))
def test_int_codes_lose_at_most_half_a_step_of_their_block(
    wire: Wire, seed: int, size: int
) -> None:
    """Elements above the last step lose more than half a step, but less than one.

    A step is at most a quarter (int4) or a 64th (int8) of the largest element.
    """
    chance = np.random.default_rng(seed)
    values = (chance.standard_normal(BLOCK) * 2.0**size).astype(np.float32)
    largest = float(np.max(np.abs(values)))
    scale = 2.0 ** (math.floor(math.log2(largest)) - (6 if wire is Wire.INT8 else 2))
    error = np.abs(sent(wire, values).astype(np.float64) - values)
    beyond = np.abs(values) > (MOST[wire] + 0.5) * scale
    assert (error[~beyond] <= scale / 2).all()
    assert (error[beyond] < scale).all()


@given(st.integers(0, 2**32 - 1), st.integers(-90, 90))
def test_e3m0_loses_at_most_a_third_of_all_but_small_elements(seed: int, size: int) -> None:
    chance = np.random.default_rng(seed)
    values = (chance.standard_normal(BLOCK) * 2.0**size).astype(np.float32)
    lengths = np.abs(values.astype(np.float64))
    error = np.abs(sent(Wire.E3M0, values) - values.astype(np.float64))
    smallest = 2.0 ** (nearest_power(float(lengths.max())) - 6)
    assert (error[lengths >= smallest] <= lengths[lengths >= smallest] / 3).all()
    assert (error[lengths < smallest] <= smallest / 2).all()


@given(sizes.flatmap(lambda size: hnp.arrays(np.float32, size, elements=numbers)))
def test_int2_error_is_smaller_than_each_block(values: Flat) -> None:
    """Each block loses less than its norm, however uneven it is, so error feedback converges."""
    lost = values.astype(np.float64) - sent(Wire.INT2, values)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        if np.abs(block).max() >= 2.0**-100:
            assert np.linalg.norm(lost[start : start + BLOCK]) < np.linalg.norm(block)


@given(st.integers(0, 2**32 - 1), st.integers(-90, 90))
def test_int2_loses_less_than_half_of_normal_numbers(seed: int, size: int) -> None:
    """Levels at their best distance lose 34 % of the norm, those of a power of two up to 43 %."""
    chance = np.random.default_rng(seed)
    values = (chance.standard_normal(100 * BLOCK) * 2.0**size).astype(np.float32)
    lost = np.linalg.norm(values - sent(Wire.INT2, values).astype(np.float64))
    assert 0.3 < lost / np.linalg.norm(values.astype(np.float64)) < 0.45


@pytest.mark.parametrize("wire", [Wire.INT8, Wire.INT4, Wire.E3M0])
@given(sizes.flatmap(lambda size: hnp.arrays(np.float32, size, elements=numbers)))
def test_quantization_is_idempotent(wire: Wire, values: Flat) -> None:
    once = sent(wire, values)
    np.testing.assert_array_equal(sent(wire, once), once)


@coded
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_non_finite_element_makes_only_its_block_nan(wire: Wire, poison: float) -> None:
    values = np.ones(3 * BLOCK, np.float32)
    values[BLOCK + 7] = poison
    back = sent(wire, values)
    assert np.isnan(back[BLOCK : 2 * BLOCK]).all()
    alone = sent(wire, np.ones(BLOCK, np.float32))
    np.testing.assert_array_equal(back[:BLOCK], alone)
    np.testing.assert_array_equal(back[2 * BLOCK :], alone)
    np.testing.assert_array_equal(alone, 1.5 if wire is Wire.INT2 else 1)


@coded
def test_tiny_values_become_zero_and_stay_in_the_residual(wire: Wire) -> None:
    values = np.array([1e-44, -1e-39, 7e-31], np.float32)
    np.testing.assert_array_equal(sent(wire, values), 0)
    np.testing.assert_array_equal(values - sent(wire, values), values)


@coded
def test_largest_f32_numbers_stay_finite(wire: Wire) -> None:
    top = np.finfo(np.float32).max
    back = sent(wire, np.array([top, -top, 1], np.float32))
    assert np.isfinite(back).all()
    if wire is Wire.INT2:  # int2's levels follow the mean of the block
        back = sent(wire, np.tile(np.array([top, -top], np.float32), BLOCK // 2))
    rtol = {Wire.E3M0: 0.51, Wire.INT2: 0.51}.get(wire, 0.15)
    np.testing.assert_allclose(back[:2], [top, -top], rtol=rtol)


def test_block_bytes_match_the_documented_format() -> None:
    values = np.zeros(BLOCK, np.float32)
    values[0], values[1], values[16] = 4.0, -7.0, 2.5
    eighths, fourths = encode(Wire.INT8, values), encode(Wire.INT4, values)
    assert eighths[0] == 127 + 2 - 6
    assert list(eighths[[1, 2, 17, 3]]) == [128 + 64, 128 - 112, 128 + 40, 128]
    assert fourths[0] == 127
    assert list(fourths[1:4]) == [(8 + 4) | (8 + 2) << 4, (8 - 7) | 8 << 4, 0x88]
    powers = encode(Wire.E3M0, values).view(np.uint8)  # 4, -8, 2, in steps of an eighth
    assert powers[0] == 127 + 3 - 6
    assert list(powers[1:4]) == [6 | 5 << 4, 8 + 7, 0]
    halves = encode(Wire.INT2, values)  # the mean magnitude is 0.42, the step a half
    assert halves[0] == 127 - 1
    assert list(halves[1:4]) == [3 | 2 << 2 | 3 << 4 | 2 << 6, 0 | 0b10101000, 0b10101010]


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("size", [1, 33, TILE - 1, TILE + 1, 2 * TILE + 40])
def test_decoding_a_range_matches_decoding_the_whole(wire: Wire, size: int) -> None:
    """The range may begin in one block, end in another, and cross the edge of a tile."""
    chance = np.random.default_rng(size)
    values = chance.standard_normal(size).astype(np.float32)
    payload, whole = frozen(encode(wire, values)), sent(wire, values)
    for _ in range(20):
        start = int(chance.integers(size))
        stop = int(chance.integers(start, min(size, start + TILE))) + 1
        with room_of_my_own() as room:
            found = decoded(payload, start, stop, size, room)
            np.testing.assert_array_equal(found, whole[start:stop])


@pytest.mark.parametrize("wire", list(Wire))
def test_tiled_difference_matches_encoding_in_one_piece(wire: Wire) -> None:
    chance, size = np.random.default_rng(5), TILE + 77
    older, newer = (chance.standard_normal(size).astype(np.float32) for _ in range(2))
    payload, norm = encode_difference(wire, newer, older)
    assert norm == pytest.approx(np.linalg.norm((newer - older).astype(np.float64)), rel=1e-12)
    assert payload.tobytes() == encode(wire, newer - older).tobytes()
    total = older.copy()
    add_decoded(total, payload)
    np.testing.assert_array_equal(total, older + decode(payload, size))


@pytest.mark.parametrize("wire", list(Wire))
def test_codec_accepts_any_memory_layout(wire: Wire) -> None:
    """The input may be read-only, unaligned, or every second element of an array."""
    values = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    crooked = np.frombuffer(b"x" + values.tobytes(), np.float32, offset=1)
    spread = np.repeat(values, 2)[::2]
    wanted = np.asarray(encode(wire, values)).tobytes()
    for other in (crooked, spread):
        payload = encode(wire, other)
        assert payload.tobytes() == wanted
        np.testing.assert_array_equal(decode(payload, 100), sent(wire, values))
    odd = np.frombuffer(b"x" + wanted, encode(wire, values).dtype, offset=1)
    again = decode(cast("Payload", odd), 100)
    np.testing.assert_array_equal(again, sent(wire, values))


def sent(wire: Wire, values: Flat) -> Flat:
    return decode(encode(wire, values), values.size)


@given(anything)
def test_f32_passes_through_bit_for_bit_without_a_copy(values: Flat) -> None:
    back = sent(Wire.F32, values)
    assert np.shares_memory(back, values) or values.size == 0
    assert back.tobytes() == values.tobytes()


@given(finite)
def test_bf16_loses_at_most_half_a_step(values: Flat) -> None:
    error = np.abs(sent(Wire.BF16, values).astype(np.float64) - values)
    allowed = np.maximum(BF16_HALF_STEP * np.abs(values.astype(np.float64)), BF16_HALF_STEP_AT_ZERO)
    assert (error <= allowed).all()


@given(anything)
def test_bf16_rounding_is_idempotent(values: Flat) -> None:
    once = sent(Wire.BF16, values)
    np.testing.assert_array_equal(sent(Wire.BF16, once), once)


def test_bf16_keeps_nan_infinity_and_negative_zero() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    back = sent(Wire.BF16, values)
    np.testing.assert_array_equal(back, values)
    assert np.signbit(back[3])


def test_bf16_rounds_to_even_and_keeps_denormals() -> None:
    denormal = np.float32(2.0**-130)
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, denormal, BF16_MAX], np.float32)
    np.testing.assert_array_equal(
        sent(Wire.BF16, values), np.array([1, 1 + 2**-6, denormal, BF16_MAX], np.float32)
    )


@pytest.mark.parametrize("wire", list(Wire))
def test_payload_is_a_plain_array_of_the_declared_size(wire: Wire) -> None:
    payload = encode(wire, np.ones(5, np.float32))
    assert payload.dtype.isbuiltin == 1
    assert payload.flags.c_contiguous
    assert payload.nbytes == wire.bytes_of(5)


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("size", [0, 32, 65, 128])
def test_refuses_payload_of_another_size(wire: Wire, size: int) -> None:
    """For quantized wires, only another number of blocks is noticed."""
    with pytest.raises(CorruptPayload, match=rf"shape \(\d+,\).* {size} elements"):
        decode(encode(wire, np.ones(33, np.float32)), size)


def test_refuses_payload_of_another_shape_or_dtype() -> None:
    with pytest.raises(CorruptPayload, match="shape"):
        decode(np.ones((1, 5), np.float32), 5)
    for dtype in (np.float64, np.int16, np.float16, ">f4"):
        with pytest.raises(CorruptPayload, match="dtype"):
            decode(np.ones(5, dtype), 5)


@given(finite)
def test_bf16_residual_is_exact(values: Flat) -> None:
    residual = values - sent(Wire.BF16, values)
    np.testing.assert_array_equal(sent(Wire.BF16, values) + residual, values)


@given(st.lists(hnp.arrays(np.float32, 3, elements=moderate), min_size=1, max_size=40))
@pytest.mark.parametrize("wire", [Wire.BF16, *CODED])
def test_error_feedback_sends_rounding_errors_with_later_messages(
    wire: Wire, deltas: list[Flat]
) -> None:
    residual, received = np.zeros(3, np.float32), np.zeros(3)
    for delta in deltas:
        wanted = delta + residual
        arrived = sent(wire, wanted)
        residual = wanted - arrived
        received += arrived
    meant = np.sum(deltas, axis=0, dtype=np.float64)
    # Only the last residual is missing; f32 additions of numbers up to 200 round by 1e-5.
    np.testing.assert_allclose(received + residual, meant, rtol=0, atol=4e-5 * len(deltas))
