"""A fragmenting of the user's own: the function that assigns pieces of the model to fragments.

The function is an argument: this module imports none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.errors import UserMistake
from coordinator.fragments import Layout, Piece


@dataclass(frozen=True, slots=True)
class ModelPiece:
    """A tensor, or a block of rows of one, that lies in one fragment as a whole."""

    path: str
    """Path of the leaf in the task's parameters, such as "blocks/attention/query"."""
    layer: int | None
    """Index of the layer in a leaf that stacks layers; None in other leaves."""
    rows: slice
    """Rows of the block on the first axis of the leaf, or of its layer."""
    shape: tuple[int, ...]
    """Shape of the block."""
    size: int
    """Elements of the block."""
    embedding: bool
    """Whether it is an embedding."""


class Fragmenting(Protocol):
    """A fragmenting: it decides which pieces of the model are sent and merged together.

    `sync.fragmenting = "module:attribute"` names it, and `[sync.fragmenting_options]` has further
    arguments, which are passed by keyword. It is called in each process that needs the layout. All
    of them must get the same answer: it depends on nothing but its arguments. A fragment is due
    once in H steps, fragment 0 first, so the numbers are also the order in time.
    """

    def __call__(self, pieces: Sequence[ModelPiece], fragments: int) -> Sequence[int]:
        """Return the number of a fragment for each piece, from 0 to `fragments` - 1.

        Each fragment must get a piece.

        Args:
            pieces: All pieces, leaf by leaf, in the order of the parameters. None is larger than a
                fair share of the model, and state of the task is not among them.
            fragments: The number of fragments, without that of the state.
        """
        ...


def refragmented(
    layout: Layout,
    function: Callable[[Sequence[ModelPiece], int], Any],
    setting: str,
) -> Layout:
    """Return the layout with its pieces in the fragments that `function` assigns.

    `setting`: the beginning of a message. State stays the last fragment.

    Errors: `UserMistake` if the answer is no assignment, or another one in a second call; the
    errors of `function`.
    """
    state = layout.state_fragment
    count = len(layout.fragments) - (state is not None)
    pieces = sorted(
        (piece for contents in layout.fragments[:count] for piece in contents),
        key=lambda piece: (piece.leaf, -1 if piece.layer is None else piece.layer, piece.start),
    )
    views = tuple(_view(layout, piece) for piece in pieces)
    numbers, again = ([*map(_number, function(views, count))] for _ in range(2))
    if numbers != again:
        raise UserMistake(f"{setting} is not deterministic: two calls give different fragments")
    if len(numbers) != len(pieces):
        raise UserMistake(
            f"{setting} returns {len(numbers)} numbers for {len(pieces)} pieces: it must return "
            "one for each"
        )
    for piece, number in zip(views, numbers, strict=True):
        if number is None or not 0 <= number < count:
            raise UserMistake(
                f"{setting} puts {piece.path} into fragment {number}: fragments are numbered from "
                f"0 to {count - 1}"
            )
    if missing := sorted({*range(count)} - {*numbers}):
        names = ", ".join(map(str, missing[:MOST_NAMED]))
        raise UserMistake(
            f"{setting} puts nothing into fragment {names} of {count}: give each one a piece, or "
            "set sync.fragments to fewer"
        )
    contents = [
        tuple(piece for piece, number in zip(pieces, numbers, strict=True) if number == p)
        for p in range(count)
    ]
    return Layout(layout.leaves, (*contents, *layout.fragments[count:]))


MOST_NAMED = 5
"""The most fragments that a message names."""


def _view(layout: Layout, piece: Piece) -> ModelPiece:
    leaf = layout.leaves[piece.leaf]
    rows = slice(piece.start, piece.stop)
    return ModelPiece(leaf.path, piece.layer, rows, piece.shape, piece.size, piece.embedding)


def _number(value: Any) -> int | None:
    """Return a whole number; None if the value is none."""
    whole = getattr(value, "__index__", None)
    return None if whole is None or isinstance(value, bool) else whole()
