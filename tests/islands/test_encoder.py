"""Encoding on the device gives the same bits as encoding on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.codec import Wire
from coordinator.fragments import Flat
from islands.encoder import OnDevice, OnHost, written
from tests.given import first_of

SIZES = (1, 31, 32, 33, 1000, 4099)
AWKWARD = (0.0, -0.0, np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-30, 2.0**-101, 2.0**-100, 0.5)


def numbers(seed: int, size: int) -> Flat:
    """Return numbers of all magnitudes, with exact zeros and ties, but without denormals."""
    dice = np.random.default_rng(seed)
    drawn = dice.normal(size=size) * np.exp2(
        dice.integers(-30, 30, size=-(-size // 32)).repeat(32)[:size]
    )
    coarse = np.round(drawn * 8) / 8
    return np.where(dice.random(size) < 0.3, coarse, drawn).astype(np.float32)


def same(one: object, other: object) -> None:
    """Check equality to the last bit, including the signs of zeros; any NaN equals any other."""
    a, b = np.asarray(one), np.asarray(other)
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
    if a.dtype == np.float32:
        known = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a[known]), np.signbit(b[known]))


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("messages", first_of([3, 1]))
def test_host_and_device_encode_the_same_bits(wire: Wire, size: int, messages: int) -> None:
    """Payloads are equal, and so are the residuals for the next message."""
    host, device = OnHost(wire), OnDevice(wire)
    left: tuple[object, object] = (None, None)
    for seed in range(messages):
        flat, origin = jnp.asarray(numbers(seed, size)), numbers(100 + seed, size)
        one, kept = host(flat, origin, left[0], 1.0, size)  # type: ignore[arg-type]
        two, held = device(flat, jnp.asarray(origin), left[1], 1.0, size)  # type: ignore[arg-type]
        same(one, two)
        assert (kept is None) == (held is None) == (wire is Wire.F32)
        if kept is not None:
            assert isinstance(held, jax.Array), "it stays where it is"
            same(kept, held)
        left = kept, held


def test_no_compiler_can_drop_the_rounding_to_bfloat16() -> None:
    """XLA drops a conversion to bf16 and back on GPUs, so that all rounding errors were zero."""
    flat = jnp.zeros(64)
    program = written.lower(
        flat, flat, flat, np.float32(1), wire=Wire.BF16, where=flat.sharding
    ).as_text()
    assert "reduce_precision" in program
    assert "(tensor<64xbf16>) -> tensor<64xf32>" not in program, "it converts back"


@pytest.mark.parametrize("wire", Wire)
def test_host_and_device_encode_extreme_values_the_same(wire: Wire) -> None:
    zero = np.zeros(32 * len(AWKWARD), np.float32)
    flat = np.repeat(np.array(AWKWARD, np.float32), 32)  # blocks of one kind, then permuted
    for each in (flat, np.random.default_rng(0).permutation(flat), flat[:45]):
        origin = zero[: each.size]
        one, kept = OnHost(wire)(jnp.asarray(each), origin, None, 1.0, origin.size)
        two, held = OnDevice(wire)(jnp.asarray(each), origin, None, 1.0, origin.size)
        same(one, two)
        if kept is not None:
            same(kept, held)


@pytest.mark.parametrize("wire", Wire)
def test_fault_plan_scale_applies_on_host_and_device(wire: Wire) -> None:
    flat, origin = jnp.asarray(numbers(1, 70)), numbers(2, 70)
    one, _ = OnHost(wire)(flat, origin, None, -1000.0, 70)
    two, _ = OnDevice(wire)(flat, origin, None, -1000.0, 70)
    same(one, two)
    plain, _ = OnDevice(wire)(flat, origin, None, 1.0, origin.size)
    assert not np.array_equal(plain, two)
