"""Contributions -> a merged delta -> the next master, tile by tile, in a fixed order of summation.

Mean: the weighted mean. RDA, radial-directional averaging (arXiv:2604.21428): the mean of the norms
times the direction of the mean of the directions,

    RDA(v) = (sum w |v| / sum w) * phi(sum w phi(v) / sum w),   phi(x) = x / |x|,  phi(0) = 0

per tensor, because plain averaging shortens what points in different directions. Embeddings, whose
rows are touched by few tokens each, take the mean under either rule.

An exponent kappa between 0 and 1 damps it: with d = sum w v / |v|^kappa, per tensor,

    d * (sum w |v|)^kappa * (sum w |v|^(1 - kappa) / |d|)^kappa

which is the mean for 0 and RDA for 1; where all norms are equal it is the mean times the kappa-th
power of what the mean is shorter by.

Contributions are decoded in cache and go from there into master and momentum: nothing of a
fragment's size is ever allocated. RDA reads them twice, the first time for the length of the mean
direction; their own norms were taken when they arrived (`norms`). Work is cut into jobs that do not
depend on who does them, so that `spread` may be `map` or that of any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator import kernels
from coordinator.codec import Payload, Room, decoded, room_of_my_own, weighted
from coordinator.fragments import Flat, Piece
from coordinator.kernels import TILE, TOGETHER, frozen
from coordinator.outer import OuterRule, step

CANCELLED = 1e-6
"""A mean direction shorter than this points nowhere: fall back to the weighted mean."""
VANISHING = float(np.finfo(np.float32).tiny)
"""A shorter delta points nowhere either: dividing by such a length would overflow."""
JOB = 8 * TILE
"""Elements that one thread works on before it asks for more: some 100 us."""

SHARE = 16
"""One tile in so many is looked at to learn where contributions point."""

S = TypeVar("S")
T = TypeVar("T")


class MergeRule(StrEnum):
    """How deltas become one."""

    MEAN = "mean"
    RDA = "rda"


class Spread(Protocol):
    """`map`, or one that uses several threads: results in the order of the items."""

    def __call__(self, work: Callable[[S], T], items: Iterable[S], /) -> Iterable[T]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A contribution in a merge: its frozen payload, its share, and the norm of each piece."""

    payload: Payload
    weight: float
    norms: Sequence[float]


class Directions(NamedTuple):
    """Where the contributions of a merge point, on the tiles that were looked at.

    `cosines`: of each part to the weighted mean of the others, then of each one on trial to the
    mean of all parts; None where one of the two has no length. `measured`: elements looked at.
    """

    cosines: tuple[float | None, ...]
    measured: int


class _Tile(NamedTuple):
    """Elements of a fragment that belong to one piece of it, at most TILE."""

    piece: int
    start: int
    stop: int


class _Recipe(NamedTuple):
    """How the delta of a piece is made: `factor` times the sum of the parts by these weights."""

    weights: Flat
    factor: float


def merge(
    rule: MergeRule, pieces: Sequence[Piece], deltas: Sequence[Flat], weights: Sequence[float]
) -> Flat:
    """Merge whole fragments into a new array; `weights` sum to one, in the order of `deltas`."""
    parts = [
        Part(frozen(delta), weight, norms(frozen(delta), pieces))
        for delta, weight in zip(deltas, weights, strict=True)
    ]
    return merged_of(rule, pieces, parts)


def merged_of(
    rule: MergeRule,
    pieces: Sequence[Piece],
    parts: Sequence[Part],
    spread: Spread = map,
    kappa: float = 1.0,
) -> Flat:
    """Return the merged delta, in a new array, for an outer optimizer that is not ours."""
    merged = np.empty(sum(piece.size for piece in pieces), np.float32)

    def keep(inside: slice, delta: Flat, factor: float) -> None:
        np.multiply(delta, np.float32(factor), out=merged[inside])

    _merge(rule, pieces, parts, keep, spread, kappa=kappa)
    return merged


def merge_into(
    master: Flat,
    momentum: Flat,
    *,
    rule: MergeRule,
    outer: OuterRule,
    pieces: Sequence[Piece],
    parts: Sequence[Part],
    spread: Spread = map,
    trial: Sequence[Payload] | None = None,
    kappa: float = 1.0,
) -> Directions:
    """Merge, and take the outer step with the result; `master` and `momentum` change in place.

    `kappa`: of RDA, above 0. `trial`: payloads to be measured beside the parts (`directions`),
    while those are in cache; None: nothing is measured.
    """

    def use(inside: slice, delta: Flat, factor: float) -> None:
        step(outer, master[inside], momentum[inside], delta, factor)

    return _merge(rule, pieces, parts, use, spread, trial, kappa)


def directions(
    pieces: Sequence[Piece],
    parts: Sequence[Part],
    trial: Sequence[Payload] = (),
    spread: Spread = map,
) -> Directions:
    """Measure where each part, and each payload on trial, points beside the others.

    On a sixteenth of a fragment, the same for everyone: the tiles that begin in the first TILE of
    every SHARE * TILE elements. A fragment of one tile or less is looked at whole.
    """
    everyone, size = _everyone(parts, trial), sum(piece.size for piece in pieces)

    def look(job: Sequence[_Tile]) -> NDArray[np.float64]:
        sums = _nothing(everyone)
        with room_of_my_own() as room:
            for tile in job:
                sums += _look(everyone, tile, size, room)[1]
        return sums

    jobs = [[tile for tile in job if _is_looked_at(tile)] for job in _jobs([size], [0])]
    return _pointing(everyone, spread(look, jobs), [size])


class _Everyone(NamedTuple):
    """Whose directions are measured: the parts, then those on trial; the shares of the parts."""

    payloads: Sequence[Payload]
    weights: Flat


def _everyone(parts: Sequence[Part], trial: Sequence[Payload]) -> _Everyone:
    return _Everyone([*(part.payload for part in parts), *trial], _shares(parts))


def _shares(parts: Sequence[Part]) -> Flat:
    return np.array([part.weight for part in parts], np.float32)


def _nothing(everyone: _Everyone) -> NDArray[np.float64]:
    return np.zeros((len(everyone.payloads), 2))


def _is_looked_at(tile: _Tile) -> bool:
    return tile.start // TILE % SHARE == 0


def _look(
    everyone: _Everyone, tile: _Tile, size: int, room: Room
) -> tuple[Flat, NDArray[np.float64]]:
    """Return the parts' weighted mean on this tile, which is in `room`; and of each payload its
    product with that, and with itself: [n, 2]."""
    sums, (payloads, weights), (_, start, stop) = _nothing(everyone), everyone, tile
    if len(payloads) <= TOGETHER[-1] and all(each.dtype == np.float32 for each in payloads):
        flats = [each[start:stop].view(np.float32) for each in payloads]
        flats += flats[:1] * (next(n for n in TOGETHER if n >= len(flats)) - len(flats))
        mean = room.total[: stop - start]
        kernels.sum_and_products(mean, weights, tuple(flats), sums)
        return mean, sums
    mean = weighted(payloads[: weights.size], weights, start, stop, size, room)
    with room_of_my_own() as other:
        for i, payload in enumerate(payloads):
            values = decoded(payload, start, stop, size, other)
            sums[i] = kernels.products(frozen(values), frozen(mean), other.lanes)
    return mean, sums


def _pointing(
    everyone: _Everyone, sums: Iterable[NDArray[np.float64]], sizes: Sequence[int]
) -> Directions:
    """Return the cosines, from what each job has found."""
    total = sum(sums, _nothing(everyone))
    tiles = [tile for job in _jobs(sizes, range(len(sizes))) for tile in job]
    measured = sum(tile.stop - tile.start for tile in tiles if _is_looked_at(tile))
    return Directions(_cosines(total, everyone.weights.tolist()), measured)


def _cosines(sums: NDArray[np.float64], weights: Sequence[float]) -> tuple[float | None, ...]:
    """Return the cosines; `sums`: [n, 2], of each one its product with the mean S of the parts, and
    with itself. |S|^2 = sum w (v . S), and the mean of the others is S - w v."""
    whole = sum(w * dot for w, (dot, _) in zip(weights, sums, strict=False))
    found: list[float | None] = []
    for i, (dot, own) in enumerate(sums):
        w = weights[i] if i < len(weights) else 0.0
        length = math.sqrt(max(own, 0.0) * max(whole - 2 * w * dot + w * w * own, 0.0))
        cosine = (dot - w * own) / length if length > VANISHING else math.nan
        found.append(max(-1.0, min(1.0, float(cosine))) if math.isfinite(cosine) else None)
    return tuple(found)


def norms(payload: Payload, pieces: Sequence[Piece], spread: Spread = map) -> list[float]:
    """The Euclidean norm of each piece; not finite if an element of it is not."""
    size = sum(piece.size for piece in pieces)

    def square(tile: _Tile, room: Room) -> float:
        values = decoded(payload, tile.start, tile.stop, size, room)
        return kernels.sum_of_squares(values, room.lanes)

    return _lengths(pieces, range(len(pieces)), square, spread)


def _merge(
    rule: MergeRule,
    pieces: Sequence[Piece],
    parts: Sequence[Part],
    use: Callable[[slice, Flat, float], None],
    spread: Spread,
    trial: Sequence[Payload] | None = None,
    kappa: float = 1.0,
) -> Directions:
    """Make each tile of the merged delta and have it used; `trial` as in `merge_into`.

    The mean is the same for all pieces, which count as one: many small ones cost no more calls.
    """
    everyone, size = _everyone(parts, trial or ()), sum(piece.size for piece in pieces)
    payloads = everyone.payloads[: len(parts)]
    plain, sizes = _Recipe(everyone.weights, 1.0), [piece.size for piece in pieces]
    recipes = _recipes(rule, kappa, pieces, parts, plain, spread)
    if rule is MergeRule.MEAN:
        sizes, recipes = [size], [plain]

    def work(job: Sequence[_Tile]) -> NDArray[np.float64]:
        sums = _nothing(everyone)
        with room_of_my_own() as room:
            for tile in job:
                recipe, (_, start, stop) = recipes[tile.piece], tile
                looked_at = trial is not None and _is_looked_at(tile)
                delta = None
                if looked_at:
                    delta, products = _look(everyone, tile, size, room)
                    sums += products
                if delta is None or recipe is not plain:
                    delta = weighted(payloads, recipe.weights, start, stop, size, room)
                use(slice(start, stop), delta, recipe.factor)
        return sums

    found = list(spread(work, _jobs(sizes, range(len(sizes)))))
    return Directions((), 0) if trial is None else _pointing(everyone, found, sizes)


def _recipes(
    rule: MergeRule,
    kappa: float,
    pieces: Sequence[Piece],
    parts: Sequence[Part],
    plain: _Recipe,
    spread: Spread,
) -> list[_Recipe]:
    """For each piece, from its norms and the length of its mean direction; `plain`: the mean."""
    recipes = [plain for _ in pieces]
    if rule is MergeRule.MEAN:
        return recipes
    turning = [i for i, piece in enumerate(pieces) if not piece.embedding]
    turned = {
        i: np.array([_turned(part.weight, part.norms[i], kappa) for part in parts], "f4")
        for i in turning
    }
    payloads, size = [part.payload for part in parts], sum(piece.size for piece in pieces)

    def square(tile: _Tile, room: Room) -> float:
        direction = weighted(payloads, turned[tile.piece], tile.start, tile.stop, size, room)
        return kernels.sum_of_squares(direction, room.lanes)

    for i, length in zip(turning, _lengths(pieces, turning, square, spread), strict=True):
        radius = sum(part.weight * part.norms[i] for part in parts)
        if kappa == 1:
            if length >= CANCELLED:
                recipes[i] = _Recipe(turned[i], radius / length)
            continue
        together = sum(part.weight * part.norms[i] ** (1 - kappa) for part in parts)
        if length > VANISHING and length >= CANCELLED * together:
            recipes[i] = _Recipe(turned[i], (radius * together / length) ** kappa)
    return recipes


def _turned(weight: float, norm: float, kappa: float) -> float:
    return weight / norm**kappa if norm > VANISHING else 0.0


def _lengths(
    pieces: Sequence[Piece],
    which: Sequence[int],
    square: Callable[[_Tile, Room], float],
    spread: Spread,
) -> list[float]:
    """The norm of each of these pieces, from the sums of `square` over its tiles."""

    def work(job: Sequence[_Tile]) -> list[float]:
        with room_of_my_own() as room:
            return [square(tile, room) for tile in job]

    jobs = list(_jobs([piece.size for piece in pieces], which))
    squares = dict.fromkeys(which, 0.0)
    for job, answers in zip(jobs, spread(work, jobs), strict=True):
        for tile, answer in zip(job, answers, strict=True):
            squares[tile.piece] += answer
    return [math.sqrt(squares[i]) for i in which]


def _jobs(sizes: Sequence[int], which: Iterable[int]) -> Iterator[list[_Tile]]:
    """Cut these of the pieces of `sizes` elements into tiles, in order, by some JOB elements."""
    job, held = list[_Tile](), 0
    stops = list(accumulate(sizes))
    for i in which:
        for start in range(stops[i] - sizes[i], stops[i], TILE):
            job.append(_Tile(i, start, min(stops[i], start + TILE)))
            held += job[-1].stop - start
            if held >= JOB:
                yield job
                job, held = [], 0
    if job:
        yield job
