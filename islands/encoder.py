"""The encoding of a hand-in: a delta, and the rounding error that it leaves behind.

It is done on the host in NumPy, where the anchor is, or on the device, where only the encoded bytes
are copied to the host. Both give the same bytes, as long as no number is denormal (devices take
those for zero). On the device, anchor and residual stay there too, eight bytes per parameter
(docs/explanation/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from coordinator.codec import Payload, Wire, blocks_of
from coordinator.fragments import Flat
from coordinator.kernels import (
    BLOCK,
    E3M0,
    E3M0_DOWN,
    FRACTION,
    HALF,
    IMPLIED,
    INT4_DOWN,
    INT8_DOWN,
    INVERSES,
    MAGNITUDE,
    MANTISSA_BITS,
    NEAREST,
    NOT_FINITE,
    NOTHING,
    QUARTER,
    SCALES,
)
from islands.mesh import on_host
from islands.own_wire import AnyWire, built_in, decoded_of, encoded

BF16_EXPONENT, BF16_MANTISSA = 8, 7
"""Bits of bfloat16. On GPUs XLA drops a conversion to it and back, and with it the rounding error,
but never a `reduce_precision`."""

Numbers: TypeAlias = Flat | jax.Array
"""A flat fragment, [size] f32, on the host or on the device."""


class Encoder(Protocol):
    """An encoder of flat - origin + taken; `taken`: the rounding error of earlier messages."""

    def __call__(
        self, flat: jax.Array, origin: Numbers, taken: Numbers | None, spoil: float, size: int
    ) -> tuple[Payload, Numbers | None]:
        """Return the payload, and its rounding error (None: it has none).

        `spoil`: a factor that a fault plan puts on the delta. `size`: elements to encode, the first
        ones of what this host has; the rest is padding.
        """
        ...


class OnHost:
    """An encoder that copies the fragment to the host and encodes it there."""

    def __init__(self, wire: AnyWire) -> None:
        self._wire = wire

    def __call__(
        self, flat: jax.Array, origin: Numbers, taken: Numbers | None, spoil: float, size: int
    ) -> tuple[Payload, Numbers | None]:
        """Return the payload and its rounding error, as `Encoder` does."""
        delta = _read(flat)[:size] - _read(origin)[:size]
        if spoil != 1.0:
            delta *= np.float32(spoil)
        if taken is not None:
            delta += taken
        payload = encoded(self._wire, delta)
        if self._wire is Wire.F32:
            return payload, None
        with np.errstate(invalid="ignore"):  # the gate sees what is not finite
            return payload, delta - decoded_of(self._wire, payload, delta.size)


def _read(numbers: Numbers) -> Flat:
    return on_host(numbers) if isinstance(numbers, jax.Array) else numbers


class OnDevice:
    """An encoder that works where the fragment is, and copies the payload to the host."""

    def __init__(self, wire: AnyWire) -> None:
        self._wire = built_in(wire)

    def __call__(
        self, flat: jax.Array, origin: Numbers, taken: Numbers | None, spoil: float, size: int
    ) -> tuple[Payload, Numbers | None]:
        """Return the payload and its rounding error, as `Encoder` does."""
        where, factor = flat.sharding, np.float32(spoil)
        parts, left = written(flat, origin, taken, factor, wire=self._wire, where=where)
        count = blocks_of(size) if len(parts) > 1 else size
        return np.concatenate([on_host(part)[:count].reshape(-1) for part in parts]), left


@partial(jax.jit, static_argnames=("wire", "where"))
def written(
    flat: jax.Array,
    origin: jax.Array,
    taken: jax.Array | None,
    spoil: jax.Array,
    *,
    wire: Wire,
    where: jax.sharding.Sharding,
) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    """Encode on the device; return the parts of the payload, and the rounding error.

    The parts are [size] elements, or [n, 1] exponents and [n, ...] codes of n blocks. `where`: the
    sharding of the fragment and of all that is made of it, so that a block stays on its device.
    """
    parts, left = _parts(wire, _delta(flat, origin, taken, spoil))
    if len(where.device_set) > 1:
        parts, left = jax.lax.with_sharding_constraint((parts, left), where)
    return parts, left


def _delta(
    flat: jax.Array, origin: jax.Array, taken: jax.Array | None, spoil: jax.Array
) -> jax.Array:
    delta = (flat - origin) * spoil
    return delta if taken is None else delta + taken


def _parts(wire: Wire, delta: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    match wire:
        case Wire.F32:
            return (delta,), None
        case Wire.BF16:
            rounded = jax.lax.reduce_precision(delta, BF16_EXPONENT, BF16_MANTISSA)
            payload = jax.lax.bitcast_convert_type(rounded.astype(jnp.bfloat16), jnp.uint16)
            return (payload,), delta - rounded
        case Wire.INT8 | Wire.INT4 | Wire.INT2 | Wire.E3M0:
            blocks = jnp.pad(delta, (0, -delta.size % BLOCK)).reshape(-1, BLOCK)
            parts, decoded = _in_blocks(wire, blocks)
            decoded = decoded.reshape(-1)[: delta.size]
            return parts, jnp.where(decoded == 0, delta, delta - decoded)  # a -0 stays one


def _in_blocks(wire: Wire, values: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Return exponents, codes and decoded values of whole blocks, [n, BLOCK].

    This is coordinator.rounding in JAX.
    """
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    if wire is Wire.E3M0:
        exponents = _scales(bits, E3M0_DOWN, NEAREST)
        codes = _powers(bits, exponents)
        decoded = jnp.asarray(E3M0)[codes]
    elif wire is Wire.INT2:
        exponents = _mean_scales(bits)
        codes = _levels(bits, exponents)
        decoded = codes.astype(jnp.float32) - np.float32(1.5)
    else:
        down, most = (INT8_DOWN, 127) if wire is Wire.INT8 else (INT4_DOWN, 7)
        exponents = _scales(bits, down, np.uint32(0))
        steps = values * jnp.asarray(INVERSES)[exponents][:, None]
        steps = jnp.where(steps < most, steps, np.float32(most))  # also NaN
        steps = jnp.where(steps > -most, steps, np.float32(-most))
        rounded = jnp.rint(steps).astype(jnp.int32)
        codes, decoded = rounded + (most + 1), rounded.astype(jnp.float32)  # has no -0
    if wire is Wire.INT2:
        a, b, c, d = (codes[:, i * QUARTER : (i + 1) * QUARTER] for i in range(4))
        codes = a | (b << 2) | (c << 4) | (d << 6)
    elif wire is not Wire.INT8:
        codes = codes[:, :HALF] | (codes[:, HALF:] << 4)
    parts = exponents[:, None].astype(jnp.uint8), codes.astype(jnp.uint8)
    if wire is Wire.E3M0:
        parts = tuple(jax.lax.bitcast_convert_type(part, jnp.int8) for part in parts)
    return parts, decoded * jnp.asarray(SCALES)[exponents][:, None]


def _scales(bits: jax.Array, down: int, up: np.uint32) -> jax.Array:
    """Return [n] exponents; see `rounding.choose_scales`."""
    largest = jnp.max(bits & MAGNITUDE, axis=1)
    exponent = (largest >> MANTISSA_BITS).astype(jnp.int32)
    scaled = (exponent >= NOTHING) & (exponent < NOT_FINITE)
    raised = ((largest + up) >> MANTISSA_BITS).astype(jnp.int32)
    scale = jnp.minimum(raised, NOT_FINITE - 1) - down
    return jnp.where(scaled, scale, jnp.where(exponent > NOTHING, NOT_FINITE, 0))


def _mean_scales(bits: jax.Array) -> jax.Array:
    """Return [n] exponents; see `rounding.lower_to_mean`."""
    magnitude, largest = bits & MAGNITUDE, _scales(bits, 0, np.uint32(0))
    exponent = (magnitude >> MANTISSA_BITS).astype(jnp.int32)
    down = jnp.minimum(largest[:, None] - exponent, 31).astype(jnp.uint32)
    total = jnp.sum(((magnitude & FRACTION) | IMPLIED) >> down, axis=1, dtype=jnp.uint32)
    total += (total >> np.uint32(1)) + (total >> np.uint32(2))
    powers = np.uint32(1) << np.arange(24, 30, dtype=np.uint32)
    scale = largest - 5 + jnp.sum(total[:, None] >= powers, axis=1, dtype=jnp.int32)
    scaled = (largest > 0) & (largest < NOT_FINITE)
    return jnp.where(scaled, jnp.minimum(scale, NOT_FINITE - 1), largest)


def _powers(bits: jax.Array, exponents: jax.Array) -> jax.Array:
    """Return [n, BLOCK] codes; see `rounding.write_e3m0`."""
    scale = exponents[:, None]
    magnitude = bits & MAGNITUDE
    power = ((magnitude + NEAREST) >> MANTISSA_BITS).astype(jnp.int32) - scale + 1
    half = (magnitude >> MANTISSA_BITS).astype(jnp.int32) >= scale - 1
    power = jnp.where(power < 1, half.astype(jnp.int32), power)
    sign = (bits >> np.uint32(31)).astype(jnp.int32) << 3
    return jnp.minimum(power, 7) | sign


def _levels(bits: jax.Array, exponents: jax.Array) -> jax.Array:
    """Return [n, BLOCK] codes; see `rounding.write_int2`."""
    exponent = ((bits & MAGNITUDE) >> MANTISSA_BITS).astype(jnp.int32)
    is_far = (exponent >= exponents[:, None]).astype(jnp.int32)
    return jnp.where(bits >> np.uint32(31) == 1, 1 - is_far, 2 + is_far)


Where: TypeAlias = Literal["host", "device"]
ENCODERS: Mapping[Where, Callable[[AnyWire], Encoder]] = {"host": OnHost, "device": OnDevice}
