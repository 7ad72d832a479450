"""Direction-aware correction of deltas (HeLoCo, arXiv:2606.00271) as a run's merge rule.

Each tensor of a contribution is compared with the outer momentum. One that points the same way
stays as it is; one that points across is turned towards the momentum and keeps its length; from one
that points against it a share of its component along the momentum is removed.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import archipelago as ap

Floats = NDArray[np.float32]


def heloco(
    deltas: Floats,
    weights: Floats,
    pieces: Sequence[ap.MergePiece],
    momentum: Floats,
    aligned: float = 0.2,
    turn: float = 0.5,
    shrink: float = 1.0,
    relative: float = 1.0,
) -> Floats:
    """Correct each tensor of each contribution, and return their weighted mean.

    Tensors whose cosine to the momentum is `aligned` or more stay as they are. `turn` and `shrink`:
    strengths of the two corrections. `relative`: how much they weaken with a long momentum.
    """
    merged = np.zeros(deltas.shape[1], np.float32)
    for delta, weight in zip(deltas, weights, strict=True):
        for piece in pieces:
            part, along = delta[piece.elements], momentum[piece.elements]
            length, pull = np.sqrt((part * part).sum()), np.sqrt((along * along).sum())
            if length > 0 and pull > 0:
                unit, toward = part / length, along / pull
                cosine = (unit * toward).sum()
                trust = length / (length + np.float32(relative) * pull)
                if cosine < 0:
                    removed = min(-np.float32(shrink) * cosine * trust, np.float32(1))
                    part = part - removed * cosine * length * toward
                elif cosine < aligned:
                    share = min(np.float32(turn) * (1 - cosine) * trust, np.float32(1))
                    turned = (1 - share) * unit + share * toward
                    part = turned * (length / np.sqrt((turned * turned).sum()))
            merged[piece.elements] += weight * part
    return merged
