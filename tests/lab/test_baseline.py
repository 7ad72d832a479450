"""Islands are compared with data-parallel training at its own best, as a sweep found it."""

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


def test_best_has_the_lowest_loss() -> None:
    assert GRID.best == RateAndMomentum(2.0, 0.9)
    assert GRID.enclosed


def test_more_seeds_outweigh_one_lucky_run() -> None:
    lucky = sweep((1.0, 0.9, 0, 1.0), (2.0, 0.9, 0, 1.2), (2.0, 0.9, 1, 1.2), (4.0, 0.9, 0, 1.4),
                  (4.0, 0.9, 1, 1.1))  # fmt: skip
    assert lucky.best == RateAndMomentum(2.0, 0.9)


@pytest.mark.parametrize("gone", [0, 2, 3, 4])
def test_best_at_the_edge_of_a_sweep_is_not_enclosed(gone: int) -> None:
    runs = [run for number, run in enumerate(GRID.runs) if number != gone]
    edge = replace(GRID, runs=runs)
    assert edge.best == RateAndMomentum(2.0, 0.9)
    assert not edge.enclosed
    assert opponent(CONFIG, [edge]) == (at(CONFIG, RateAndMomentum(2.0, 0.9)), False)


def test_opponent_differs_only_in_rate_and_momentum() -> None:
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
def test_sweep_of_another_configuration_is_ignored(other: list[str]) -> None:
    config = demo("byte-1m", steps=300, seed=0, overrides=other)
    assert found(config, [GRID]) is None
    assert opponent(config, [GRID]) == (config, False)


def test_sweep_lookup_ignores_rate_momentum_seed_and_sync() -> None:
    other = ["optimizer.learning_rate=1e-3", "optimizer.momentum=0.5", "sync.every=24"]
    config = demo("byte-1m", steps=300, seed=2, overrides=other)
    assert found(config, [GRID]) == GRID


def test_written_sweeps_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "sweeps.toml"
    path.write_text(written([GRID, GRID]))
    in_order = sorted(GRID.runs, key=lambda run: (run.momentum, run.learning_rate))
    assert read(path) == [replace(GRID, runs=in_order)] * 2


def test_every_committed_sweep_encloses_its_best() -> None:
    sweeps = read()
    assert [each.enclosed for each in sweeps] == [True] * len(sweeps)
    assert written(sweeps) == TABLE.read_text()


def test_default_configuration_of_bench_parity_has_been_swept() -> None:
    _, tuned = opponent(CONFIG, read())
    assert tuned
