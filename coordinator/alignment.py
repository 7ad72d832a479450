"""Where the contributions of a merge point beside each other, on a sixteenth of a fragment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.codec import Payload, decoded
from coordinator.fragments import Flat, Piece
from coordinator.inner_products import TOGETHER, products, sum_and_products
from coordinator.kernels import frozen
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import Spread, Tile, is_looked_at, jobs_of
from coordinator.weighted_sum import weighted

VANISHING = float(np.finfo(np.float32).tiny)
"""A shorter delta points nowhere: dividing by such a length would overflow."""


@dataclass(frozen=True, slots=True)
class AlignmentPart:
    """A contribution in a merge: its frozen payload, its share, and the norm of each piece."""

    payload: Payload
    weight: float
    norms: Sequence[float]


class Directions(NamedTuple):
    """Where the contributions of a merge point, on the tiles that were looked at.

    `cosines`: of each part to the weighted mean of the others, then of each one on trial to the
    mean of all parts; None where one of the two has no length. `measured`: elements looked at.
    `turned`: cosine of the merged delta to the outer momentum (`Turn`); `rate`: the outer learning
    rate that was taken; None if no outer rule of ours was there. `aligned`: cosine of each part to
    where the outer momentum led before the step; empty if no outer rule of ours was there.
    """

    cosines: tuple[float | None, ...]
    measured: int
    turned: float | None = None
    rate: float | None = None
    aligned: tuple[float | None, ...] = ()


class Everyone(NamedTuple):
    """Whose directions are measured: the parts, then those on trial; the shares of the parts."""

    payloads: Sequence[Payload]
    weights: Flat


def directions(
    pieces: Sequence[Piece],
    parts: Sequence[AlignmentPart],
    trial: Sequence[Payload] = (),
    spread: Spread = map,
) -> Directions:
    """Measure where each part, and each payload on trial, points beside the others.

    On a sixteenth of a fragment, the same for everyone: the tiles that begin in the first TILE of
    every SHARE * TILE elements. A fragment of one tile or less is looked at whole.
    """
    everyone, size = everyone_of(parts, trial), sum(piece.size for piece in pieces)

    def among(job: Sequence[Tile]) -> NDArray[np.float64]:
        sums = nothing(everyone)
        with room_of_my_own() as room:
            for tile in job:
                sums += look(everyone, tile, size, room)[1]
        return sums

    jobs = [[tile for tile in job if is_looked_at(tile.start)] for job in jobs_of([size], [0])]
    return pointing(everyone, spread(among, jobs), [size])


def everyone_of(parts: Sequence[AlignmentPart], trial: Sequence[Payload]) -> Everyone:
    weights = np.array([part.weight for part in parts], np.float32)
    return Everyone([*(part.payload for part in parts), *trial], weights)


def nothing(everyone: Everyone) -> NDArray[np.float64]:
    return np.zeros((len(everyone.payloads), 2))


def look(everyone: Everyone, tile: Tile, size: int, room: Room) -> tuple[Flat, NDArray[np.float64]]:
    """Return the parts' weighted mean on this tile, which is in `room`; and of each payload its
    product with that, and with itself: [n, 2]."""
    sums, (payloads, weights), (_, start, stop) = nothing(everyone), everyone, tile
    if len(payloads) <= TOGETHER[-1] and all(each.dtype == np.float32 for each in payloads):
        flats = [each[start:stop].view(np.float32) for each in payloads]
        flats += flats[:1] * (next(n for n in TOGETHER if n >= len(flats)) - len(flats))
        mean = room.total[: stop - start]
        sum_and_products(mean, weights, tuple(flats), sums)
        return mean, sums
    mean = weighted(payloads[: weights.size], weights, start, stop, size, room)
    with room_of_my_own() as other:
        for i, payload in enumerate(payloads):
            values = decoded(payload, start, stop, size, other)
            sums[i] = products(frozen(values), frozen(mean), other.lanes)
    return mean, sums


def look_along(
    everyone: Everyone, momentum: Flat, tile: Tile, size: int, room: Room
) -> NDArray[np.float64]:
    """Return of each part its product with the momentum on this tile, then that of the momentum
    with itself: [n + 1]."""
    found, (_, start, stop) = along_nothing(everyone), tile
    beside = frozen(momentum[start:stop])
    for i, payload in enumerate(everyone.payloads[: len(found) - 1]):
        values = frozen(decoded(payload, start, stop, size, room))
        found[i], found[-1] = products(beside, values, room.lanes)
    return found


def along_nothing(everyone: Everyone) -> NDArray[np.float64]:
    return np.zeros(len(everyone.weights) + 1)


def alignments(sums: NDArray[np.float64], along: NDArray[np.float64]) -> tuple[float | None, ...]:
    """Return the cosine of each part to minus the momentum, which is where that leads; `sums` as in
    `look`, `along` as in `look_along`."""
    return tuple(
        _cosine(-float(dot), math.sqrt(max(own, 0.0) * max(float(along[-1]), 0.0)))
        for dot, (_, own) in zip(along[:-1], sums, strict=False)
    )


def _cosine(dot: float, length: float) -> float | None:
    cosine = dot / length if length > VANISHING else math.nan
    return max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else None


def pointing(
    everyone: Everyone,
    sums: Iterable[NDArray[np.float64]],
    sizes: Sequence[int],
    along: Iterable[NDArray[np.float64]] | None = None,
) -> Directions:
    """Return the cosines, from what each job has found; `along`: of the outer momentum, if there is
    one."""
    total = sum(sums, nothing(everyone))
    tiles = [tile for job in jobs_of(sizes, range(len(sizes))) for tile in job]
    measured = sum(tile.stop - tile.start for tile in tiles if is_looked_at(tile.start))
    aligned = () if along is None else alignments(total, sum(along, along_nothing(everyone)))
    return Directions(_cosines(total, everyone.weights.tolist()), measured, aligned=aligned)


def _cosines(sums: NDArray[np.float64], weights: Sequence[float]) -> tuple[float | None, ...]:
    """Return the cosines; `sums`: [n, 2], of each one its product with the mean S of the parts, and
    with itself. |S|^2 = sum w (v . S), and the mean of the others is S - w v."""
    whole = sum(w * dot for w, (dot, _) in zip(weights, sums, strict=False))
    found: list[float | None] = []
    for i, (dot, own) in enumerate(sums):
        w = weights[i] if i < len(weights) else 0.0
        length = math.sqrt(max(own, 0.0) * max(whole - 2 * w * dot + w * w * own, 0.0))
        found.append(_cosine(float(dot - w * own), length))
    return tuple(found)
