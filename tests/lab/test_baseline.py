"""What islands are compared with is data-parallel at its own best, which a sweep has found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.lab.bench.baseline import (
    TABLE,
    RateAndMomentum,
    Sweep,
    Trained,
    at,
    facts_of,
    found,
    opponent,
    read,
    written,
)
from archipelago.lab.bench.stats import demo

CONFIG = demo("byte-1m", steps=300, seed=0, overrides=[])


def sweep(*runs: tuple[float, float, int, float]) -> Sweep:
    return Sweep("byte-1m", 300, facts_of(CONFIG), [Trained(*run) for run in runs], "here")


GRID = sweep(
    (1.0, 0.9, 0, 1.5), (2.0, 0.9, 0, 1.2), (4.0, 0.9, 0, 1.4),
    (2.0, 0.8, 0, 1.3), (2.0, 0.95, 0, 1.4),
)  # fmt: skip


def test_the_best_is_of_the_lowest_loss() -> None:
    assert GRID.best == RateAndMomentum(2.0, 0.9)
    assert GRID.enclosed


def test_what_was_tried_with_more_seeds_outweighs_one_lucky_run() -> None:
    lucky = sweep((1.0, 0.9, 0, 1.0), (2.0, 0.9, 0, 1.2), (2.0, 0.9, 1, 1.2), (4.0, 0.9, 0, 1.4),
                  (4.0, 0.9, 1, 1.1))  # fmt: skip
    assert lucky.best == RateAndMomentum(2.0, 0.9)


@pytest.mark.parametrize("gone", [0, 2, 3, 4])
def test_a_best_at_the_edge_of_what_was_tried_is_none(gone: int) -> None:
    runs = [run for number, run in enumerate(GRID.runs) if number != gone]
    edge = replace(GRID, runs=runs)
    assert edge.best == RateAndMomentum(2.0, 0.9)
    assert not edge.enclosed
    assert opponent(CONFIG, [edge]) == (at(CONFIG, RateAndMomentum(2.0, 0.9)), False)


def test_data_parallel_has_its_own_rate_and_momentum_and_all_else_is_the_islands() -> None:
    best, tuned = opponent(CONFIG, [GRID])
    assert tuned
    assert (best.optimizer.learning_rate, best.optimizer.momentum) == (2.0, 0.9)
    same = {"learning_rate": CONFIG.optimizer.learning_rate, "momentum": CONFIG.optimizer.momentum}
    assert best.optimizer.model_copy(update=same) == CONFIG.optimizer
    assert best.model_copy(update={"optimizer": CONFIG.optimizer}) == CONFIG


@pytest.mark.parametrize(
    "other",
    [
        ["run.steps=301"],
        ["task.preset=byte-tiny"],
        ["islands.0.batch_size=16"],
        ["data.window=64"],
        ["optimizer.kind=adamw"],
        ["optimizer.warmup_steps=0"],
    ],
)
def test_a_sweep_of_anything_else_says_nothing(other: list[str]) -> None:
    config = demo("byte-1m", steps=300, seed=0, overrides=other)
    assert found(config, [GRID]) is None
    assert opponent(config, [GRID]) == (config, False)


def test_rate_momentum_seed_and_whatever_islands_do_are_no_part_of_it() -> None:
    other = ["optimizer.learning_rate=1e-3", "optimizer.momentum=0.5", "sync.every=24"]
    config = demo("byte-1m", steps=300, seed=2, overrides=other)
    assert found(config, [GRID]) == GRID


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "sweeps.toml"
    path.write_text(written([GRID, GRID]))
    in_order = sorted(GRID.runs, key=lambda run: (run.momentum, run.learning_rate))
    assert read(path) == [replace(GRID, runs=in_order)] * 2


def test_every_sweep_that_is_kept_has_its_best_inside() -> None:
    sweeps = read()
    assert [each.enclosed for each in sweeps] == [True] * len(sweeps)
    assert written(sweeps) == TABLE.read_text()


def test_what_bench_parity_runs_by_itself_has_been_swept() -> None:
    _, tuned = opponent(CONFIG, read())
    assert tuned
