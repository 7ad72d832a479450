"""A fragment on the wire comes back as it was, or nearly, and never as something else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coordinator.codec import Wire, decode, encode
from coordinator.errors import CorruptPayload
from coordinator.fragments import Flat

BF16_HALF_STEP = 2.0**-8
"""Half of the distance between neighbours, relative: bf16 keeps 8 bits of the significand."""
BF16_HALF_STEP_AT_ZERO = 2.0**-134
"""... and absolute, where numbers are denormal."""
BF16_MAX = 3.3895313892515355e38

LENGTHS = st.integers(0, 20)
anything = hnp.arrays(np.float32, LENGTHS, elements=st.floats(width=32))
finite = hnp.arrays(np.float32, LENGTHS, elements=st.floats(-(2.0**127), 2.0**127, width=32))
moderate = st.floats(-100, 100, width=32)


def sent(wire: Wire, values: Flat) -> Flat:
    return decode(encode(wire, values), values.size)


@given(anything)
def test_f32_is_passed_through_bit_for_bit_and_not_copied(values: Flat) -> None:
    back = sent(Wire.F32, values)
    assert np.shares_memory(back, values) or values.size == 0
    assert back.tobytes() == values.tobytes()


@given(finite)
def test_bf16_loses_at_most_half_a_step_of_its_numbers(values: Flat) -> None:
    error = np.abs(sent(Wire.BF16, values).astype(np.float64) - values)
    allowed = np.maximum(BF16_HALF_STEP * np.abs(values.astype(np.float64)), BF16_HALF_STEP_AT_ZERO)
    assert (error <= allowed).all()


@given(anything)
def test_bf16_sent_twice_is_the_same_as_sent_once(values: Flat) -> None:
    once = sent(Wire.BF16, values)
    np.testing.assert_array_equal(sent(Wire.BF16, once), once)


def test_bf16_keeps_what_is_no_number_and_what_is_infinite() -> None:
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
def test_the_wire_is_a_plain_array_of_the_size_it_says(wire: Wire) -> None:
    payload = encode(wire, np.ones(5, np.float32))
    assert payload.dtype.isbuiltin == 1
    assert payload.flags.c_contiguous
    assert payload.nbytes == 5 * wire.bytes_per_element


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("size", [0, 4, 6])
def test_a_payload_of_another_size_is_refused(wire: Wire, size: int) -> None:
    with pytest.raises(CorruptPayload, match=rf"\(5,\).* {size} elements"):
        decode(encode(wire, np.ones(5, np.float32)), size)


def test_a_payload_of_another_shape_or_dtype_is_refused() -> None:
    with pytest.raises(CorruptPayload, match="shape"):
        decode(np.ones((1, 5), np.float32), 5)
    for dtype in (np.float64, np.int16, np.float16, ">f4"):
        with pytest.raises(CorruptPayload, match="dtype"):
            decode(np.ones(5, dtype), 5)


@given(finite)
def test_what_bf16_loses_is_known_to_the_last_bit(values: Flat) -> None:
    residual = values - sent(Wire.BF16, values)
    np.testing.assert_array_equal(sent(Wire.BF16, values) + residual, values)


@given(st.lists(hnp.arrays(np.float32, 3, elements=moderate), min_size=1, max_size=40))
def test_error_feedback_returns_in_later_messages_what_was_lost(deltas: list[Flat]) -> None:
    residual, received = np.zeros(3, np.float32), np.zeros(3)
    for delta in deltas:
        wanted = delta + residual
        arrived = sent(Wire.BF16, wanted)
        residual = wanted - arrived
        received += arrived
    meant = np.sum(deltas, axis=0, dtype=np.float64)
    # All that is missing is the last residual; f32 additions of numbers up to 100 round by 4e-6.
    np.testing.assert_allclose(received + residual, meant, rtol=0, atol=1e-5 * len(deltas))
