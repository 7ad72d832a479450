"""A merge rule of the user's own: the function that makes one delta of the contributions.

The function is an argument: this module imports none. It gets whole decoded contributions, so a
merge with it needs four bytes for each element of each contribution. The outer step and the cosines
between contributions are those of the built-in rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.alignment import AlignmentPart, Directions
from coordinator.codec import decode
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Leaf, Piece
from coordinator.kernels import frozen
from coordinator.merge import MergeRule, merge_into
from coordinator.outer import OuterRule
from coordinator.tiles import Spread


@dataclass(frozen=True, slots=True)
class MergePiece:
    """A tensor, or a block of one, among the elements of a fragment."""

    path: str
    """Path of the leaf in the task's parameters, such as "blocks/attention/query"."""
    elements: slice
    """Place of the block in the fragment: `deltas[:, piece.elements]`."""
    shape: tuple[int, ...]
    """Shape of the block; its elements are in C order."""
    layer: int | None
    """Index of the layer in a leaf that stacks layers; None in other leaves."""
    embedding: bool
    """Whether it is an embedding, whose rows few tokens touch. "rda" takes the mean of these."""


class MergeFunction(Protocol):
    """A merge rule: it makes one delta of the contributions of a merge.

    `sync.merge = "module:attribute"` names it, and `[sync.merge_options]` has further arguments,
    which are passed by keyword. A shard calls it at each merge of a fragment. The outer optimizer
    takes the outer step with the result.

    A rule is a pure function of its arguments: it keeps nothing from one call to the next, draws no
    random numbers, and gives the same bits for the same numbers. So a replay gives the same model.
    `weights @ deltas` calls BLAS, whose last bits depend on the processor and its threads;
    `(weights[:, None] * deltas).sum(axis=0)` gives the same bits everywhere.

    The rule is called with one contribution and with several before anything starts. The run is
    refused if a result is not sound, if it differs between two calls, or if the rule raises.
    """

    def __call__(
        self,
        deltas: NDArray[np.float32],
        weights: NDArray[np.float32],
        pieces: Sequence[MergePiece],
    ) -> NDArray[np.float32]:
        """Return the merged delta, float32 of shape [elements], finite.

        Args:
            deltas: The contributions, one a row, [contributions, elements], read-only. There is at
                least one. An element is new minus old: the merged delta is added to the model.
            weights: The share of each contribution, [contributions], read-only. Shares sum to one,
                and the built-in mean is the sum of `weights[i] * deltas[i]`.
            pieces: The tensors that the elements belong to, in their order.

        A rule with a parameter of the name `momentum` also gets the momentum of the outer optimizer
        before this merge, float32 of shape [elements], read-only. It has the sign of a delta, is
        the sum of the merged deltas so far, each weighted by mu to the power of its age, and is
        zero before the first merge. An outer optimizer of the user's own has none.
        """
        ...


@dataclass(frozen=True, slots=True)
class OwnMerge:
    """A user's merge function with its options."""

    setting: str
    """The beginning of a message: the line of the function, and the key that names it."""
    function: Callable[..., Any]
    """The function; its errors are `UserMistake` with the user's line."""
    with_momentum: bool = False
    """Whether the function has a parameter `momentum`."""

    def merged(
        self, pieces: Sequence[MergePiece], parts: Sequence[AlignmentPart], momentum: Flat
    ) -> Flat:
        """Return the merged delta of these contributions, of shape [elements].

        `momentum`: that of the outer step, which has the sign of a gradient.

        Errors: `UserMistake` if the function raises, or its result has another shape or type.
        """
        size = sum(each.elements.stop - each.elements.start for each in pieces)
        deltas = np.empty((len(parts), size), np.float32)
        for row, part in zip(deltas, parts, strict=True):
            row[:] = decode(part.payload, size)
        weights = np.array([part.weight for part in parts], np.float32)
        return self.of(deltas, weights, pieces, momentum)

    def of(
        self,
        deltas: NDArray[np.float32],
        weights: NDArray[np.float32],
        pieces: Sequence[MergePiece],
        momentum: Flat,
    ) -> Flat:
        """Return the merged delta of the rows of `deltas`, which become read-only.

        Errors: the errors of `merged`.
        """
        deltas.flags.writeable = weights.flags.writeable = False
        named = {"momentum": frozen(-momentum)} if self.with_momentum else {}
        result = np.asarray(self.function(deltas, weights, pieces, **named))
        if result.dtype != np.float32 or result.shape != deltas.shape[1:]:
            raise UserMistake(
                f"{self.setting} returns {text_of(result)} for {text_of(deltas)} contributions: it "
                f"must return float32[{deltas.shape[1]}], one delta (.astype(np.float32))"
            )
        return result


def outer_step(
    master: Flat,
    momentum: Flat,
    delta: Flat,
    outer: OuterRule,
    measured: Directions,
    spread: Spread = map,
) -> Directions:
    """Take the outer step by a merged delta; `master` and `momentum` change in place.

    Returns `measured`, if it has any directions, with the turn and the rate of the step.
    """
    step = merge_into(
        master,
        momentum,
        rule=MergeRule.MEAN,
        outer=outer,
        pieces=[Piece(0, None, 0, delta.size, (delta.size,), embedding=False)],
        parts=[AlignmentPart(frozen(delta), 1.0, ())],
        spread=spread,
        trial=[] if measured.measured else None,
    )
    return measured._replace(turned=step.turned, rate=step.rate)


def text_of(array: NDArray[Any]) -> str:
    """Return type and shape of an array, such as "float32[3,4]"."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def merge_pieces(leaves: Sequence[Leaf], pieces: Sequence[Piece]) -> tuple[MergePiece, ...]:
    """Return the pieces of a fragment as a merge function sees them."""
    stops = accumulate(piece.size for piece in pieces)
    return tuple(
        MergePiece(
            leaves[piece.leaf].path,
            slice(stop - piece.size, stop),
            piece.shape,
            piece.layer,
            piece.embedding,
        )
        for piece, stop in zip(pieces, stops, strict=True)
    )
