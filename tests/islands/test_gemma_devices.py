"""Gemma models on several devices, and one layer of the largest shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from islands.gemma import parameters
from islands.gemma.language_task import language_model
from islands.gemma.loss import cross_entropy
from islands.gemma.presets import PRESETS
from islands.gemma.spec import GemmaSpec
from islands.inner import Inner
from islands.mesh import Devices
from islands.mesh_shape import MeshShape
from tests.given import data_spec, optimizer_spec
from tests.islands.test_mesh import said_by_eight

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

DENSE = GemmaSpec(
    generation=4, vocabulary=64, width=32, layers=4, hidden=64, heads=4, kv_heads=2, head_size=8,
    window=4, pattern="LG", shared_kv_layers=2, per_layer_size=8, remat=True,
)  # fmt: skip
SPARSE = replace(
    DENSE, shared_kv_layers=0, per_layer_size=0, experts=4, experts_used=2, expert_hidden=16
)
MESHES = {"fsdp": (1, 8, 1, 1), "tensor": (2, 2, 2, 1), "expert": (1, 2, 2, 2)}
STEPS = 4


def compare() -> dict[str, dict[str, Any]]:
    """Return the losses of some steps on one device and on each mesh, and the bytes of experts."""
    found: dict[str, dict[str, Any]] = {}
    batch = np.random.default_rng(0).integers(0, 64, (8, 17), dtype=np.int32)
    for name, spec in {"dense": DENSE, "sparse": SPARSE}.items():
        task = language_model(name, spec, data_spec())
        meshes = {mesh: Devices(task, MeshShape(*sizes)) for mesh, sizes in MESHES.items()}
        meshes["one"] = Devices(task, MeshShape(1, 1, 1), jax.devices()[:1])
        found[name] = {}
        for mesh, devices in meshes.items():
            inner = Inner(task, optimizer_spec(warmup_steps=1, learning_rate=1e-3), devices)
            state, losses = inner.start(task.init(0)), list[float]()
            for clock in range(STEPS):  # the same batch each time, so that the loss falls
                state, measures = inner.step(state, batch, clock)
                losses.append(float(measures.loss))
            found[name][mesh] = losses
            if name == "sparse":
                gate = state.params["layers"]["local"]["experts"]["gate"]
                found[name][f"{mesh} share"] = gate.addressable_data(0).size / gate.size
    return found


def test_models_on_any_mesh_take_the_steps_of_one_device() -> None:
    found = said_by_eight("test_gemma_devices", "compare()")
    for losses in found.values():
        assert losses["one"][-1] < losses["one"][0]
        for mesh in MESHES:
            assert np.allclose(losses[mesh], losses["one"], rtol=1e-4), mesh
    shares = {mesh: found["sparse"][f"{mesh} share"] for mesh in MESHES}
    assert shares == {"fsdp": 1 / 8, "tensor": 1 / 4, "expert": 1 / 8}


@pytest.mark.parametrize(
    ("preset", "pattern"), [("gemma-3-12b", "L"), ("gemma-3-12b", "G"), ("gemma-4-31b", "G")]
)
def test_one_layer_of_a_large_model_runs(preset: str, pattern: str) -> None:
    spec = replace(PRESETS[preset], layers=1, pattern=pattern, vocabulary=256)
    assert not spec.problems()
    params = parameters.init(spec, 0)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) > 200e6
    tokens: Any = np.random.default_rng(0).integers(0, 256, (1, 17), dtype=np.int32)
    step = jax.jit(jax.value_and_grad(lambda p: cross_entropy(spec, p, tokens)[0]))
    loss, gradient = step(params)
    # The residual stream is the sum of the token's embedding and of two normed outputs. The output
    # table is the embedding, so the token itself gets the largest score: sqrt(width / 3).
    score = (spec.width / 3) ** 0.5
    if cap := spec.softcap:
        score = cap * np.tanh(score / cap)
    assert float(loss) == pytest.approx(score, rel=0.05)
    assert all(0 < float(abs(leaf).max()) < 1e3 for leaf in jax.tree.leaves(gradient))
