"""Radial-directional averaging: how the delta of each piece is made of the parts of a merge.

The formula is in `merge`. It needs the norm of each piece of each part, which was taken when the
part arrived, and the length of the mean direction, for which all parts are read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.alignment import VANISHING, AlignmentPart
from coordinator.codec import Payload
from coordinator.fragments import Flat, Piece
from coordinator.inner_products import sums_of_squares
from coordinator.kernels import frozen
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import Spread, TileRun, jobs_of, runs_of
from coordinator.weighted_sum import weighted, weighted_run

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
    sizes, payloads = [piece.size for piece in pieces], [part.payload for part in parts]
    size, norms = sum(sizes), np.array([part.norms for part in parts])  # [parts, pieces]
    shares = [part.weight for part in parts]
    weights = _turned(shares, norms, kappa)

    def values(run: TileRun, room: Room) -> Flat:
        by_tile = [weights[tile.piece] for tile in run.tiles]
        return weighted_by_tile(payloads, by_tile, run, size, room)

    mean_lengths = lengths(sizes, places, values, spread)
    radii = _summed(shares, norms)
    if kappa == 1:
        for i, length in zip(places, mean_lengths, strict=True):
            if length >= CANCELLED:
                recipes[i] = Recipe(weights[i], radii[i] / length)
        return recipes
    scales = _summed(shares, _powers(norms, 1 - kappa))
    for i, length in zip(places, mean_lengths, strict=True):
        if length > VANISHING and length >= CANCELLED * scales[i]:
            recipes[i] = Recipe(weights[i], (radii[i] * scales[i] / length) ** kappa)
    return recipes


def _summed(shares: Sequence[float], norms: NDArray[np.float64]) -> list[float]:
    """Return the weighted sum over parts for each piece, in the order of the parts.

    Python's `sum` would give other last bits from version 3.12 on.
    """
    total = np.zeros(norms.shape[1])
    for share, row in zip(shares, norms, strict=True):
        total += share * row
    return total.tolist()


def _turned(shares: Sequence[float], norms: NDArray[np.float64], kappa: float) -> Flat:
    """Return the weight of each part in each piece, [pieces, parts]; 0 if its norm vanishes."""
    powers = norms if kappa == 1 else _powers(norms, kappa)
    weights, shares_of_rows = np.zeros(norms.shape), np.array(shares)[:, None]
    np.divide(shares_of_rows, powers, out=weights, where=norms > VANISHING)
    return weights.T.astype(np.float32, order="C")


def _powers(norms: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return the powers of norms by Python: NumPy's last bits depend on the processor."""
    return np.array([[norm**exponent for norm in row] for row in norms.tolist()])


def weighted_by_tile(
    payloads: Sequence[Payload], weights: Sequence[Flat], run: TileRun, size: int, room: Room
) -> Flat:
    """Return the weighted sum of payloads over a run; `weights`: those of each tile."""
    if len(run.tiles) == 1:
        return weighted(payloads, weights[0], run.start, run.stop, size, room)
    return weighted_run(payloads, np.array(weights).T.copy(), run, size, room)


def lengths(
    sizes: Sequence[int],
    which: Sequence[int],
    values: Callable[[TileRun, Room], Flat],
    spread: Spread,
) -> list[float]:
    """Return the norm of each piece of `which`, from the squares of its `values`.

    `sizes`: elements of all pieces. `values`: the numbers of a run of tiles, which may lie in the
    room's `total`.
    """

    def work(job: Sequence[TileRun]) -> list[float]:
        found = list[float]()
        with room_of_my_own() as room:
            for run in job:
                squares = np.empty(len(run.tiles))
                flat = frozen(values(run, room))
                sums_of_squares(flat, run.bounds, room.lanes, squares)
                found += squares.tolist()
        return found

    squares = dict.fromkeys(which, 0.0)
    found = spread(work, runs_of(sizes, which))
    for job, job_squares in zip(jobs_of(sizes, which), found, strict=True):
        for tile, tile_square in zip(job, job_squares, strict=True):
            squares[tile.piece] += tile_square
    return [math.sqrt(squares[i]) for i in which]
