"""Parameters in bfloat16 with a float32 original, types of the loss, remat and loss scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from islands.gradients import gradients_of
from islands.inner import Inner
from islands.losses import evaluation_loss, frozen_of
from islands.model import ModelSpec
from islands.precision import in_precision
from islands.state_tree import in_one_tree, named_arguments
from islands.task import Batch, Params, Task, language_model
from islands.trainable import of_loss, of_parameters, shapes_of
from tests.given import data_spec, optimizer_spec

WIDTH = 8


def halves(seed: int) -> Params:
    """Return one leaf in bfloat16 and one in float32."""
    return {"w": jnp.ones((WIDTH, WIDTH), jnp.bfloat16), "b": jnp.zeros(WIDTH)}


def loss(params: Params, batch: Batch) -> jax.Array:
    """Return a loss in float32, and check the types that it gets."""
    assert params["w"].dtype == jnp.bfloat16
    assert params["b"].dtype == jnp.float32
    rows = jnp.tanh(batch["x"].astype(jnp.bfloat16) @ params["w"]).astype(jnp.float32)
    return jnp.mean((rows + params["b"] - 0.5) ** 2)


@pytest.fixture(scope="module")
def plain() -> Task:
    return language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())


@pytest.fixture(scope="module")
def task(plain: Task) -> Task:
    return in_precision(replace(plain, init=halves, loss=loss), None, None)


def rows(seed: int) -> Batch:
    return {"x": np.random.default_rng(seed).normal(size=(4, WIDTH)).astype("f4")}


def trained(task: Task, steps: int, rate: float) -> Params:
    spec = optimizer_spec(learning_rate=rate, weight_decay=0.0, warmup_steps=1)
    inner = Inner(task, spec)
    state = inner.start(task.init(0))
    for clock in range(steps):
        state, _ = inner.step(state, rows(clock), clock)
    return jax.tree.map(np.asarray, state.params)


def test_parameters_in_bfloat16_have_a_float32_original(task: Task) -> None:
    shapes = shapes_of(task)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(shapes)} == {"float32"}
    assert of_parameters(task, shapes) == []
    assert of_loss(task, shapes, rows(0)) == []
    assert {str(leaf.dtype) for leaf in task.initial_leaves(0)} == {"float32"}


def test_steps_below_the_resolution_of_bfloat16_are_kept(task: Task) -> None:
    """A step of 1e-4 near 1 is less than half the distance to the next bfloat16."""
    moved = trained(task, 10, 1e-4)["w"]
    assert np.abs(moved - 1).max() > 5e-4
    one = trained(task, 1, 1e-4)["w"]
    assert (one.astype(jnp.bfloat16) == 1).all()
    assert not (one == 1).all()


def test_float32_task_is_unchanged(plain: Task) -> None:
    assert in_precision(plain, None, None) is plain


def test_compute_dtype_casts_parameters_and_real_arrays_of_a_batch(plain: Task) -> None:
    seen = list[str]()

    def casting(params: Params, batch: Batch, key: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        seen[:] = [str(params["w"].dtype), str(batch["x"].dtype), str(batch["n"].dtype)]
        number = jnp.mean(batch["x"] @ params["w"]) + 0 * jnp.sum(batch["n"])
        return number.astype(jnp.bfloat16), {"number": number}

    own = replace(plain, init=lambda seed: {"w": jnp.ones((WIDTH, WIDTH))}, loss=casting)
    task = in_precision(own, "bfloat16", None)
    assert named_arguments(task.loss) == {"key"}
    batch = {**rows(0), "n": np.ones(4, np.int32)}
    assert of_loss(task, shapes_of(task), batch) == []
    assert seen == ["bfloat16", "bfloat16", "int32"]
    number, _ = evaluation_loss(task)(task.init(0), batch)
    assert number.dtype == jnp.float32


def test_compute_dtype_casts_frozen_arrays_once(plain: Task) -> None:
    """The low-rank change of a frozen matrix is computed in bfloat16, base included."""
    base: dict[str, Any] = {
        "w": np.full((WIDTH, WIDTH), 0.1, np.float32),
        "ids": np.arange(3),
        "scale": 2.0,
    }

    def lora(params: Params, batch: Batch, frozen: Any) -> jax.Array:
        weights = frozen["w"] + params["a"] @ params["b"]
        product = batch["x"] @ weights
        assert product.dtype == weights.dtype == frozen["w"].dtype == jnp.bfloat16
        assert jnp.issubdtype(frozen["ids"].dtype, jnp.integer)
        return jnp.mean(product) * frozen["scale"]

    own = replace(
        plain,
        init=lambda seed: {"a": jnp.ones((WIDTH, 1)), "b": jnp.ones((1, WIDTH))},
        loss=lora,
        frozen=lambda: base,
    )
    task = in_precision(own, "bfloat16", "dots")
    assert of_loss(task, shapes_of(task), rows(0)) == []
    loaded = frozen_of(task)
    assert loaded["w"].dtype == jnp.bfloat16
    assert loaded["scale"] == 2.0
    assert base["w"].dtype == np.float32
    inner = Inner(task, optimizer_spec(warmup_steps=1))
    inner.step(inner.start(task.init(0)), rows(0), 0)
    assert frozen_of(in_precision(own, None, "dots")) is base


def test_state_keeps_its_type(plain: Task) -> None:
    def stateful(params: Params, state: Any, batch: Batch) -> tuple[jax.Array, Any]:
        assert params["w"].dtype == jnp.bfloat16
        assert state["mean"].dtype == jnp.float32
        mean = jnp.mean(batch["x"].astype(jnp.float32))
        return jnp.mean(batch["x"] @ params["w"]), ({"mean": mean}, {})

    own = replace(
        plain,
        init=lambda seed: {"w": jnp.ones((WIDTH, WIDTH))},
        init_state=lambda seed: {"mean": jnp.zeros(())},
        loss=stateful,
    )
    task = in_precision(in_one_tree(own), "bfloat16", "all")
    assert of_loss(task, shapes_of(task), rows(0)) == []
    found = gradients_of(task)(task.init(0), rows(0), {})
    assert found.grads["params"]["w"].dtype == jnp.float32
    assert found.state["mean"].dtype == jnp.float32


@pytest.mark.long
@pytest.mark.parametrize("remat", ["dots", "all"])
def test_remat_computes_again_and_changes_no_gradient(plain: Task, remat: str) -> None:
    batch = np.random.default_rng(0).integers(0, 30, (4, 9), np.int32)
    params, again = plain.init(0), in_precision(plain, None, remat)
    one, other = gradients_of(plain), gradients_of(again)
    for kept, computed in zip(
        jax.tree.leaves(one(params, batch, {})),
        jax.tree.leaves(other(params, batch, {})),
        strict=True,
    ):
        np.testing.assert_allclose(kept, computed, rtol=1e-5, atol=1e-6)
    text = str(jax.make_jaxpr(lambda p: other(p, batch, {}))(params))
    assert "remat" in text
    assert "remat" not in str(jax.make_jaxpr(lambda p: one(p, batch, {}))(params))


def test_loss_scale_keeps_small_gradients_in_float16(plain: Task) -> None:
    def small(params: Params, batch: Batch) -> jax.Array:
        return (jnp.sum(params["w"]) * jnp.float16(6e-8)).astype(jnp.float32) * 0.3 + 0 * jnp.sum(
            batch["x"]
        )

    own = replace(plain, init=lambda seed: {"w": jnp.ones(WIDTH)}, loss=small)
    task, batch = in_precision(own, "float16", None), {"x": np.ones(1, np.float32)}
    params = task.init(0)
    lost = gradients_of(task)(params, batch, {})
    found = gradients_of(task, 1, 1024.0)(params, batch, {})
    assert not np.any(lost.grads["w"])
    np.testing.assert_allclose(found.grads["w"], 0.3 * 6e-8, rtol=0.02)
    assert float(found.loss) == float(lost.loss)
