"""Fragmentings of a user's own, sound and unsound, as targets for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from archipelago import ModelPiece

HERE = "tests.own_fragmentings"
Pieces = Sequence[ModelPiece]


def in_turn(pieces: Pieces, fragments: int, first: int = 0) -> list[int]:
    return [(first + number) % fragments for number in range(len(pieces))]


def in_numpy(pieces: Pieces, fragments: int) -> Any:
    return np.arange(len(pieces)) % fragments


# --- unsound ones ---------------------------------------------------------------------------------


def too_few(pieces: Pieces, fragments: int) -> list[int]:
    return [0]


def too_large(pieces: Pieces, fragments: int) -> list[int]:
    return [fragments for _ in pieces]


def fractions(pieces: Pieces, fragments: int) -> list[Any]:
    return [0.5 for _ in pieces]


def all_in_one(pieces: Pieces, fragments: int) -> list[int]:
    return [0 for _ in pieces]


def random(pieces: Pieces, fragments: int) -> list[int]:
    return np.random.default_rng().integers(0, fragments, len(pieces)).tolist()


def breaks(pieces: Pieces, fragments: int) -> list[int]:
    raise RuntimeError("not today")
