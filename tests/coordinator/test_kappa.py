"""Damped radial averaging, between the mean and RDA, matches a naive reference in f64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinator.alignment import AlignmentPart
from coordinator.codec import Wire, decode, encode
from coordinator.fragments import Leaf, cut
from coordinator.kernels import frozen
from coordinator.merge import MergeRule, merged_of, norms

PIECES = cut([Leaf("w", (8, 5)), Leaf("b", (9,)), Leaf("table", (3, 2), embedding=True)], 1)
SIZE = PIECES.parameters
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, n: int, spread: float) -> tuple[np.ndarray, list[float]]:
    """Return deltas [n, SIZE] of very different lengths, and their weights."""
    rng = np.random.default_rng(seed)
    deltas = rng.normal(size=(n, SIZE)) * np.exp(spread * rng.normal(size=(n, 1)))
    raw = rng.uniform(0.1, 1, n)
    return deltas.astype(np.float32), [float(w) for w in raw / raw.sum()]


def merged(
    rule: MergeRule, kappa: float, deltas: np.ndarray, shares: list[float], wire: Wire = Wire.F32
) -> np.ndarray:
    pieces = PIECES.fragments[0]
    written = [frozen(encode(wire, delta)) for delta in deltas]
    parts = [AlignmentPart(p, w, norms(p, pieces)) for p, w in zip(written, shares, strict=True)]
    return merged_of(rule, pieces, parts, map, kappa)


def naive(kappa: float, deltas: np.ndarray, shares: list[float]) -> np.ndarray:
    """Return d (sum w |v|)^kappa (sum w |v|^(1-kappa) / |d|)^kappa with d = sum w v / |v|^kappa."""
    wide, w, out = deltas.astype(np.float64), np.array(shares), np.empty(SIZE)
    start = 0
    for piece in PIECES.fragments[0]:
        inside, start = slice(start, start + piece.size), start + piece.size
        v = wide[:, inside]
        if piece.embedding:
            out[inside] = w @ v
            continue
        length = np.linalg.norm(v, axis=1)
        d = (w / length**kappa) @ v
        factor = (w @ length) * (w @ length ** (1 - kappa)) / np.linalg.norm(d)
        out[inside] = d * factor**kappa
    return out


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 5), st.sampled_from([*Wire]), st.floats(0.01, 1.0))
def test_damped_rda_matches_a_naive_reference_per_tensor(
    seed: int, n: int, wire: Wire, kappa: float
) -> None:
    deltas, shares = drawn(seed, n, 1.0)
    found = merged(MergeRule.RDA, kappa, deltas, shares, wire)
    as_sent = np.array([decode(encode(wire, delta), SIZE) for delta in deltas])
    np.testing.assert_allclose(
        found, naive(kappa, as_sent, shares), rtol=2e-4, atol=2e-4 * np.abs(found).max()
    )


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 5))
def test_kappa_near_zero_is_the_mean_and_near_one_is_rda(seed: int, n: int) -> None:
    deltas, shares = drawn(seed, n, 1.0)
    plain, whole = (merged(rule, 1.0, deltas, shares) for rule in (MergeRule.MEAN, MergeRule.RDA))
    almost = merged(MergeRule.RDA, 1e-6, deltas, shares)
    np.testing.assert_allclose(almost, plain, rtol=1e-4, atol=1e-4 * np.abs(plain).max())
    almost = merged(MergeRule.RDA, 1 - 1e-9, deltas, shares)
    np.testing.assert_allclose(almost, whole, rtol=1e-4, atol=1e-4 * np.abs(whole).max())


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(0.05, 0.95), st.floats(1e-3, 1e3))
def test_merged_delta_scales_with_the_deltas(seed: int, kappa: float, scale: float) -> None:
    deltas, shares = drawn(seed, 3, 1.0)
    one = merged(MergeRule.RDA, kappa, deltas, shares)
    other = merged(MergeRule.RDA, kappa, np.float32(scale) * deltas, shares)
    np.testing.assert_allclose(other, scale * one, rtol=1e-3, atol=1e-3 * scale * abs(one).max())


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 5))
def test_merged_length_grows_with_kappa_for_equal_lengths(seed: int, n: int) -> None:
    deltas, shares = drawn(seed, n, 0.0)
    start = 0
    for piece in PIECES.fragments[0]:  # normalize each tensor, so that all merges are parallel
        inside, start = slice(start, start + piece.size), start + piece.size
        deltas[:, inside] /= np.linalg.norm(deltas[:, inside], axis=1, keepdims=True)
    lengths = [
        float(np.linalg.norm(merged(MergeRule.RDA, kappa, deltas, shares)[:49]))
        for kappa in (0.01, 0.3, 0.6, 1.0)
    ]
    assume(lengths[-1] > 1.01 * lengths[0])
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("kappa", [0.2, 0.5, 0.9])
def test_zero_and_cancelling_deltas_merge_to_finite_values(kappa: float) -> None:
    delta = np.linspace(-1, 1, SIZE, dtype=np.float32)
    nothing = np.zeros(SIZE, np.float32)
    halved = merged(MergeRule.RDA, kappa, np.array([delta, nothing]), [0.5, 0.5])
    assert np.isfinite(halved).all()
    assert np.linalg.norm(halved) > 0
    gone = merged(MergeRule.RDA, kappa, np.array([delta, -delta]), [0.5, 0.5])
    assert np.abs(gone).max() < 1e-6
    assert not merged(MergeRule.RDA, kappa, np.array([nothing, nothing]), [0.5, 0.5]).any()
