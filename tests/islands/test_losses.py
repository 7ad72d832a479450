"""The forms of a loss: a key that differs by island, life and step, and metrics beside the loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.protocol import Island
from islands.inner import Inner
from islands.losses import evaluation_loss, takes_key, training_loss
from islands.model import ModelSpec
from islands.randomness import Draws, key_of
from islands.task import Batch, Params, Task, language_model
from islands.trainable import of_loss, shapes_of
from tests.given import data_spec, optimizer_spec

BATCH = np.ones((2, 9), np.int32)
UNITS = 256


def draws(seed: int = 0, island: str = "a", incarnation: int = 0) -> Draws:
    return Draws(seed, Island(island), incarnation)


def dropout(params: Params, batch: Batch, key: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return a loss whose gradient shows which units were kept."""
    kept = jnp.ones(UNITS) if key is None else jax.random.bernoulli(key, 0.5, (UNITS,))
    return jnp.sum(params["w"] * kept) + 0 * jnp.sum(batch), {"kept": jnp.mean(kept)}


@pytest.fixture(scope="module")
def dropping() -> Task:
    task = language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())
    return replace(task, init=lambda seed: {"w": jnp.zeros(UNITS)}, loss=dropout)


@pytest.fixture(scope="module")
def inner(dropping: Task) -> Inner:
    return Inner(dropping, optimizer_spec(weight_decay=0.0, clip_norm=0.0, warmup_steps=1))


def kept(inner: Inner, source: Draws, step: int) -> bytes:
    """Return which units a step of the compiled inner step kept."""
    state, _ = inner.step(inner.start({"w": np.zeros(UNITS, "f4")}), BATCH, 0, source.at(step))
    return (np.asarray(state.params["w"]) != 0).tobytes()


def test_masks_differ_between_seeds_islands_lives_and_steps_and_can_be_repeated(
    inner: Inner,
) -> None:
    choices = product((0, 7), ("a", "b"), (0, 1), (0, 1))
    masks = [kept(inner, draws(seed, name, life), step) for seed, name, life, step in choices]
    assert len(set(masks)) == len(masks) == 16
    for mask in masks:
        assert 0.3 < np.frombuffer(mask, bool).mean() < 0.7
    assert kept(inner, draws(7, "b", 1), 1) == masks[-1]


def test_a_key_can_be_computed_from_the_log_of_a_run(inner: Inner) -> None:
    words = draws(3, "local-1", 2).at(40)
    mask = jax.random.bernoulli(key_of(words), 0.5, (UNITS,))
    assert np.asarray(mask).tobytes() == kept(inner, draws(3, "local-1", 2), 40)


def test_seeds_of_any_size_give_a_key() -> None:
    assert draws(seed=2**40 + 5).at(0).tolist()[0] == 5
    assert draws(seed=-1).at(0).dtype == np.uint32


def test_evaluation_draws_nothing_and_has_metrics(dropping: Task) -> None:
    params = {"w": jnp.ones(UNITS)}
    loss, metrics = evaluation_loss(dropping)(params, BATCH)
    assert (float(loss), float(metrics["kept"])) == (UNITS, 1.0)


def test_own_loss_for_evaluation_is_used(dropping: Task) -> None:
    task = replace(dropping, eval_loss=lambda params, batch: jnp.float32(3.0))
    loss, metrics = evaluation_loss(task)({"w": jnp.ones(UNITS)}, BATCH)
    assert (float(loss), metrics) == (3.0, {})
    assert of_loss(task, shapes_of(task), BATCH) == []


def test_loss_without_a_key_is_called_without_one() -> None:
    task = language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())
    assert not takes_key(task.loss)
    params = task.init(0)
    loss, metrics = training_loss(task)(params, BATCH, None)
    assert float(loss) == float(task.loss(params, BATCH))
    assert metrics == {}


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (dropout, True),
        (partial(dropout, key=None), True),
        (lambda params, batch: 0.0, False),
        (lambda params, batch, rng: 0.0, False),
        (min, False),
    ],
)
def test_a_key_is_an_argument_of_that_name(loss: Any, expected: bool) -> None:
    assert takes_key(loss) is expected
