"""Radial-directional averaging: how the delta of each piece is made of the parts of a merge.

The formula is in `merge`. It needs the norm of each piece of each part, which was taken when the
part arrived, and the length of the mean direction, for which all parts are read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coordinator.alignment import VANISHING, AlignmentPart
from coordinator.fragments import Flat, Piece
from coordinator.inner_products import sum_of_squares
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import Spread, Tile, jobs_of
from coordinator.weighted_sum import weighted

CANCELLED = 1e-6
"""The length of a mean direction below which the weighted mean is taken instead."""


class Recipe(NamedTuple):
    """The recipe of a piece's delta: `factor` times the sum of the parts by these weights."""

    weights: Flat
    factor: float


def radial_recipes(
    kappa: float,
    pieces: Sequence[Piece],
    parts: Sequence[AlignmentPart],
    plain: Recipe,
    spread: Spread,
) -> list[Recipe]:
    """Return the recipe of each piece, from its norms and the length of its mean direction.

    `plain`: the recipe of the mean, for embeddings and for directions that cancel.
    """
    recipes = [plain for _ in pieces]
    places = [i for i, piece in enumerate(pieces) if not piece.embedding]
    weights = {
        i: np.array([_turned(part.weight, part.norms[i], kappa) for part in parts], "f4")
        for i in places
    }
    payloads, size = [part.payload for part in parts], sum(piece.size for piece in pieces)

    def square(tile: Tile, room: Room) -> float:
        direction = weighted(payloads, weights[tile.piece], tile.start, tile.stop, size, room)
        return sum_of_squares(direction, room.lanes)

    for i, length in zip(places, lengths(pieces, places, square, spread), strict=True):
        radius = sum(part.weight * part.norms[i] for part in parts)
        if kappa == 1:
            if length >= CANCELLED:
                recipes[i] = Recipe(weights[i], radius / length)
            continue
        scale = sum(part.weight * part.norms[i] ** (1 - kappa) for part in parts)
        if length > VANISHING and length >= CANCELLED * scale:
            recipes[i] = Recipe(weights[i], (radius * scale / length) ** kappa)
    return recipes


def _turned(weight: float, norm: float, kappa: float) -> float:
    return weight / norm**kappa if norm > VANISHING else 0.0


def lengths(
    pieces: Sequence[Piece],
    which: Sequence[int],
    square: Callable[[Tile, Room], float],
    spread: Spread,
) -> list[float]:
    """Return the norm of each of these pieces, from the sums of `square` over its tiles."""

    def work(job: Sequence[Tile]) -> list[float]:
        with room_of_my_own() as room:
            return [square(tile, room) for tile in job]

    jobs = list(jobs_of([piece.size for piece in pieces], which))
    squares = dict.fromkeys(which, 0.0)
    for job, job_squares in zip(jobs, spread(work, jobs), strict=True):
        for tile, tile_square in zip(job, job_squares, strict=True):
            squares[tile.piece] += tile_square
    return [math.sqrt(squares[i]) for i in which]
