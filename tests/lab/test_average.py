"""Moving averages of the global model match a naive reference and do not affect the run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from archipelago.lab.training.average import PREFIX, UPDATES, Average, Averages
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.train import train
from cluster.config.load import parse
from cluster.config.schema import Config
from tests.given import sums


def test_average_is_the_weighted_sum_of_all_models() -> None:
    rng = np.random.default_rng()
    models = rng.normal(size=(40, 5)).astype(np.float32)
    average = Average(0.5, constant=8.0)
    for t, model in enumerate(models, start=1):
        average.update(t, [model[:2], model[2:]])
    decay = math.exp(-1 / 8)
    weights = np.array([(1 - decay) * decay ** (len(models) - t) for t in range(1, 41)])
    weights[0] /= 1 - decay  # the average starts at the first model
    expected = weights @ models.astype(np.float64)
    np.testing.assert_allclose(np.concatenate(average.flats), expected, rtol=1e-4, atol=1e-5)


def test_update_over_several_steps_counts_as_that_many_updates() -> None:
    one, many = Average(0.5, constant=8.0), Average(0.5, constant=8.0)
    first, second = np.zeros(3, np.float32), np.ones(3, np.float32)
    one.update(1, [first])
    many.update(1, [first])
    one.update(5, [second])
    for t in range(2, 6):
        many.update(t, [second])
    np.testing.assert_allclose(one.flats[0], many.flats[0], rtol=1e-6)


def test_model_is_read_as_often_as_the_shortest_average_needs() -> None:
    asked = list[int]()
    averages = Averages.of([0.1, 1.0], steps=10 * UPDATES)
    for t in range(1, 10 * UPDATES + 1):
        averages.see(t, lambda t=t: asked.append(t) or [np.full(2, t, np.float32)])
    assert asked == [*range(1, 10 * UPDATES + 1)]
    alone = Averages.of([1.0], steps=10 * UPDATES)
    asked.clear()
    for t in range(1, 10 * UPDATES + 1):
        alone.see(t, lambda t=t: asked.append(t) or [np.full(2, t, np.float32)])
    assert len(asked) == UPDATES


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("text"))


def config_of(text: Path, mode: str) -> Config:
    sync = {"every": 6, "fragments": 3} if mode == "decoupled" else {"fragments": 3}
    given = {
        "run": {"steps": 24, "mode": mode},
        "task": {
            "preset": "byte-tiny",
            "options": {"width": 16, "layers": 1, "heads": 1, "hidden": 32},
        },
        "data": {"source": str(text), "window": 16, "lease_windows": 32, "heldout_percent": 20.0},
        "optimizer": {"kind": "adamw", "warmup_steps": 4},
        "sync": sync,
        "islands": [{"group": "local", "count": 2, "batch_size": 2}],
    }
    return parse(given, origin="test")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["decoupled", "data-parallel"])
def test_averages_are_evaluated_and_change_nothing_else(text: Path, mode: str) -> None:
    config = config_of(text, mode)
    plain = train(config, Timing(), 0).figures
    averaged = train(config, Timing(), 0, [1e-6, 0.2]).figures
    assert {**averaged, **plain} == averaged
    assert set(averaged) - set(plain) == {f"{PREFIX}1e-06", f"{PREFIX}0.2"}
    last, half = averaged[f"{PREFIX}1e-06"], averaged[f"{PREFIX}0.2"]
    assert last == pytest.approx(plain["heldout_loss"], rel=1e-6)
    assert isinstance(half, float)
    initial = plain["initial_heldout_loss"]
    assert isinstance(initial, float)
    assert isinstance(last, float)
    assert last < half < initial, "an average of a falling loss lags behind"
