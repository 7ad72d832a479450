"""The merge: contributions -> a merged delta -> the next master, tile by tile, in a fixed order.

Mean: the weighted mean. RDA, radial-directional averaging (arXiv:2604.21428): the mean of the norms
times the direction of the mean of the directions,

    RDA(v) = (sum w |v| / sum w) * phi(sum w phi(v) / sum w),   phi(x) = x / |x|,  phi(0) = 0

per tensor, because plain averaging shortens deltas that point in different directions. Embeddings,
whose rows are touched by few tokens each, take the mean under either rule.

An exponent kappa between 0 and 1 damps it: with d = sum w v / |v|^kappa, per tensor,

    d * (sum w |v|)^kappa * (sum w |v|^(1 - kappa) / |d|)^kappa

which is the mean for 0 and RDA for 1. If all norms are equal it is the mean times the kappa-th
power of the factor by which the mean is shorter than they are.

Contributions are decoded in cache and go from there into master and momentum: no array of a
fragment's size is ever allocated. RDA reads them twice, the first time for the length of the mean
direction; their own norms were taken when they arrived (`norms`). A sixteenth is read before that,
for the cosine of the merged delta to the outer momentum. Work is cut into jobs that do not depend
on threads, so that `spread` may be `map` or one over any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.alignment import (
    AlignmentPart,
    Directions,
    MeasuredPayloads,
    along_nothing,
    look,
    measured_payloads,
    nothing,
    pointing,
)
from coordinator.codec import Payload, decoded
from coordinator.fragments import Flat, Piece
from coordinator.inner_products import products, sum_of_squares
from coordinator.kernels import TILE, frozen
from coordinator.outer import OuterRule, Turn, rate, step_run
from coordinator.rda import Recipes, lengths, radial_recipes
from coordinator.scratch import Room, room_of_my_own
from coordinator.tiles import JOB, Spread, TileRun, is_looked_at, runs_of
from coordinator.weighted_sum import WeightedParts


class MergeRule(StrEnum):
    """The rule by which deltas are merged into one."""

    MEAN = "mean"
    RDA = "rda"


def merge(
    rule: MergeRule, pieces: Sequence[Piece], deltas: Sequence[Flat], weights: Sequence[float]
) -> Flat:
    """Merge whole fragments into a new array; `weights` sum to one, in the order of `deltas`."""
    parts = [
        AlignmentPart(frozen(delta), weight, norms(frozen(delta), pieces))
        for delta, weight in zip(deltas, weights, strict=True)
    ]
    return merged_of(rule, pieces, parts)


def merged_of(
    rule: MergeRule,
    pieces: Sequence[Piece],
    parts: Sequence[AlignmentPart],
    spread: Spread = map,
    kappa: float = 1.0,
) -> Flat:
    """Return the merged delta, in a new array, for an outer optimizer that is not ours."""
    merged = np.empty(sum(piece.size for piece in pieces), np.float32)

    def keep(run: TileRun, delta: Flat, factors: Flat) -> None:
        factor = np.repeat(factors, np.diff(run.bounds))
        np.multiply(delta, factor, out=merged[run.start : run.stop])

    _make(_planned(rule, pieces, parts, None, spread, kappa), keep, spread)
    return merged


def merge_into(
    master: Flat,
    momentum: Flat,
    *,
    rule: MergeRule,
    outer: OuterRule,
    pieces: Sequence[Piece],
    parts: Sequence[AlignmentPart],
    spread: Spread = map,
    trial: Sequence[Payload] | None = None,
    kappa: float = 1.0,
) -> Directions:
    """Merge, and take the outer step with the result; `master` and `momentum` change in place.

    `kappa`: the exponent of RDA, above 0. `trial`: payloads that are measured beside the parts
    (`directions`) while those are in cache. If it is None, only the length that an outer rule with
    `as_long` needs is measured.
    """
    plan, turn = _planned(rule, pieces, parts, trial, spread, kappa), None
    if outer.as_long:
        turn = _turn(plan, momentum, spread)
        outer = replace(outer, learning_rate=rate(outer, turn))
    in_passing, turns = plan.measured and turn is None, dict[int, Turn]()

    def use(run: TileRun, delta: Flat, factors: Flat) -> None:
        inside = slice(run.start, run.stop)
        if in_passing and is_looked_at(run.start):
            turns[run.start] = _beside(plan, run, delta, momentum)
        step_run(outer, master[inside], momentum[inside], delta, run.bounds, factors)

    measured = _make(plan, use, spread, momentum)
    if in_passing:
        turn = _together(turns[start] for start in sorted(turns))
    if turn is not None:
        measured = measured._replace(turned=turn.cosine, rate=outer.learning_rate)
    return measured


def norms(payload: Payload, pieces: Sequence[Piece], spread: Spread = map) -> list[float]:
    """Return the Euclidean norm of each piece; not finite if an element of it is not."""
    sizes = [piece.size for piece in pieces]
    size = sum(sizes)

    def values(run: TileRun, room: Room) -> Flat:
        return decoded(payload, run.start, run.stop, size, room)

    most = JOB if payload.dtype == np.float32 else TILE  # nothing is decoded into `room`
    return lengths(sizes, range(len(sizes)), values, spread, most)


class _Plan(NamedTuple):
    """A merge before it is carried out.

    With the mean, all pieces have the same recipe and count as one: many small ones cost no more
    calls.
    """

    everyone: MeasuredPayloads
    """The contributions whose directions can be measured."""
    measured: bool
    """Whether directions are measured."""
    sizes: Sequence[int]
    """Elements of each piece."""
    recipes: Recipes
    merged: WeightedParts
    """The contributions that are merged, with the weights of the recipes."""

    @property
    def size(self) -> int:
        """Elements of all pieces."""
        return self.merged.size

    def delta(self, run: TileRun, room: Room) -> Flat:
        """Return the merged delta on a run, without its recipes' factors; it is in `room`."""
        return self.merged.on(run, room)

    def factors(self, run: TileRun) -> Flat:
        """Return the factor of each tile of a run."""
        return self.recipes.factors[run.pieces].astype(np.float32)


def _planned(
    rule: MergeRule,
    pieces: Sequence[Piece],
    parts: Sequence[AlignmentPart],
    trial: Sequence[Payload] | None,
    spread: Spread,
    kappa: float,
) -> _Plan:
    contributions, sizes = measured_payloads(parts, trial or ()), [piece.size for piece in pieces]
    match rule:
        case MergeRule.MEAN:
            sizes, recipes = [sum(sizes)], Recipes.of_mean(contributions.weights, 1)
        case MergeRule.RDA:
            recipes = radial_recipes(kappa, pieces, parts, contributions.weights, spread)
    payloads = contributions.payloads[: len(parts)]
    merged = WeightedParts.of(payloads, recipes.weights, sum(sizes))
    return _Plan(contributions, trial is not None, sizes, recipes, merged)


def _turn(plan: _Plan, momentum: Flat, spread: Spread) -> Turn:
    """Measure the merged delta beside the momentum, on the tiles that `directions` measures."""

    def work(job: Sequence[TileRun]) -> list[Turn]:
        with room_of_my_own() as room:
            return [
                _beside(plan, run, plan.delta(run, room), momentum)
                for run in job
                if is_looked_at(run.start)
            ]

    job_turns = spread(work, runs_of(plan.sizes, range(len(plan.sizes)), measured=True))
    return _together(turn for turns in job_turns for turn in turns)


def _beside(plan: _Plan, run: TileRun, delta: Flat, momentum: Flat) -> Turn:
    """Measure the merged delta of a run beside the momentum; `delta`: still without its factors."""
    factor = float(plan.recipes.factors[run.pieces[0]])
    with room_of_my_own() as room:
        if len(run.tiles) > 1:
            factors, sizes = plan.factors(run), np.diff(run.bounds)
            scaled = room.total[: run.stop - run.start]
            factor, delta = 1.0, np.multiply(delta, np.repeat(factors, sizes), out=scaled)
        dot, square = products(frozen(momentum[run.start : run.stop]), frozen(delta), room.lanes)
        delta_square = sum_of_squares(frozen(delta))
    return Turn(factor * factor * delta_square, factor * dot, square)


def _together(turns: Iterable[Turn]) -> Turn:
    return Turn(*map(float, sum(map(np.array, turns), np.zeros(3))))


def _make(
    plan: _Plan,
    use: Callable[[TileRun, Flat, Flat], None],
    spread: Spread,
    momentum: Flat | None = None,
) -> Directions:
    """Make each run of the merged delta and pass it to `use`, with the factors of its tiles.

    Tiles that are measured share no run with others. `momentum`: measured beside the parts, before
    `use` changes it on a run.
    """
    sizes, size = plan.sizes, plan.size

    def work(job: Sequence[TileRun]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        sums, along = nothing(plan.everyone), along_nothing(plan.everyone)
        with room_of_my_own() as room:
            for run in job:
                place, delta = slice(run.start, run.stop), None
                if plan.measured and is_looked_at(run.start):
                    looked = look(plan.everyone, place, size, room, momentum)
                    sums, along, delta = sums + looked.sums, along + looked.along, looked.mean
                if delta is None or not plan.recipes.plain[run.pieces].all():
                    delta = plan.delta(run, room)
                use(run, delta, plan.factors(run))
        return sums, along

    jobs = runs_of(sizes, range(len(sizes)), measured=plan.measured)
    results = list(spread(work, jobs))
    if not plan.measured:
        return Directions((), 0)
    momentum_sums = None if momentum is None else [along for _, along in results]
    return pointing(plan.everyone, [sums for sums, _ in results], sizes, momentum_sums)
