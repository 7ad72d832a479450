"""Gates of a user's own, sound and unsound, as targets for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archipelago import MergePiece

HERE = "tests.own_gates"
Floats = NDArray[np.float32]
Pieces = Sequence[MergePiece]


def longest(delta: Floats, public: Floats, pieces: Pieces, most: float) -> str | None:
    length = float(np.linalg.norm(delta))
    return f"it is {length:.0f} long" if length > most else None


def breaks_on_large(delta: Floats, public: Floats, pieces: Pieces) -> None:
    if np.abs(delta).max() > 100:
        raise RuntimeError("too large to look at")


# --- unsound ones ---------------------------------------------------------------------------------


def number(delta: Floats, public: Floats, pieces: Pieces) -> Any:
    return float(delta[0])


def random(delta: Floats, public: Floats, pieces: Pieces) -> str:
    return str(np.random.default_rng().random())


def breaks(delta: Floats, public: Floats, pieces: Pieces) -> None:
    raise RuntimeError("not today")


def writes(delta: Floats, public: Floats, pieces: Pieces) -> None:
    public += delta
