"""`cut` splits a tree into balanced fragments, and `sew` restores it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from coordinator.errors import LayoutMismatch, UserMistake
from coordinator.fragments import Layout, Leaf, cut, most_of, sew, take
from coordinator.protocol import Fragment

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@st.composite
def trees(draw: st.DrawFn) -> list[Leaf]:
    """Draw scalars, vectors, matrices, stacks of layers, embeddings and empty leaves."""
    return [
        Leaf(f"leaf{i}", shape, stacked=bool(shape) and draw(st.booleans()), embedding=embedding)
        for i, (shape, embedding) in enumerate(
            draw(st.lists(st.tuples(shapes, st.booleans()), min_size=1, max_size=6))
        )
    ]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    leaves, fragments = draw(trees()), draw(st.integers(1, 6))
    assume(any(math.prod(leaf.shape) for leaf in leaves))
    try:
        return cut(leaves, fragments)
    except UserMistake:
        return cut(leaves, 1)


def numbered(layout: Layout) -> list[np.ndarray]:
    """Return leaves in which every element of the tree has a number of its own."""
    ends = list(itertools.accumulate(math.prod(leaf.shape) for leaf in layout.leaves))
    starts = [0, *ends[:-1]]
    return [
        np.arange(start, end, dtype=np.float32).reshape(leaf.shape)
        for start, end, leaf in zip(starts, ends, layout.leaves, strict=True)
    ]


def fragments_of(layout: Layout, leaves: list[np.ndarray]) -> list[np.ndarray]:
    return [take(layout, Fragment(p), leaves) for p in range(len(layout.fragments))]


@given(layouts())
def test_every_element_of_every_leaf_is_in_exactly_one_fragment(layout: Layout) -> None:
    flats = fragments_of(layout, numbered(layout))
    assert sorted(np.concatenate(flats)) == list(range(layout.parameters))
    assert [flat.size for flat in flats] == list(layout.sizes)


@given(layouts())
def test_sew_restores_the_tree(layout: Layout) -> None:
    leaves = numbered(layout)
    sewn = sew(layout, fragments_of(layout, leaves))
    for before, after in zip(leaves, sewn, strict=True):
        np.testing.assert_array_equal(before, after, strict=True)


@given(layouts())
def test_take_copies_and_leaves_the_tree_unchanged(layout: Layout) -> None:
    leaves = numbered(layout)
    for flat in fragments_of(layout, leaves):
        assert flat.flags.c_contiguous
        flat.fill(-1)
    for before, after in zip(numbered(layout), leaves, strict=True):
        np.testing.assert_array_equal(before, after)


@given(layouts())
def test_fragment_sizes_differ_by_at_most_one_piece(layout: Layout) -> None:
    largest = max(piece.size for pieces in layout.fragments for piece in pieces)
    fair = max(largest, math.ceil(layout.parameters / len(layout.fragments)))
    assert max(layout.sizes) <= 4 / 3 * fair + largest
    assert max(layout.sizes) - min(layout.sizes) <= largest
    assert min(layout.sizes) > 0


@given(st.lists(st.integers(1, 9), min_size=2, max_size=7), st.integers(2, 3))
@example([3, 3, 2, 2, 2], 2)
def test_packing_is_within_four_thirds_of_the_optimum(sizes: list[int], n: int) -> None:
    """The pieces are single rows, so that only the packing is tested."""
    assume(len(sizes) >= n)
    layout = cut([Leaf(f"row{i}", (1, size)) for i, size in enumerate(sizes)], n)
    best = min(
        max(sum(s for s, place in zip(sizes, places, strict=True) if place == p) for p in range(n))
        for places in itertools.product(range(n), repeat=len(sizes))
    )
    assert max(layout.sizes) <= 4 / 3 * best


def test_stack_of_layers_is_cut_into_its_layers_first() -> None:
    layout = cut([Leaf("blocks", (4, 2, 3), stacked=True)], 2)
    pieces = [piece for inside in layout.fragments for piece in inside]
    assert sorted((p.layer, p.start, p.stop, p.shape) for p in pieces) == [
        (layer, 0, 2, (2, 3)) for layer in range(4)
    ]


def test_leaf_larger_than_a_fragment_is_cut_along_its_rows() -> None:
    layout = cut([Leaf("table", (10, 3), embedding=True), Leaf("w", (2, 3))], 3)
    table = [p for inside in layout.fragments for p in inside if p.leaf == 0]
    assert sorted((p.start, p.stop) for p in table) == [(0, 3), (3, 6), (6, 10)]
    assert all(p.embedding for p in table)


def test_layers_larger_than_a_fragment_are_cut_twice() -> None:
    layout = cut([Leaf("blocks", (2, 4, 5), stacked=True)], 4)
    assert layout.sizes == (10, 10, 10, 10)


def test_scalars_are_whole_pieces_and_empty_leaves_have_no_piece() -> None:
    layout = cut([Leaf("scale", ()), Leaf("none", (0, 3)), Leaf("gains", (2,), stacked=True)], 3)
    assert layout.sizes == (1, 1, 1)
    assert {piece.leaf for inside in layout.fragments for piece in inside} == {0, 2}


def test_too_many_fragments_are_refused_with_the_largest_possible_number() -> None:
    with pytest.raises(UserMistake, match=r"3 fragments .* set sync.fragments to 2 or less"):
        cut([Leaf("w", (2, 5))], 3)


@given(trees(), st.integers(2, 40))
@example([Leaf("vector", (10,)), Leaf("row", (1, 100))], 20)
def test_number_of_fragments_advised_by_a_refusal_works(leaves: list[Leaf], n: int) -> None:
    assume(any(math.prod(leaf.shape) for leaf in leaves))
    try:
        cut(leaves, n)
    except UserMistake as refusal:
        advised = int(str(refusal).split("set sync.fragments to ")[1].split()[0])
        assert len(cut(leaves, advised).fragments) == advised < n


@given(layouts())
def test_same_cut_has_the_same_fingerprint(layout: Layout) -> None:
    again = cut(list(layout.leaves), len(layout.fragments))
    assert again == layout
    assert again.fingerprint == layout.fingerprint


LEAVES = [Leaf("w", (6, 2)), Leaf("b", (6,))]


@pytest.mark.parametrize(
    ("other", "fragments"),
    [
        (LEAVES, 3),
        (LEAVES[::-1], 2),
        ([replace(LEAVES[0], path="v"), LEAVES[1]], 2),
        ([replace(LEAVES[0], shape=(2, 6)), LEAVES[1]], 2),
        ([replace(LEAVES[0], stacked=True), LEAVES[1]], 2),
        ([replace(LEAVES[0], embedding=True), LEAVES[1]], 2),
    ],
    ids=["other P", "other order", "other path", "other shape", "stacked", "embedding"],
)
def test_another_cut_has_another_fingerprint(other: list[Leaf], fragments: int) -> None:
    assert cut(other, fragments).fingerprint != cut(LEAVES, 2).fingerprint


def test_take_refuses_leaves_of_other_shapes() -> None:
    layout = cut(LEAVES, 2)
    with pytest.raises(LayoutMismatch, match=r"\(2, 6\)"):
        take(layout, Fragment(0), [np.zeros((2, 6), np.float32), np.zeros(6, np.float32)])
    with pytest.raises(LayoutMismatch):
        take(layout, Fragment(0), [np.zeros((6, 2), np.float32)])


def test_sew_refuses_fragments_of_other_sizes() -> None:
    layout = cut(LEAVES, 2)
    with pytest.raises(LayoutMismatch, match="where 12 belong"):
        sew(layout, [np.zeros(9, np.float32), np.zeros(6, np.float32)])
    with pytest.raises(ValueError, match="zip"):
        sew(layout, [np.zeros(12, np.float32)])


@given(trees(), st.integers(0, 5), st.integers(2, 6))
def test_state_is_the_last_fragment_and_nothing_else_is_in_it(
    leaves: list[Leaf], which: int, fragments: int
) -> None:
    which %= len(leaves)
    leaves = [replace(leaf, state=i == which) for i, leaf in enumerate(leaves)]
    assume(math.prod(leaves[which].shape))
    rest = [leaf for leaf in leaves if not leaf.state]
    assume(sum(math.prod(leaf.shape) for leaf in rest))
    layout = cut(leaves, most_of(leaves, fragments))
    assert layout.state_fragment == len(layout.fragments) - 1
    for p, pieces in enumerate(layout.fragments):
        assert {layout.leaves[piece.leaf].state for piece in pieces} == {p == layout.state_fragment}
    assert layout.sizes[-1] == math.prod(leaves[which].shape)
    assert [*layout.sizes[:-1]] == [*cut(rest, len(layout.fragments) - 1).sizes]
    tree = numbered(layout)
    flats = [take(layout, Fragment(p), tree) for p in range(len(layout.fragments))]
    for before, after in zip(tree, sew(layout, flats), strict=True):
        np.testing.assert_array_equal(before, after)


def test_state_needs_a_fragment_of_its_own() -> None:
    leaves = [Leaf("w", (4, 4)), Leaf("mean", (4,), state=True)]
    with pytest.raises(UserMistake, match=r"set sync\.fragments to 2 or more"):
        cut(leaves, 1)
    assert cut(leaves[:1], 1).state_fragment is None
    other = [leaves[0], replace(leaves[1], state=False)]
    assert cut(leaves, 2).fingerprint != cut(other, 2).fingerprint
