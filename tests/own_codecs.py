"""Codecs of a user's own, sound and unsound, as targets for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = "tests.own_codecs"
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Halves:
    """A codec of float16, which is also a codec without options."""

    def encode(self, values: Floats) -> Bytes:
        return np.clip(values, -6e4, 6e4).astype(np.float16).view(np.uint8)

    def decode(self, payload: Bytes, size: int) -> Floats:
        return payload.view(np.float16).astype(np.float32)

    def bytes_of(self, size: int) -> int:
        return 2 * size


halves = Halves()


class Exact(Halves):
    """A codec that loses nothing."""

    def encode(self, values: Floats) -> Bytes:
        return values.view(np.uint8).copy()

    def decode(self, payload: Bytes, size: int) -> Floats:
        return payload.copy().view(np.float32)

    def bytes_of(self, size: int) -> int:
        return 4 * size


class Signs(Halves):
    """A codec of one bit for each element, and the mean magnitude."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def encode(self, values: Floats) -> Bytes:
        mean = np.float32(self.scale * np.abs(values).mean(dtype=np.float64))
        return np.concatenate([np.array([mean]).view(np.uint8), np.packbits(values >= 0)])

    def decode(self, payload: Bytes, size: int) -> Floats:
        (mean,) = payload[:4].copy().view(np.float32)
        return np.where(np.unpackbits(payload[4:], count=size) > 0, mean, -mean)

    def bytes_of(self, size: int) -> int:
        return 4 + (size + 7) // 8


# --- unsound ones ---------------------------------------------------------------------------------


class WithoutDecode:
    def encode(self, values: Floats) -> Bytes:
        return values.view(np.uint8)

    def bytes_of(self, size: int) -> int:
        return 4 * size


class OtherLength(Halves):
    def encode(self, values: Floats) -> Bytes:
        return np.zeros(3, np.uint8)


class OfValues(Halves):
    """A codec whose bytes depend on the values: it sends those that are not zero."""

    def encode(self, values: Floats) -> Bytes:
        return values[values != 0].astype(np.float16).view(np.uint8)


class OtherType(Halves):
    def decode(self, payload: Bytes, size: int) -> Any:
        return payload.view(np.float16).astype(np.float64)


class OtherShape(Halves):
    def decode(self, payload: Bytes, size: int) -> Any:
        return payload.view(np.float16).astype(np.float32)[:1]


class Rounded(Halves):
    """A codec that rounds at random."""

    def encode(self, values: Floats) -> Bytes:
        noise = np.random.default_rng().normal(size=values.size)
        return (values + noise.astype(np.float32)).astype(np.float16).view(np.uint8)


class Forgets(Halves):
    def decode(self, payload: Bytes, size: int) -> Floats:
        return np.zeros(size, np.float32)


class Doubles(Halves):
    """An unbiased codec of a half of the elements: its error is as large as the values."""

    def decode(self, payload: Bytes, size: int) -> Floats:
        values = 2 * super().decode(payload, size)
        values[::2] = 0
        return values


class MovesZeros(Halves):
    def decode(self, payload: Bytes, size: int) -> Floats:
        return super().decode(payload, size) + np.float32(1e-3)


class Breaks(Halves):
    def encode(self, values: Floats) -> Bytes:
        raise RuntimeError("not today")


class Fraction(Halves):
    def bytes_of(self, size: int) -> Any:
        return 2.5 * size


class Infinite(Halves):
    def decode(self, payload: Bytes, size: int) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return super().decode(payload, size) / np.float32(0)
