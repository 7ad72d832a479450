"""The cut of a parameter tree into balanced fragments, and the way back.

A fragment is a list of pieces, and a piece is a block of one leaf. Leaves that stack layers are cut
along that axis first, since each layer is a tensor of its own to the merge. A piece larger than a
fragment is then cut along its rows. Pieces are packed largest first into the currently smallest
fragment (LPT, at most 4/3 of the optimum): "balanced tensor fragmentation", arXiv:2604.21428. Every
side computes the same layout from the same leaves and compares its fingerprint.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import LayoutMismatch, UserMistake
from coordinator.protocol import Fragment

Flat = NDArray[np.float32]
"""The elements of one fragment, one piece after another, each in C order."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of the tree."""

    path: str
    """Path of the leaf in the tree, such as "blocks/attention/query"."""
    shape: tuple[int, ...]
    stacked: bool = False
    """Whether axis 0 stacks layers, each a tensor of its own to the merge."""
    embedding: bool = False
    """Whether it is an embedding, which takes the weighted mean in a merge."""
    state: bool = False
    """Whether it is state, such as batch statistics: set by the loss, not by its gradient."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a leaf: `start:stop` on axis 0 or, with a `layer`, of that layer's axis 0."""

    leaf: int
    """Index of the leaf in the layout."""
    layer: int | None
    """Index on the stacked axis; None if the leaf does not stack layers."""
    start: int
    stop: int
    shape: tuple[int, ...]
    """Shape of the block."""
    embedding: bool

    @property
    def size(self) -> int:
        """Elements of the block."""
        return math.prod(self.shape)

    @property
    def index(self) -> tuple[int | slice, ...]:
        """The index that takes the block out of its leaf, in the shape `shape`."""
        rows = () if not self.shape else (slice(self.start, self.stop),)
        return rows if self.layer is None else (self.layer, *rows)


@dataclass(frozen=True, slots=True)
class Layout:
    """The assignment of the pieces of all leaves to fragments, in order."""

    leaves: tuple[Leaf, ...]
    fragments: tuple[tuple[Piece, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each fragment."""
        return tuple(sum(piece.size for piece in pieces) for pieces in self.fragments)

    @property
    def parameters(self) -> int:
        """Elements of all fragments."""
        return sum(self.sizes)

    @property
    def state_fragment(self) -> Fragment | None:
        """The fragment that holds all state and nothing else: the last one; None without state."""
        last = Fragment(len(self.fragments) - 1)
        pieces = self.fragments[last]
        return last if pieces and self.leaves[pieces[0].leaf].state else None

    @property
    def fingerprint(self) -> str:
        """A hash that is equal on two sides exactly if they cut the same leaves in the same way."""
        facts = [
            [
                [leaf.path, leaf.shape, leaf.embedding, *(["state"] if leaf.state else [])]
                for leaf in self.leaves
            ],
            [[[p.leaf, p.layer, p.start, p.stop] for p in pieces] for pieces in self.fragments],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def cut(leaves: Sequence[Leaf], fragments: int) -> Layout:
    """Pack the leaves into this many balanced fragments.

    State is not balanced with the rest: it is the last fragment, whole.

    Errors: `UserMistake` if the leaves cannot be cut into as many pieces.
    """
    state = [i for i, leaf in enumerate(leaves) if leaf.state]
    if state:
        return _cut_beside(leaves, state, fragments)
    pieces = _all_pieces(leaves, fragments)
    if len(pieces) < fragments:
        raise UserMistake(
            f"{fragments} fragments asked for, but the {len(leaves)} tensors can be cut into "
            f"{len(pieces)} pieces for that: set sync.fragments to {most_of(leaves, fragments)} "
            "or less"
        )
    bins: list[tuple[int, int]] = [(0, p) for p in range(fragments)]
    packed: list[list[Piece]] = [[] for _ in range(fragments)]
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece.leaf, _place(piece))):
        size, p = heapq.heappop(bins)
        packed[p].append(piece)
        heapq.heappush(bins, (size + piece.size, p))
    ordered = (
        sorted(contents, key=lambda piece: (piece.leaf, _place(piece))) for contents in packed
    )
    return Layout(tuple(leaves), tuple(tuple(contents) for contents in ordered))


def _cut_beside(leaves: Sequence[Leaf], state: Sequence[int], fragments: int) -> Layout:
    """Pack all leaves but the state into one fragment less, and the state into the last one.

    Errors: the errors of `cut`.
    """
    if fragments < 2:
        raise UserMistake(
            "the task has state, which takes a fragment of its own: set sync.fragments to 2 or "
            'more (run.mode = "diloco" has one fragment: use another mode for this task)'
        )
    trained = [i for i, leaf in enumerate(leaves) if not leaf.state]
    packed = cut([leaves[i] for i in trained], fragments - 1).fragments
    parts = [
        tuple(replace(piece, leaf=trained[piece.leaf]) for piece in pieces) for pieces in packed
    ]
    own = [
        piece for i in state for piece in _pieces(i, leaves[i], max(1, math.prod(leaves[i].shape)))
    ]
    return Layout(tuple(leaves), (*parts, tuple(own)))


def most_of(leaves: Sequence[Leaf], fragments: int) -> int:
    """Return into how many fragments the leaves can be cut, `fragments` at most."""
    if any(leaf.state for leaf in leaves):
        return 1 + most_of([leaf for leaf in leaves if not leaf.state], max(1, fragments - 1))
    possible = fragments
    while (count := len(_all_pieces(leaves, possible))) < possible:
        possible = count
    return possible


def _all_pieces(leaves: Sequence[Leaf], fragments: int) -> list[Piece]:
    """Return the pieces for this many fragments, none larger than a fair share."""
    total = sum(math.prod(leaf.shape) for leaf in leaves)
    largest = max(1, math.ceil(total / max(1, fragments)))
    return [piece for i, leaf in enumerate(leaves) for piece in _pieces(i, leaf, largest)]


def _place(piece: Piece) -> tuple[int, int]:
    return (-1 if piece.layer is None else piece.layer, piece.start)


def _pieces(index: int, leaf: Leaf, largest: int) -> list[Piece]:
    layers = range(leaf.shape[0]) if leaf.stacked else (None,)
    block = leaf.shape[1:] if leaf.stacked else leaf.shape
    if 0 in leaf.shape:
        return []
    if not block:
        return [Piece(index, layer, 0, 1, (), leaf.embedding) for layer in layers]
    rows, row = block[0], math.prod(block[1:])
    parts = min(rows, math.ceil(rows * row / largest))
    bounds = [part * rows // parts for part in range(parts + 1)]
    return [
        Piece(index, layer, start, stop, (stop - start, *block[1:]), leaf.embedding)
        for layer in layers
        for start, stop in pairwise(bounds)
    ]


def take(layout: Layout, fragment: Fragment, leaves: Sequence[NDArray[np.float32]]) -> Flat:
    """Copy one fragment out of a full list of leaves.

    Errors: `LayoutMismatch` if the leaves are of other shapes.
    """
    check(layout, leaves)
    parts = [leaves[p.leaf][p.index].reshape(-1) for p in layout.fragments[fragment]]
    return np.ascontiguousarray(np.concatenate(parts), dtype=np.float32)


def put_leaf(layout: Layout, number: int, leaf: NDArray[np.float32], flats: Sequence[Flat]) -> None:
    """Copy one leaf to the places of its pieces in the fragments.

    Errors: `LayoutMismatch` if it is of another shape.
    """
    if leaf.shape != (wanted := layout.leaves[number].shape):
        raise LayoutMismatch(f"{layout.leaves[number].path} is {leaf.shape}, {wanted} belongs")
    for pieces, flat in zip(layout.fragments, flats, strict=True):
        offset = 0
        for piece in pieces:
            if piece.leaf == number:
                flat[offset : offset + piece.size] = leaf[piece.index].reshape(-1)
            offset += piece.size


def sew(layout: Layout, flats: Sequence[Flat]) -> list[NDArray[np.float32]]:
    """Rebuild all leaves from all fragments.

    Errors: `LayoutMismatch` if a fragment is of another size.
    """
    leaves = [np.zeros(leaf.shape, np.float32) for leaf in layout.leaves]
    for pieces, flat, size in zip(layout.fragments, flats, layout.sizes, strict=True):
        if flat.shape != (size,):
            raise LayoutMismatch(f"a fragment of {flat.shape} elements where {size} belong")
        offset = 0
        for piece in pieces:
            block = flat[offset : offset + piece.size]
            leaves[piece.leaf][piece.index] = block.reshape(piece.shape)
            offset += piece.size
    return leaves


def check(layout: Layout, leaves: Sequence[NDArray[np.float32]]) -> None:
    """Check that the leaves have the shapes that the layout was cut from.

    Errors: `LayoutMismatch` if they do not.
    """
    if (shapes := [tuple(leaf.shape) for leaf in leaves]) != [leaf.shape for leaf in layout.leaves]:
        wanted = [leaf.shape for leaf in layout.leaves]
        raise LayoutMismatch(f"leaves of shapes {shapes}, the layout was cut from {wanted}")
