"""Mean and radial-directional averaging (RDA) match a naive reference in f64."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coordinator.alignment import AlignmentPart, directions
from coordinator.codec import Wire, decode, encode
from coordinator.fragments import Flat, Layout, Leaf, Piece, cut
from coordinator.kernels import TILE, frozen
from coordinator.merge import MergeRule, merge, merge_into, merged_of, norms
from coordinator.orders import MOST_SHARE, weigh
from coordinator.outer import OuterRule, step
from coordinator.tiles import SHARE
from tests.coordinator.given import contribution, life
from tests.given import outer_rule

LAYOUT: Layout = cut([Leaf("w", (4, 3)), Leaf("b", (5,)), Leaf("table", (3, 2), embedding=True)], 1)
PIECES = LAYOUT.fragments[0]
SIZE = LAYOUT.parameters

numbers = st.floats(-10, 10, width=32).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
deltas = st.integers(1, 5).flatmap(lambda n: hnp.arrays(np.float32, (n, SIZE), elements=numbers))
seeds = st.integers(0, 2**32 - 1)


def shares(n: int, seed: int) -> list[float]:
    raw = np.random.default_rng(seed).uniform(0.1, 1, n)
    return list(raw / raw.sum())


def one_tensor(size: int) -> tuple[Piece]:
    return (Piece(0, None, 0, size, (size,), False),)


def mean(blocks: Sequence[Flat], weights: Sequence[float]) -> Flat:
    return merge(MergeRule.MEAN, one_tensor(blocks[0].size), blocks, weights)


def radial_directional(blocks: Sequence[Flat], weights: Sequence[float]) -> Flat:
    return merge(MergeRule.RDA, one_tensor(blocks[0].size), blocks, weights)


def naive_mean(blocks: np.ndarray, weights: list[float]) -> np.ndarray:
    return np.sum([w * v for w, v in zip(weights, blocks.astype(np.float64), strict=True)], axis=0)


def naive_rda(blocks: np.ndarray, weights: list[float]) -> np.ndarray:
    wide = blocks.astype(np.float64)
    norms = [np.linalg.norm(v) for v in wide]
    phi = [v / n if n > 0 else v * 0 for v, n in zip(wide, norms, strict=True)]
    direction = naive_mean(np.array(phi), weights)
    length = np.linalg.norm(direction)
    if length < 1e-6:
        return naive_mean(blocks, weights)
    return np.dot(weights, norms) * direction / length


@st.composite
def works(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw (tokens, steps) of several contributions."""
    return draw(
        st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**4)), min_size=1, max_size=9)
    )


@given(works())
def test_weights_sum_to_one_and_follow_tokens_squared_over_steps(
    work: list[tuple[int, int]],
) -> None:
    given = tuple(contribution(span=(0, steps), tokens=tokens) for tokens, steps in work)
    whole = sum(steps for _, steps in work)
    for item in (held := weigh(given)):
        assert 0 <= item.weight <= MOST_SHARE * item.contribution.steps / whole * (1 + 1e-9)
    assert math.isclose(sum(item.weight for item in held), 1.0, rel_tol=1e-9)
    items = weigh(given, capped=False)
    assert math.isclose(sum(item.weight for item in items), 1.0, rel_tol=1e-12)
    quality = [tokens**2 / steps for tokens, steps in work]
    for item, own in zip(items, quality, strict=True):
        assert item.weight > 0
        assert math.isclose(item.weight, own / sum(quality), rel_tol=1e-9)


def test_twice_the_tokens_in_equal_steps_weigh_four_times_as_much() -> None:
    one = contribution(life("a"), tokens=100)
    two = contribution(life("b"), tokens=200)
    assert [item.weight for item in weigh((one, two))] == [0.2, 0.8]


@given(deltas, seeds)
def test_mean_matches_a_naive_reference(blocks: np.ndarray, seed: int) -> None:
    weights = shares(len(blocks), seed)
    np.testing.assert_allclose(
        merge(MergeRule.MEAN, PIECES, list(blocks), weights),
        naive_mean(blocks, weights),
        rtol=1e-5,
        atol=1e-5,
    )


@given(deltas, seeds)
def test_rda_matches_a_naive_reference_per_tensor(blocks: np.ndarray, seed: int) -> None:
    weights = shares(len(blocks), seed)
    merged = merge(MergeRule.RDA, PIECES, list(blocks), weights)
    offset = 0
    for piece in PIECES:
        inside = slice(offset, offset + piece.size)
        twin = naive_mean if piece.embedding else naive_rda
        expected = twin(blocks[:, inside], weights)
        if not piece.embedding:
            assume(not nearly_cancels(blocks[:, inside], weights))
        np.testing.assert_allclose(merged[inside], expected, rtol=1e-3, atol=1e-4)
        offset += piece.size


def nearly_cancels(blocks: np.ndarray, weights: list[float]) -> bool:
    """Return whether the directions nearly cancel, so that rounding errors decide the direction."""
    norms = np.linalg.norm(blocks.astype(np.float64), axis=1, keepdims=True)
    turned = np.divide(blocks, norms, out=np.zeros(blocks.shape), where=norms > 0)
    return bool(np.linalg.norm(naive_mean(turned, weights)) < 1e-2)


@given(hnp.arrays(np.float32, (3, 12), elements=numbers), seeds)
def test_rda_keeps_the_norm_if_all_norms_are_equal(blocks: np.ndarray, seed: int) -> None:
    norms = np.linalg.norm(blocks.astype(np.float64), axis=1, keepdims=True)
    assume((norms > 1e-3).all())
    level = (blocks / norms * 7).astype(np.float32)
    weights = shares(3, seed)
    assume(not nearly_cancels(level, weights))
    assert np.linalg.norm(radial_directional(list(level), weights)) == pytest.approx(7, rel=1e-4)


def test_rda_keeps_length_that_the_mean_loses() -> None:
    across = [np.array([1, 0], np.float32), np.array([0, 1], np.float32)]
    assert np.linalg.norm(mean(across, [0.5, 0.5])) == pytest.approx(0.5**0.5)
    assert np.linalg.norm(radial_directional(across, [0.5, 0.5])) == pytest.approx(1)


def test_zero_delta_has_a_length_but_no_direction() -> None:
    some = [np.zeros(2, np.float32), np.array([0, 4], np.float32)]
    np.testing.assert_allclose(radial_directional(some, [0.5, 0.5]), [0, 2])
    none = [np.zeros(2, np.float32)] * 2
    np.testing.assert_array_equal(radial_directional(none, [0.5, 0.5]), [0, 0])


def test_directions_that_cancel_fall_back_to_the_weighted_mean() -> None:
    against = [np.array([3, 0], np.float32), np.array([-1, 0], np.float32)]
    np.testing.assert_allclose(radial_directional(against, [0.5, 0.5]), [1, 0])


@pytest.mark.parametrize("size", [1e-44, 1e-40, 1e-38, 1e18])
def test_rda_of_very_small_or_large_deltas_is_finite(size: float) -> None:
    blocks = [np.array([size, 0, -size], np.float32), np.array([1, 2, 3], np.float32)]
    assert np.isfinite(radial_directional(blocks, [0.25, 0.75])).all()
    alone = radial_directional(blocks[:1], [1.0])
    np.testing.assert_allclose(alone, blocks[0], rtol=1e-5)


def test_embeddings_use_the_mean_under_either_rule() -> None:
    table = [piece for piece in PIECES if piece.embedding]
    across = [np.array([1, 0, 0, 0, 0, 0], np.float32), np.array([0, 1, 0, 0, 0, 0], np.float32)]
    for rule in MergeRule:
        np.testing.assert_array_equal(
            merge(rule, table, across, [0.5, 0.5]), [0.5, 0.5, 0, 0, 0, 0]
        )


def test_rda_treats_each_tensor_separately() -> None:
    two = (Piece(0, None, 0, 1, (1,), False), Piece(1, None, 0, 1, (1,), False))
    blocks = [np.array([1, 100], np.float32), np.array([3, 100], np.float32)]
    np.testing.assert_allclose(merge(MergeRule.RDA, two, blocks, [0.5, 0.5]), [2, 100])


@given(deltas, seeds, st.sampled_from(MergeRule))
def test_merge_is_deterministic_bit_for_bit(blocks: np.ndarray, seed: int, rule: MergeRule) -> None:
    weights = shares(len(blocks), seed)
    before = blocks.copy()
    once, again = (merge(rule, PIECES, list(blocks), weights) for _ in range(2))
    assert once.tobytes() == again.tobytes()
    assert once.dtype == np.float32
    np.testing.assert_array_equal(blocks, before)


@pytest.mark.parametrize("rule", list(MergeRule))
def test_refuses_different_numbers_of_weights_and_deltas(rule: MergeRule) -> None:
    blocks: list[Flat] = [np.ones(SIZE, np.float32)] * 2
    with pytest.raises(ValueError, match="zip"):
        merge(rule, PIECES, blocks, [0.5, 0.25, 0.25])


# --- large fragments, encoded, in place ---

LARGE = cut([Leaf("w", (700, 500)), Leaf("t", (300, 77), embedding=True), Leaf("b", (31,))], 1)
LARGE_PIECES, LARGE_SIZE = LARGE.fragments[0], LARGE.parameters
OUTER = outer_rule(0.7, 0.9)


def normal(seed: int) -> Flat:
    return np.random.default_rng(seed).standard_normal(LARGE_SIZE).astype(np.float32)


def parts_of(wire: Wire, n: int) -> list[AlignmentPart]:
    payloads = [frozen(encode(wire, normal(10 + i))) for i in range(n)]
    weights = shares(n, seed=3)
    return [
        AlignmentPart(p, w, norms(p, LARGE_PIECES)) for p, w in zip(payloads, weights, strict=True)
    ]


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("rule", list(MergeRule))
@pytest.mark.parametrize("n", [1, 3, 4, 9])
def test_merge_in_place_matches_decode_merge_and_step(wire: Wire, rule: MergeRule, n: int) -> None:
    """For the first two rules the naive reference computes the expected delta, piece by piece."""
    master, momentum, parts = normal(1), normal(2), parts_of(wire, n)
    wanted = [master.copy(), momentum.copy()]
    blocks = np.array([decode(part.payload, LARGE_SIZE) for part in parts])
    delta, offset = np.empty(LARGE_SIZE, np.float32), 0
    for piece in LARGE_PIECES:
        inside = slice(offset, offset + piece.size)
        twin = naive_mean if piece.embedding or rule is MergeRule.MEAN else naive_rda
        delta[inside] = twin(blocks[:, inside], [part.weight for part in parts])
        offset += piece.size
    step(OUTER, wanted[0], wanted[1], delta)
    merge_into(master, momentum, rule=rule, outer=OUTER, pieces=LARGE_PIECES, parts=parts)
    np.testing.assert_allclose(master, wanted[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(momentum, wanted[1], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("rule", list(MergeRule))
def test_as_long_rule_makes_the_step_as_long_as_the_merged_delta(
    wire: Wire, rule: MergeRule
) -> None:
    """The fragment has one tile, so every element is measured; the reference computes in f64."""
    pieces = cut([Leaf("w", (90, 70)), Leaf("b", (37,))], 1).fragments[0]
    size, chance, mu = sum(piece.size for piece in pieces), np.random.default_rng(), 0.7
    master, momentum = np.zeros(size, np.float32), np.zeros(size, np.float32)
    common, kept = chance.standard_normal(size), np.zeros(size)
    for _ in range(4):
        flats = [(common + chance.standard_normal(size)).astype(np.float32) for _ in range(3)]
        payloads = [frozen(encode(wire, flat)) for flat in flats]
        parts = [AlignmentPart(each, 1 / 3, norms(each, pieces)) for each in payloads]
        delta = merged_of(rule, pieces, parts).astype(float)
        cosine = -float(delta @ kept) / max(np.linalg.norm(delta) * np.linalg.norm(kept), 1e-30)
        before, kept = master.copy(), mu * kept - delta
        wanted = (delta - mu * kept) * np.linalg.norm(delta) / np.linalg.norm(delta - mu * kept)
        outer = outer_rule(1.0, mu, as_long=True)
        found = merge_into(master, momentum, rule=rule, outer=outer, pieces=pieces, parts=parts)
        np.testing.assert_allclose(master - before, wanted, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(momentum, kept, rtol=1e-3, atol=1e-4)
        assert found.rate is not None
        assert (found.turned or 0.0) == pytest.approx(cosine, abs=1e-3)
        assert not found.cosines, "no round had asked for those"


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("rule", list(MergeRule))
@pytest.mark.parametrize("outer", [OUTER, outer_rule(1.0, 0.7, as_long=True)], ids=str)
def test_result_does_not_depend_on_the_number_of_threads(
    wire: Wire, rule: MergeRule, outer: OuterRule
) -> None:
    results: set[bytes] = set()
    for threads in (1, 2, 5):
        master, momentum = normal(1), normal(2)
        with ThreadPoolExecutor(threads) as pool:
            merge_into(
                master,
                momentum,
                rule=rule,
                outer=outer,
                pieces=LARGE_PIECES,
                parts=parts_of(wire, 5),
                spread=pool.map,
            )
        results.add(master.tobytes() + momentum.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("wire", list(Wire))
def test_merge_allocates_no_array_of_fragment_size(wire: Wire) -> None:
    master, momentum, parts = normal(1), normal(2), parts_of(wire, 5)

    def once() -> None:
        merge_into(
            master, momentum, rule=MergeRule.RDA, outer=OUTER, pieces=LARGE_PIECES, parts=parts
        )

    once()  # compile
    tracemalloc.start()
    once()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 16 * TILE < 4 * LARGE_SIZE


@pytest.mark.parametrize("wire", list(Wire))
def test_norms_are_computed_per_piece(wire: Wire) -> None:
    payload = encode(wire, normal(4))
    values, offset = decode(payload, LARGE_SIZE).astype(np.float64), 0
    for piece, length in zip(LARGE_PIECES, norms(frozen(payload), LARGE_PIECES), strict=True):
        inside = values[offset : offset + piece.size]
        assert length == pytest.approx(np.linalg.norm(inside), rel=1e-12)
        offset += piece.size


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("place", [0, 349_999, LARGE_SIZE - 1])
def test_norms_are_finite_only_if_all_elements_are(wire: Wire, poison: float, place: int) -> None:
    values = normal(4)
    assert np.isfinite(norms(frozen(encode(wire, values)), LARGE_PIECES)).all()
    values[place] = poison
    assert not np.isfinite(norms(frozen(encode(wire, values)), LARGE_PIECES)).all()


# --- contributions of several wires in one merge --------------------------------------------------


@settings(deadline=None)  # the first example compiles
@given(
    st.lists(st.sampled_from(list(Wire)), min_size=2, max_size=9),
    st.sampled_from(list(MergeRule)),
    seeds,
)
def test_mixed_wires_match_a_naive_reference(wires: list[Wire], rule: MergeRule, seed: int) -> None:
    """The dtype of the first payload was once used for all, past the end of the others."""
    chance = np.random.default_rng(seed)
    layout = cut([Leaf("w", (3 * TILE // 2 + 7,)), Leaf("b", (37,))], 1)
    pieces, size = layout.fragments[0], layout.parameters
    values = [chance.standard_normal(size).astype(np.float32) for _ in wires]
    payloads = [frozen(encode(wire, each)) for wire, each in zip(wires, values, strict=True)]
    weights = shares(len(wires), seed)
    parts = [AlignmentPart(p, w, norms(p, pieces)) for p, w in zip(payloads, weights, strict=True)]
    master, momentum = np.zeros(size, np.float32), np.zeros(size, np.float32)
    merge_into(master, momentum, rule=rule, outer=outer_rule(1.0, 0.0), pieces=pieces, parts=parts)
    blocks, offset = np.array([decode(p, size) for p in payloads]), 0
    for piece in pieces:
        inside = slice(offset, offset + piece.size)
        twin = naive_mean if rule is MergeRule.MEAN else naive_rda
        np.testing.assert_allclose(
            master[inside], twin(blocks[:, inside], weights), rtol=1e-4, atol=1e-5
        )
        offset += piece.size


# --- where contributions point --------------------------------------------------------------------


def naive_cosines(blocks: np.ndarray, weights: Sequence[float], trial: np.ndarray) -> list[float]:
    wide, others = blocks.astype(np.float64), []
    for i, v in enumerate(wide):
        rest = sum(w * u for j, (w, u) in enumerate(zip(weights, wide, strict=True)) if j != i)
        others.append((v, rest))
    others += [(v, naive_mean(blocks, list(weights))) for v in trial.astype(np.float64)]
    return [float(v @ u / np.linalg.norm(v) / np.linalg.norm(u)) for v, u in others]


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("n", [2, 3, 5])
def test_directions_match_a_naive_reference_on_the_sampled_tiles(wire: Wire, n: int) -> None:
    pieces, size = one_tensor(SHARE * TILE + TILE + 100), SHARE * TILE + TILE + 100
    chance = np.random.default_rng(n)
    common = chance.standard_normal(size)
    values = [(common + chance.standard_normal(size)).astype(np.float32) for _ in range(n + 1)]
    payloads = [frozen(encode(wire, each)) for each in (*values[:-1], -values[-1])]
    weights = shares(n, seed=n)
    parts = [AlignmentPart(p, w, ()) for p, w in zip(payloads[:-1], weights, strict=True)]
    looked_at = np.r_[0:TILE, SHARE * TILE : SHARE * TILE + TILE]
    blocks = np.array([decode(p, size)[looked_at] for p in payloads])
    with ThreadPoolExecutor(2) as pool:
        found = directions(pieces, parts, payloads[-1:], pool.map)
    assert found == directions(pieces, parts, payloads[-1:]), "whoever does the work"
    assert found.measured == looked_at.size
    expected = naive_cosines(blocks[:-1], weights, blocks[-1:])
    np.testing.assert_allclose(np.array(found.cosines, float), expected, atol=1e-5)
    assert expected[-1] < -0.4 < 0.4 < min(expected[:-1])


def test_directions_sample_large_fragments_and_measure_small_ones_whole() -> None:
    part = AlignmentPart(frozen(np.ones(64 * TILE, np.float32)), 0.5, ())
    assert directions(one_tensor(64 * TILE), [part, part]).measured == 64 * TILE // SHARE
    small = AlignmentPart(frozen(np.ones(SIZE, np.float32)), 0.5, ())
    assert directions(PIECES, [small, small])[:2] == (
        (pytest.approx(1.0), pytest.approx(1.0)),
        SIZE,
    )


@pytest.mark.parametrize("rule", MergeRule)
@pytest.mark.parametrize("wire", [Wire.F32, Wire.INT4])
@given(st.integers(1, 18), st.integers(0, 2), st.integers(1, 2 * TILE + 77), seeds)
@settings(max_examples=12, deadline=None)
def test_measuring_directions_does_not_change_the_merge(
    rule: MergeRule, wire: Wire, count: int, on_trial: int, size: int, seed: int
) -> None:
    chance, pieces = np.random.default_rng(seed), one_tensor(size)
    flats = chance.standard_normal((count + on_trial, size), np.float32)
    payloads = [frozen(encode(wire, flat)) for flat in flats]
    weights = shares(count, seed)
    parts = [
        AlignmentPart(each, weight, norms(each, pieces))
        for each, weight in zip(payloads, weights, strict=False)
    ]
    merged: list[Flat] = []
    for trial in (None, payloads[count:]):
        master, momentum = np.ones(size, np.float32), np.ones(size, np.float32)
        found = merge_into(
            master, momentum, rule=rule, outer=OUTER, pieces=pieces, parts=parts, trial=trial
        )
        merged += [master, momentum]
    np.testing.assert_array_equal(merged[:2], merged[2:])
    apart = directions(pieces, parts, payloads[count:])
    assert (found.measured, len(found.cosines)) == (apart.measured, count + on_trial)
    assert [x is None for x in found.cosines] == [x is None for x in apart.cosines]
    known = [x for x in found.cosines if x is not None]
    assert known == pytest.approx([x for x in apart.cosines if x is not None], abs=1e-6)


@pytest.mark.parametrize("wire", [Wire.F32, Wire.INT4])
@pytest.mark.parametrize("rule", MergeRule)
def test_turn_is_the_same_measured_before_or_during_the_merge(rule: MergeRule, wire: Wire) -> None:
    parts, found = parts_of(wire, 3), list[float | None]()
    for as_long in (False, True):
        outer = outer_rule(1.0, 0.0, as_long=as_long)
        with ThreadPoolExecutor(2) as pool:
            told = merge_into(
                normal(1),
                normal(2),
                rule=rule,
                outer=outer,
                pieces=LARGE_PIECES,
                parts=parts,
                spread=pool.map,
                trial=[],
            )
        found.append(told.turned)
        assert told.rate == pytest.approx(1.0), "there is no momentum"
    assert found[0] == found[1] is not None


def test_zero_and_nan_contributions_have_no_direction() -> None:
    ones, zeros = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    parts = [AlignmentPart(frozen(each), 1 / 3, ()) for each in (ones, ones, zeros)]
    assert directions(PIECES, parts).cosines[2] is None
    broken = AlignmentPart(frozen(np.full(SIZE, np.nan, np.float32)), 1 / 3, ())
    assert set(directions(PIECES, [*parts[:2], broken]).cosines) == {None}
