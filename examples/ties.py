"""TIES merging (arXiv:2306.01708) as a run's merge rule: `python -m archipelago.examples.ties`.

To change it, copy this file and ties.toml into a folder, and set `sync.merge = "ties:ties"` there.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import archipelago as ap

Floats = NDArray[np.float32]


def ties(
    deltas: Floats, weights: Floats, pieces: Sequence[ap.MergePiece], density: float = 0.5
) -> Floats:
    """Trim each delta, elect a sign for each element, and average the deltas with that sign."""
    kept = max(1, round(density * deltas.shape[1]))
    sizes = np.abs(deltas)
    least = np.partition(sizes, -kept, axis=1)[:, -kept, None]  # [contributions, 1]
    weighted = weights[:, None] * np.where(sizes >= least, deltas, 0)
    agrees = weighted * np.sign(weighted.sum(axis=0)) > 0
    share = (weights[:, None] * agrees).sum(axis=0)
    return (weighted * agrees).sum(axis=0) / np.where(share > 0, share, np.float32(1))


if __name__ == "__main__":
    result = ap.run(Path(__file__).with_suffix(".toml"))
    print(f"held-out loss {result.heldout_loss:.3f}: archipelago replay {result.run_dir}")
