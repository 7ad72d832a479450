"""Contributions -> one merged delta, piece by piece, in a fixed order of summation.

Mean: the weighted mean. RDA, radial-directional averaging (arXiv:2604.21428): the mean of the norms
times the direction of the mean of the directions,

    RDA(v) = (sum w |v| / sum w) * phi(sum w phi(v) / sum w),   phi(x) = x / |x|,  phi(0) = 0

per tensor, because plain averaging shortens what points in different directions. Embeddings, whose
rows are touched by few tokens each, take the mean under either rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from coordinator.fragments import Flat, Piece

CANCELLED = 1e-6
"""A mean direction shorter than this points nowhere: fall back to the weighted mean."""
VANISHING = float(np.finfo(np.float32).tiny)
"""A shorter delta points nowhere either: dividing by such a length would overflow."""


class MergeRule(StrEnum):
    """How deltas become one."""

    MEAN = "mean"
    RDA = "rda"


def merge(
    rule: MergeRule, pieces: Sequence[Piece], deltas: Sequence[Flat], weights: Sequence[float]
) -> Flat:
    """Merge whole fragments into a new array; `weights` sum to one, in the order of `deltas`."""
    merged = np.empty_like(deltas[0])
    offset = 0
    for piece in pieces:
        inside = slice(offset, offset + piece.size)
        blocks = [delta[inside] for delta in deltas]
        if rule is MergeRule.MEAN or piece.embedding:
            merged[inside] = mean(blocks, weights)
        else:
            merged[inside] = radial_directional(blocks, weights)
        offset += piece.size
    return merged


def mean(blocks: Sequence[Flat], weights: Sequence[float]) -> Flat:
    """sum w v, added up in the order given."""
    total = blocks[0] * np.float32(weights[0])
    for block, weight in zip(blocks[1:], weights[1:], strict=True):
        total += block * np.float32(weight)
    return total


def radial_directional(blocks: Sequence[Flat], weights: Sequence[float]) -> Flat:
    """RDA of one tensor; a zero vector has a norm of zero and no direction."""
    norms = [norm(block) for block in blocks]
    radius = sum(weight * n for weight, n in zip(weights, norms, strict=True))
    turned = [w / n if n > VANISHING else 0.0 for w, n in zip(weights, norms, strict=True)]
    direction = mean(blocks, turned)
    length = norm(direction)
    if length < CANCELLED:
        return mean(blocks, weights)
    direction *= np.float32(radius / length)
    return direction


def norm(values: Flat) -> float:
    """Euclidean norm, summed pairwise in f64: the same on every machine and thread count."""
    return float(np.sqrt(np.sum(np.square(values, dtype=np.float64))))
