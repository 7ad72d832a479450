"""The inner step equals plain optax, follows the clock, and agrees on one and two devices."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers, muon

from islands.inner import Inner, InnerState
from islands.model import ModelSpec
from islands.optimizer import MUON_RMS, OptimizerSpec, direction, is_matrix
from islands.task import Params, Task, language_model, leaf_path
from tests.given import data_spec, first_of, optimizer_spec

SPEC = optimizer_spec(
    learning_rate=1e-2, warmup_steps=5, horizon_steps=15, weight_decay=0.0, clip_norm=0.0
)
BATCH, TIME = 4, 16


@pytest.fixture(scope="module")
def task() -> Task:
    return language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())


@pytest.fixture(scope="module")
def inner(task: Task) -> Inner:
    """Return an inner step that is compiled once and keeps no state."""
    return Inner(task, SPEC)


def batches(number: int) -> list[np.ndarray]:
    """Return learnable texts: each token is the one before plus the row's stride."""
    rng = np.random.default_rng(0)
    first, stride = rng.integers(0, 30, (2, number, BATCH, 1))
    return list(((first + stride * np.arange(TIME + 1)) % 30).astype(np.int32))


def identical(a: Params, b: Params) -> bool:
    return all(
        np.array_equal(np.asarray(x), np.asarray(y))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def run(inner: Inner, state: InnerState, first: int, last: int) -> tuple[InnerState, list[float]]:
    losses = []
    for clock, batch in enumerate(batches(last)[first:], first):
        state, measures = inner.step(state, batch, clock)
        losses.append(float(measures.loss))
    return state, losses


# --- the schedule ---------------------------------------------------------------------------------


def test_rate_warms_up_decays_by_cosine_and_stays_on_its_floor() -> None:
    spec = optimizer_spec(
        learning_rate=1e-2, warmup_steps=10, floor_fraction=0.2, horizon_steps=110
    )
    rates = {clock: float(spec.rate(clock)) for clock in range(500)}
    assert rates[0] == pytest.approx(1e-3)
    assert rates[4] == pytest.approx(5e-3)
    assert rates[9] == rates[10] == pytest.approx(1e-2)
    assert rates[60] == pytest.approx(1e-2 * (0.2 + 0.8 / 2))
    assert rates[35] == pytest.approx(1e-2 * (0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2))
    assert all(rates[clock] == pytest.approx(2e-3) for clock in range(110, 500))
    assert all(rates[clock + 1] <= rates[clock] for clock in range(10, 499))


@pytest.mark.parametrize("spec", [optimizer_spec(warmup_steps=0), optimizer_spec(horizon_steps=1)])
def test_rate_of_unusual_schedules_is_positive_and_finite(spec: OptimizerSpec) -> None:
    rates = np.asarray([float(spec.rate(clock)) for clock in range(0, 1000, 50)])
    assert np.all((rates > 0) & (rates <= spec.learning_rate * 1.000001))


# --- the step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", first_of([0.5, 0.0]))
def test_step_equals_plain_adamw_bit_for_bit(task: Task, clip_norm: float) -> None:
    """Twenty steps go past warm-up and horizon."""
    spec = replace(SPEC, clip_norm=clip_norm, weight_decay=0.1)
    adamw = optax.adamw(spec.rate, spec.b1, spec.b2, spec.eps, weight_decay=spec.weight_decay)
    if clip_norm:
        adamw = optax.chain(optax.clip_by_global_norm(clip_norm), adamw)

    @jax.jit
    def plain(params: Params, moments: Any, batch: np.ndarray) -> tuple[Params, Any, jax.Array]:
        loss, grads = jax.value_and_grad(task.loss)(params, batch)
        updates, moments = adamw.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, loss

    inner = Inner(task, spec)
    state = inner.start(task.init(0))
    params: Params = jax.tree.map(jax.numpy.asarray, task.init(0))
    moments = adamw.init(params)
    for clock, batch in enumerate(batches(20)):
        state, measures = inner.step(state, batch, clock)
        params, moments, loss = plain(params, moments, batch)
        assert float(measures.loss) == float(loss)
        assert identical(state.params, params), f"after step {clock}"


def gradients(task: Task, seed: int, size: float = 1.0) -> Params:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: size * rng.standard_normal(leaf.shape, np.float32), task.init(0)
    )


@pytest.mark.long
def test_muon_equals_optax_on_hidden_matrices_and_adamw_elsewhere(task: Task) -> None:
    """The gradients are given, because Muon would amplify the rounding of tiny gradients.

    `optax.contrib.muon` treats other leaves by AdamW with Nesterov momentum.
    """
    spec = replace(SPEC, kind="muon", weight_decay=0.1)

    def matrices(params: Params) -> Params:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: (
                MuonDimensionNumbers(1, 2) if is_matrix(task, leaf_path(path), leaf) else None
            ),
            params,
        )

    theirs = muon(
        learning_rate=1.0,
        beta=spec.momentum,
        weight_decay=spec.weight_decay,
        muon_weight_dimension_numbers=matrices,
        consistent_rms=MUON_RMS,
    )
    adamw = optax.adamw(1.0, spec.b1, spec.b2, spec.eps, weight_decay=spec.weight_decay)
    mine = direction(spec, task)
    params = jax.tree.map(jax.numpy.asarray, task.init(0))
    state, by_muon, by_adamw = mine.init(params), theirs.init(params), adamw.init(params)
    for seed in range(4):
        grads = gradients(task, seed)
        updates, state = mine.update(grads, state, params)
        orthogonal, by_muon = theirs.update(grads, by_muon, params)
        divided, by_adamw = adamw.update(grads, by_adamw, params)
        for (path, a), b, c in zip(
            jax.tree.leaves_with_path(updates),
            jax.tree.leaves(orthogonal),
            jax.tree.leaves(divided),
            strict=True,
        ):
            wanted = b if is_matrix(task, leaf_path(path), a) else c
            np.testing.assert_allclose(a, -wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_muon_step_length_does_not_depend_on_gradient_size(task: Task, size: float) -> None:
    step = direction(replace(SPEC, kind="muon"), task)
    params = jax.tree.map(jax.numpy.asarray, task.init(0))
    updates: Params = step.update(gradients(task, 0, size), step.init(params), params)[0]
    gate = np.asarray(updates["blocks"]["mlp"]["gate"])
    assert np.sqrt(np.mean(np.square(gate))) == pytest.approx(MUON_RMS, rel=0.2)


def test_muon_applies_only_to_hidden_matrices(task: Task) -> None:
    named = [(leaf_path(path), leaf) for path, leaf in jax.tree.leaves_with_path(task.init(0))]
    taken = {path for path, leaf in named if is_matrix(task, path, leaf)}
    assert taken == {
        *(f"blocks/attention/{name}" for name in ("query", "key", "value", "output")),
        *(f"blocks/mlp/{name}" for name in ("gate", "up", "down")),
    }
    flat = replace(task, stacked=lambda _: False)
    assert is_matrix(flat, "layer_3/weights", np.zeros((16, 24)))
    assert not is_matrix(flat, "layer_3/bias", np.zeros(16))
    assert not is_matrix(flat, "head", np.zeros((16, task.vocabulary)))


@pytest.mark.long
def test_fresh_moments_use_the_rate_of_the_clock(task: Task, inner: Inner) -> None:
    """A returning learner's optimizer count is 0, but its clock is not."""
    batch = batches(1)[0]
    params = run(inner, inner.start(task.init(0)), 0, 3)[0].params
    before = [np.array(leaf) for leaf in jax.tree.leaves(params)]

    def moved(clock: int) -> np.ndarray:
        state, _ = inner.step(inner.start(params), batch, clock)
        after = jax.tree.leaves(state.params)
        return np.concatenate([np.ravel(a - b) for a, b in zip(after, before, strict=True)])

    early, late = moved(4), moved(1000)
    ratio = float(SPEC.rate(1000)) / float(SPEC.rate(4))
    assert ratio == pytest.approx(0.1)
    np.testing.assert_allclose(late, ratio * early, rtol=1e-2, atol=1e-7)
    assert np.max(np.abs(early)) == pytest.approx(SPEC.learning_rate, rel=1e-3), "Adam's first step"


def test_donated_moments_continue_the_donors_run(task: Task, inner: Inner) -> None:
    state, _ = run(inner, inner.start(task.init(0)), 0, 6)
    donated = jax.tree.map(np.array, state)
    straight, _ = run(inner, state, 6, 10)
    continued, _ = run(inner, inner.start(donated.params, donated.opt_state), 6, 10)
    assert identical(straight, continued)


@pytest.mark.long
def test_adamw_share_scales_the_rate_of_leaves_beside_muon(task: Task) -> None:
    params = task.init(0)
    grads = jax.grad(task.loss)(params, batches(1)[0])

    def updates(share: float) -> Params:
        spec = optimizer_spec("muon", clip_norm=0.0, weight_decay=0.0, adamw_share=share)
        found, _ = direction(spec, task).update(grads, direction(spec, task).init(params), params)
        return found

    def compare(keys: Any, leaf: Any, whole: jax.Array, half: jax.Array) -> None:
        share = 1.0 if is_matrix(task, leaf_path(keys), leaf) else 0.5
        np.testing.assert_allclose(half, share * np.asarray(whole), rtol=1e-6)

    jax.tree_util.tree_map_with_path(compare, params, updates(1.0), updates(0.5))


def test_learns_and_stays_finite(task: Task, inner: Inner) -> None:
    batch = batches(1)[0]
    state, losses = inner.start(task.init(0)), list[float]()
    for _ in range(150):
        state, measures = inner.step(state, batch, clock=4)
        losses.append(float(measures.loss))
    assert losses[0] == pytest.approx(math.log(30), abs=1e-4)
    assert losses[-1] < 0.2, "a small batch can be learnt by heart"
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))


def test_start_copies_the_given_parameters(task: Task, inner: Inner) -> None:
    given, untouched = task.init(0), task.init(0)
    state = inner.start(given)
    kept = jax.tree.map(np.array, state.params)
    run(inner, state, 0, 3)
    assert identical(given, untouched)
    assert identical(kept, untouched)


@pytest.mark.long
def test_compiles_only_ahead_of_time(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    inner, (batch, *_) = Inner(task, SPEC), batches(1)
    state = inner.start(task.init(0))
    with jax.log_compiles():
        inner.compile(batch)
        assert "_step" in caplog.text
        caplog.clear()
        inner.step(state, batch, 0)
    ours = [each for each in caplog.records if each.thread == threading.get_ident()]
    assert [each.getMessage() for each in ours] == [], "other tests' threads may compile meanwhile"


TWO_DEVICES = """
import json, jax, numpy as np
from coordinator.errors import UserMistake
from tests.islands.test_inner import SPEC, batches, run
from tests.given import data_spec
from islands.inner import Inner
from islands.mesh import Devices
from islands.model import ModelSpec
from islands.task import language_model
task = language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())
both, one = Inner(task, SPEC), Inner(task, SPEC, Devices(task, devices=jax.devices()[:1]))
state, losses = run(both, both.start(task.init(0)), 0, 20)
alone, alone_losses = run(one, one.start(task.init(0)), 0, 20)
pairs = zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params))
try:
    both.compile(batches(1)[0][:3])
    refused = ""
except UserMistake as error:
    refused = str(error)
print(json.dumps({
    "devices": [len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state.params)],
    "losses": losses, "alone_losses": alone_losses, "refused": refused,
    "apart": max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs),
}))
"""


@pytest.mark.long
def test_two_devices_share_the_batch_and_agree_with_one() -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(root),
    }
    command = [sys.executable, "-c", TWO_DEVICES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert set(said["devices"]) == {2}
    np.testing.assert_allclose(said["losses"], said["alone_losses"], rtol=1e-5)
    assert said["apart"] < 1e-4
    assert "multiple of 2" in said["refused"]
