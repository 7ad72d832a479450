"""A dynamic loss scale: its rule, the steps that it skips, and a run in float16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster.config.load import parse
from coordinator.errors import UserMistake
from islands.inner import Inner, InnerState
from islands.loss_scale import LEAST, MOST, START, DynamicScale, next_scale
from islands.model import ModelSpec
from islands.optimizer import OptimizerSpec
from islands.precision import in_precision
from islands.task import Batch, Params, Task, language_model
from tests.given import data_spec, optimizer_spec

WIDTH = 8
SLOPE = 128.0
"""The gradient of the loss below at its start: in float16 it overflows at a scale of 512."""
GOOD = 256.0
"""The largest power of two at which it does not."""


def steep(params: Params, batch: Batch) -> jax.Array:
    """Return a loss in float16 with a gradient of `SLOPE` in each element."""
    return jnp.sum(params["w"] * batch["x"])


@pytest.fixture(scope="module")
def task() -> Task:
    plain = language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())
    own = replace(
        plain,
        init=lambda seed: {"w": jnp.full(WIDTH, 0.5)},
        loss=steep,
        tokens=lambda batch: 1,
    )
    return in_precision(own, "float16", None)


def rows() -> Batch:
    return {"x": np.full((1, WIDTH), SLOPE, np.float32)}


def spec_of(**changes: Any) -> OptimizerSpec:
    return replace(optimizer_spec(kind="adamw", warmup_steps=0, weight_decay=0.0), **changes)


def host(state: InnerState) -> Any:
    return jax.tree.map(np.array, (state.params, state.opt_state))


def scale_of(state: InnerState) -> float:
    assert state.scale is not None
    return float(state.scale.scale)


def now(scale: float, good: int) -> DynamicScale:
    return DynamicScale(jnp.float32(scale), jnp.int32(good))


@pytest.mark.parametrize(
    ("scale", "good", "finite", "after"),
    [
        (1024.0, 0, True, (1024.0, 1)),
        (1024.0, 2, True, (1024.0, 3)),
        (1024.0, 3, True, (2048.0, 0)),
        (1024.0, 3, False, (512.0, 0)),
        (MOST, 3, True, (MOST, 0)),
        (LEAST, 1, False, (LEAST, 0)),
    ],
)
def test_scale_after_a_step(
    scale: float, good: int, *, finite: bool, after: tuple[float, int]
) -> None:
    found = next_scale(now(scale, good), jnp.asarray(finite), every=4)
    assert (float(found.scale), int(found.good_steps)) == after
    assert (found.scale.dtype, found.good_steps.dtype) == (jnp.float32, jnp.int32)


def test_overflow_skips_the_step_and_halves_the_scale(task: Task) -> None:
    inner = Inner(task, spec_of(loss_scale="dynamic", loss_scale_steps=1000))
    state = inner.start(task.init(0))
    assert scale_of(state) == START
    start, halvings = host(state), int(np.log2(START / GOOD))
    for number in range(1, halvings + 1):
        state, measures = inner.step(state, rows(), number)
        assert scale_of(state) == START / 2**number
        assert np.isfinite(float(measures.loss)), "the loss itself is not scaled"
        jax.tree.map(np.testing.assert_array_equal, host(state), start)
    state, _ = inner.step(state, rows(), halvings + 1)
    assert scale_of(state) == GOOD
    assert not np.array_equal(host(state)[0]["w"], start[0]["w"])


def test_result_is_that_of_a_constant_scale(task: Task) -> None:
    """A constant scale that overflows gives parameters that are not finite."""
    found: dict[object, Any] = {}
    for loss_scale in ("dynamic", GOOD, 2 * GOOD):
        inner = Inner(task, spec_of(loss_scale=loss_scale, loss_scale_steps=1000))
        state = inner.start(task.init(0))
        if state.scale is not None:
            state = replace(state, scale=now(GOOD, 0))
        for _ in range(3):
            state, _ = inner.step(state, rows(), 5)
        found[loss_scale] = host(state)[0]["w"]
    np.testing.assert_array_equal(found["dynamic"], found[GOOD])
    assert np.isfinite(found[GOOD]).all()
    assert not np.isfinite(found[2 * GOOD]).all()


def test_scale_grows_after_good_steps_and_is_new_in_each_life(task: Task) -> None:
    inner = Inner(task, spec_of(loss_scale="dynamic", loss_scale_steps=2))
    state = replace(inner.start(task.init(0)), scale=now(GOOD / 4, 0))
    scales: list[float] = []
    for _ in range(5):
        state, _ = inner.step(state, rows(), 5)
        scales.append(scale_of(state))
    assert scales == [GOOD / 4, GOOD / 2, GOOD / 2, GOOD, GOOD]
    moments = inner.moments(state)
    assert len(moments) == len(inner.shares), "the scale is no moment"
    assert scale_of(inner.start(task.init(0), inner.accept(moments))) == START


def test_constant_scale_has_no_state(task: Task) -> None:
    assert Inner(task, spec_of()).start(task.init(0)).scale is None


def test_configuration_takes_dynamic_and_numbers() -> None:
    base: dict[str, Any] = {"task": {"preset": "byte-tiny"}, "islands": [{}]}
    assert parse(base, overrides=["optimizer.loss_scale=dynamic"]).optimizer.loss_scale == "dynamic"
    assert parse(base, overrides=["optimizer.loss_scale=1024"]).optimizer.loss_scale == 1024.0
    for value in ("static", "0", "-1", "inf"):
        with pytest.raises(UserMistake, match='must be "dynamic" or a number above 0'):
            parse(base, overrides=[f"optimizer.loss_scale={value}"])
    ring = {**base, "run": {"mode": "data-parallel"}}
    with pytest.raises(UserMistake, match=r'optimizer\.loss_scale: "dynamic" is not in'):
        parse(ring, overrides=["optimizer.loss_scale=dynamic"])
