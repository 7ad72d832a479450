"""A gate by relative length: `sync.gate = "archipelago.examples.relative_gate:gate"`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import archipelago as ap

Floats = NDArray[np.float32]


def gate(
    delta: Floats, public: Floats, pieces: Sequence[ap.MergePiece], most: float = 0.5
) -> str | None:
    """Refuse a delta that is longer than `most` times a tensor of the global model."""
    for piece in pieces:
        moved = float(np.linalg.norm(delta[piece.elements]))
        length = float(np.linalg.norm(public[piece.elements]))
        if length > 0 and moved > most * length:
            return f"{piece.path} moves by {moved / length:.3g} times its norm, at most {most:g}"
    return None
