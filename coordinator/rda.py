"""Radial-directional averaging: how the delta of each piece is made of the parts of a merge.

The formula is in `merge`. It needs the norm of each piece of each part, which was taken when the
part arrived, and the length of the mean direction, for which all parts are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.alignment import VANISHING, AlignmentPart
from coordinator.fragments import Flat, Piece
from coordinator.inner_products import sums_of_squares
from coordinator.kernels import TILE, frozen
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import Spread, TileRun, runs_of
from coordinator.weighted_sum import WeightedParts

CANCELLED = 1e-6
"""The length of a mean direction below which the weighted mean is taken instead."""


class Recipes(NamedTuple):
    """The recipes of the pieces: each delta is a factor times the sum of the parts by weights."""

    weights: Flat
    """The weights, [parts, pieces]."""
    factors: NDArray[np.float64]
    """The factor of each piece."""
    plain: NDArray[np.bool_]
    """Whether the piece has the recipe of the mean."""

    @classmethod
    def of_mean(cls, weights: Flat, pieces: int) -> Recipes:
        """Return the recipe of the mean for each of this many pieces; `weights`: of the parts."""
        return cls(np.tile(weights[:, None], pieces), np.ones(pieces), np.ones(pieces, bool))


def radial_recipes(
    kappa: float,
    pieces: Sequence[Piece],
    parts: Sequence[AlignmentPart],
    mean_weights: Flat,
    spread: Spread,
) -> Recipes:
    """Return the recipes of the pieces, from their norms and the lengths of their mean directions.

    `mean_weights`: the weights of the mean, for embeddings and for directions that cancel.
    """
    recipes = Recipes.of_mean(mean_weights, len(pieces))
    places = [i for i, piece in enumerate(pieces) if not piece.embedding]
    sizes, payloads = [piece.size for piece in pieces], [part.payload for part in parts]
    norms = np.array([part.norms for part in parts])  # [parts, pieces]
    shares = [part.weight for part in parts]
    weights = _turned(shares, norms, kappa)
    directions = WeightedParts.of(payloads, weights, sum(sizes))
    mean_lengths = np.array(lengths(sizes, places, directions.on, spread))
    radii = _summed(shares, norms)[places]
    if kappa == 1:
        found, scales = mean_lengths >= CANCELLED, np.ones(len(places))
    else:
        scales = _summed(shares, _powers(norms, 1 - kappa))[places]
        found = (mean_lengths > VANISHING) & (mean_lengths >= CANCELLED * scales)
    turned, ratios = np.array(places, int)[found], (radii * scales)[found] / mean_lengths[found]
    recipes.weights[:, turned], recipes.plain[turned] = weights[:, turned], False
    recipes.factors[turned] = ratios if kappa == 1 else _powers(ratios[None], kappa)[0]
    return recipes


def _summed(shares: Sequence[float], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sum over parts for each piece, in the order of the parts.

    Python's `sum` would give other last bits from version 3.12 on.
    """
    total = np.zeros(norms.shape[1])
    for share, row in zip(shares, norms, strict=True):
        total += share * row
    return total


def _turned(shares: Sequence[float], norms: NDArray[np.float64], kappa: float) -> Flat:
    """Return the weight of each part in each piece, [parts, pieces]; 0 if its norm vanishes."""
    powers = norms if kappa == 1 else _powers(norms, kappa)
    weights, shares_of_rows = np.zeros(norms.shape), np.array(shares)[:, None]
    np.divide(shares_of_rows, powers, out=weights, where=norms > VANISHING)
    return weights.astype(np.float32)


def _powers(norms: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return the powers of norms by Python: NumPy's last bits depend on the processor."""
    return np.array([[norm**exponent for norm in row] for row in norms.tolist()])


def lengths(
    sizes: Sequence[int],
    which: Sequence[int],
    values: Callable[[TileRun, Room], Flat],
    spread: Spread,
    most: int = TILE,
) -> list[float]:
    """Return the norm of each piece of `which`, from the squares of its `values`.

    `sizes`: elements of all pieces. `values`: the numbers of a run of tiles, which may lie in the
    room's `total`. `most`: see `runs_of`.
    """

    def work(job: Sequence[TileRun]) -> list[NDArray[np.float64]]:
        found: list[NDArray[np.float64]] = []
        with room_of_my_own() as room:
            for run in job:
                squares = np.empty(len(run.tiles))
                sums_of_squares(frozen(values(run, room)), run.bounds, squares)
                found.append(squares)
        return found

    jobs = runs_of(sizes, which, most=most)
    squares_of_tiles = [squares for found in spread(work, jobs) for squares in found]
    if not squares_of_tiles:
        return [0.0] * len(which)
    places = np.concatenate([run.pieces for job in jobs for run in job])
    squares = np.bincount(places, np.concatenate(squares_of_tiles), len(sizes))  # in order
    roots: list[float] = np.sqrt(squares).tolist()
    return roots if len(which) == len(sizes) else [roots[i] for i in which]
