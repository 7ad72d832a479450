"""Strided fragments: `sync.fragmenting = "archipelago.examples.strided:strided"`."""

from collections.abc import Sequence

import archipelago as ap


def strided(pieces: Sequence[ap.ModelPiece], fragments: int) -> list[int]:
    """Return fragment n for layers n, n + P, n + 2 P ...; other pieces go where least is."""
    sizes = [0] * fragments
    numbers: list[int] = []
    for piece in pieces:
        least = min(range(fragments), key=lambda number: sizes[number])
        number = least if piece.layer is None else piece.layer % fragments
        sizes[number] += piece.size
        numbers.append(number)
    return numbers
