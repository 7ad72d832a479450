"""Runs of tiles: the same division and the same bits as tile by tile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.codec import Wire, encode
from coordinator.inner_products import sum_of_squares, sums_of_squares
from coordinator.kernels import TILE, frozen
from coordinator.outer import OuterRule, step, step_run
from coordinator.scratch import room_of_my_own
from coordinator.tiles import is_looked_at, jobs_of, run_of, runs_of
from coordinator.weighted_sum import WeightedParts, weighted

SIZES = st.lists(
    st.one_of(st.integers(1, 300), st.sampled_from([TILE - 1, TILE, 3 * TILE + 7])), max_size=60
)


@given(SIZES, st.data(), st.booleans())
def test_runs_have_the_tiles_of_their_jobs_in_order(
    sizes: list[int], data: st.DataObject, measured: bool
) -> None:
    which = [i for i in range(len(sizes)) if data.draw(st.booleans())]
    jobs, runs = jobs_of(sizes, which), runs_of(sizes, which, measured=measured)
    assert [tuple(tile for run in job for tile in run.tiles) for job in runs] == [*jobs]
    for run in (run for job in runs for run in job):
        assert run.stop - run.start <= TILE
        starts = [tile.start for tile in run.tiles]
        assert [*run.bounds] == [at - run.start for at in (*starts, run.stop)]
        assert [tile.stop for tile in run.tiles[:-1]] == starts[1:], "they are adjacent"
        if measured:
            assert len({is_looked_at(start) for start in starts}) == 1


def test_small_pieces_become_few_runs() -> None:
    sizes = [4000] * 1000
    runs = [run for job in runs_of(sizes, range(1000)) for run in job]
    assert len(runs) <= sum(sizes) / TILE * 1.2


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("count", [1, 4, 7])
def test_run_gives_the_bits_of_its_tiles(wire: Wire, count: int) -> None:
    rng = np.random.default_rng()
    sizes = [int(n) for n in rng.integers(1, 5000, 12)]
    size = sum(sizes)
    flats = [rng.standard_normal(size).astype("f4") * np.float32(10.0**e) for e in range(count)]
    payloads = [frozen(encode(wire, flat)) for flat in flats]
    weights = rng.random((count, len(sizes))).astype("f4")
    (job,) = jobs_of(sizes, range(len(sizes)))
    run = run_of(job)
    with room_of_my_own() as room:
        total = WeightedParts.of(payloads, weights, size).on(run, room)
        squares = np.empty(len(job))
        sums_of_squares(frozen(total), run.bounds, squares)
        master, momentum = (rng.standard_normal(size).astype("f4") for _ in range(2))
        stepped, moved = master.copy(), momentum.copy()
        factors, rule = rng.random(len(job)).astype("f4"), OuterRule(0.7, 0.9, nesterov=True)
        step_run(rule, master, momentum, total, run.bounds, factors)
        total = total.copy()
        for number, tile in enumerate(job):
            inside = slice(tile.start, tile.stop)
            own = frozen(weights[:, number])
            alone = weighted(payloads, own, tile.start, tile.stop, size, room)
            assert bits(alone) == bits(total[inside])
            assert sum_of_squares(frozen(alone)) == squares[number]
            step(rule, stepped[inside], moved[inside], alone, float(factors[number]))
    assert (bits(stepped), bits(moved)) == (bits(master), bits(momentum))
