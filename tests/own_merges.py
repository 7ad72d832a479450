"""Merge rules of a user's own, sound and unsound, as targets for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from archipelago import MergePiece

HERE = "tests.own_merges"
Floats = NDArray[np.float32]
Pieces = Sequence[MergePiece]


def mean(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    """Return the built-in mean, added up in its order."""
    del pieces
    total = np.zeros(deltas.shape[1], np.float32)
    for delta, weight in zip(deltas, weights, strict=True):
        total += weight * delta
    return total


def scaled(deltas: Floats, weights: Floats, pieces: Pieces, factor: float) -> Floats:
    return np.float32(factor) * mean(deltas, weights, pieces)


def in_jax(deltas: Floats, weights: Floats, pieces: Pieces) -> Any:
    del pieces
    return jnp.sum(weights[:, None] * deltas, axis=0)


def along(deltas: Floats, weights: Floats, pieces: Pieces, momentum: Floats) -> Floats:
    total = mean(deltas, weights, pieces)
    total += np.float32(0.5) * momentum
    return total


class Median:
    """An object with `__call__`."""

    def __call__(self, deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
        return np.median(deltas, axis=0)


median = Median()


# --- unsound ones ---------------------------------------------------------------------------------


NUMBER = 7


def one_argument(deltas: Floats) -> Floats:
    return deltas[0]


def other_type(deltas: Floats, weights: Floats, pieces: Pieces) -> Any:
    return mean(deltas, weights, pieces).astype(np.float64)


def other_shape(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    return deltas


def infinite(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    return deltas[0] / np.float32(0) if len(deltas) > 1 else deltas[0]


def direction(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    with np.errstate(invalid="ignore"):
        return deltas[0] / np.sqrt(np.sum(deltas[0] * deltas[0], dtype=np.float32))


def noisy(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    return mean(deltas, weights, pieces) + np.float32(np.random.default_rng().normal())


class Remembers:
    """A rule that keeps a sum from call to call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
        self.calls += 1
        return deltas[0] * np.float32(self.calls)


remembers = Remembers()


def writes(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    deltas[0] *= 2
    return deltas[0]


def forces(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    result = deltas[0].copy()
    deltas.flags.writeable = True
    deltas[0] = 0
    return result


def breaks(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    raise RuntimeError("not today")


def breaks_later(deltas: Floats, weights: Floats, pieces: Pieces) -> Floats:
    """Raise in a merge of two contributions, which no trial before the start has."""
    if len(deltas) == 2:
        raise RuntimeError("two are too few")
    return deltas[0]
