"""The cosines between the contributions of a merge, measured on a sixteenth of a fragment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.codec import Payload, decoded
from coordinator.fragments import Flat, Piece
from coordinator.inner_products import TOGETHER, products, sum_and_products, sum_of_squares
from coordinator.kernels import frozen
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import Spread, Tile, is_looked_at, jobs_of
from coordinator.weighted_sum import weighted

VANISHING = float(np.finfo(np.float32).tiny)
"""The shortest length that has a direction; division by a shorter one would overflow."""


@dataclass(frozen=True, slots=True)
class AlignmentPart:
    """A contribution in a merge: its frozen payload, its weight, and the norm of each piece."""

    payload: Payload
    weight: float
    norms: Sequence[float]


class Directions(NamedTuple):
    """The directions of the contributions of a merge, on the measured tiles."""

    cosines: tuple[float | None, ...]
    """Cosines of the parts, then of those on trial; None where a length vanishes.

    A part is compared with the weighted mean of the others, one on trial with the mean of all
    parts.
    """
    measured: int
    """Elements measured."""
    turned: float | None = None
    """Cosine of the merged delta to the outer momentum; None without an outer rule of ours."""
    rate: float | None = None
    """Outer learning rate that was taken; None without an outer rule of ours."""
    aligned: tuple[float | None, ...] = ()
    """Cosine of each part to the direction of the momentum before the step.

    It is empty without an outer rule of ours.
    """


class MeasuredPayloads(NamedTuple):
    """The contributions whose directions are measured."""

    payloads: Sequence[Payload]
    """Payloads of the parts, then of those on trial."""
    weights: Flat
    """Weights of the parts."""


class Looked(NamedTuple):
    """The payloads at one place of a fragment."""

    mean: Flat
    """The weighted mean of the parts."""
    sums: NDArray[np.float64]
    """The products of each payload with that mean and with itself, [n, 2]."""
    along: NDArray[np.float64]
    """The product of each part with the momentum, then of the momentum with itself, [parts + 1].

    All are 0 without a momentum.
    """


def directions(
    pieces: Sequence[Piece],
    parts: Sequence[AlignmentPart],
    trial: Sequence[Payload] = (),
    spread: Spread = map,
    momentum: Flat | None = None,
) -> Directions:
    """Measure the direction of each part, and of each payload on trial, beside the others.

    `momentum`: measured beside the parts, if it is given.

    The measured sixteenth of a fragment is the same for all: the tiles that begin in the first TILE
    of every SHARE * TILE elements. A fragment of one tile or less is measured whole.
    """
    contributions, size = measured_payloads(parts, trial), sum(piece.size for piece in pieces)

    def among(job: Sequence[Tile]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        sums, along = nothing(contributions), along_nothing(contributions)
        with room_of_my_own() as room:
            for tile in job:
                place = slice(tile.start, tile.stop)
                _, products_here, along_here = look(contributions, place, size, room, momentum)
                sums += products_here
                along += along_here
        return sums, along

    jobs = [[tile for tile in job if is_looked_at(tile.start)] for job in jobs_of([size], [0])]
    results = list(spread(among, jobs))
    momentum_sums = None if momentum is None else [along for _, along in results]
    return pointing(contributions, [sums for sums, _ in results], [size], momentum_sums)


def measured_payloads(parts: Sequence[AlignmentPart], trial: Sequence[Payload]) -> MeasuredPayloads:
    """Return the payloads to measure, parts first, and the parts' weights."""
    weights = np.array([part.weight for part in parts], np.float32)
    return MeasuredPayloads([*(part.payload for part in parts), *trial], weights)


def nothing(everyone: MeasuredPayloads) -> NDArray[np.float64]:
    """Return zeros for `Looked.sums`."""
    return np.zeros((len(everyone.payloads), 2))


def look(
    everyone: MeasuredPayloads, place: slice, size: int, room: Room, momentum: Flat | None = None
) -> Looked:
    """Measure the payloads at `place`, a slice of at most TILE elements; the mean is in `room`."""
    (payloads, weights), start, stop = everyone, place.start, place.stop
    sums, along = nothing(everyone), along_nothing(everyone)
    way = frozen(np.empty(0, np.float32) if momentum is None else momentum[place])
    known = 0 if momentum is None else weights.size  # payloads that are measured along it
    mean = room.total[: stop - start]
    if len(payloads) <= TOGETHER[-1] and all(each.dtype == np.float32 for each in payloads):
        flats = [payload[start:stop].view(np.float32) for payload in payloads]
        flats += flats[:1] * (next(n for n in TOGETHER if n >= len(flats)) - len(flats))
        sum_and_products(mean, weights, tuple(flats), way, sums, along[:known])
    else:
        mean = weighted(payloads[: weights.size], weights, start, stop, size, room)
        with room_of_my_own() as other:
            for i, payload in enumerate(payloads):
                values = frozen(decoded(payload, start, stop, size, other))
                sums[i] = products(values, frozen(mean), other.lanes)
                if i < known:
                    along[i], _ = products(way, values, other.lanes)
    along[-1] = sum_of_squares(way)
    return Looked(mean, sums, along)


def along_nothing(everyone: MeasuredPayloads) -> NDArray[np.float64]:
    """Return zeros for `Looked.along`."""
    return np.zeros(len(everyone.weights) + 1)


def alignments(sums: NDArray[np.float64], along: NDArray[np.float64]) -> tuple[float | None, ...]:
    """Return the cosine of each part to the direction of the momentum, which is its negative.

    `sums`, `along`: as in `Looked`.
    """
    return tuple(
        _cosine(-float(dot), math.sqrt(max(square, 0.0) * max(float(along[-1]), 0.0)))
        for dot, (_, square) in zip(along[:-1], sums, strict=False)
    )


def _cosine(dot: float, length: float) -> float | None:
    cosine = dot / length if length > VANISHING else math.nan
    return max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else None


def pointing(
    everyone: MeasuredPayloads,
    sums: Iterable[NDArray[np.float64]],
    sizes: Sequence[int],
    along: Iterable[NDArray[np.float64]] | None = None,
) -> Directions:
    """Return the cosines from the sums of each job; `along`: those with the momentum, if any."""
    total = sum(sums, nothing(everyone))
    tiles = [tile for job in jobs_of(sizes, range(len(sizes))) for tile in job]
    measured = sum(tile.stop - tile.start for tile in tiles if is_looked_at(tile.start))
    aligned = () if along is None else alignments(total, sum(along, along_nothing(everyone)))
    return Directions(_cosines(total, everyone.weights.tolist()), measured, aligned=aligned)


def _cosines(sums: NDArray[np.float64], weights: Sequence[float]) -> tuple[float | None, ...]:
    """Return the cosines from the sums of `Looked`.

    With S the mean of the parts, |S|^2 = sum w (v . S), and the mean of the others is S - w v.
    """
    mean_square = sum(w * dot for w, (dot, _) in zip(weights, sums, strict=False))
    cosines: list[float | None] = []
    for i, (dot, square) in enumerate(sums):
        w = weights[i] if i < len(weights) else 0.0
        length = math.sqrt(max(square, 0.0) * max(mean_square - 2 * w * dot + w * w * square, 0.0))
        cosines.append(_cosine(float(dot - w * square), length))
    return tuple(cosines)
