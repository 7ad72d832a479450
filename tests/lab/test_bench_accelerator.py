"""`bench accelerator` on a CPU with tiny models: each figure measures what it is named for."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from archipelago.cli.bench import bench
from archipelago.lab.bench import accelerator_study, accelerator_wire
from archipelago.lab.bench.accelerator import PARTS, accelerator
from archipelago.lab.bench.accelerator_device import MODELS, compiled, timed
from archipelago.lab.bench.accelerator_figures import (
    ARMS,
    BASE,
    KEYS,
    STEPS,
    gaps,
    planned_steps,
    row,
)
from archipelago.lab.bench.accelerator_loopback import Loopback, StepTimes
from archipelago.lab.bench.accelerator_step import histogram, measure_alone
from archipelago.lab.training.supported import refused
from coordinator.codec import Wire, encode
from coordinator.fragments import take
from islands.adopt import layout_of
from islands.encoder import OnDevice, Where
from islands.sources import STDLIB, DataSpec
from islands.task import language_model

ROOT = Path(__file__).parents[2]
TINY = "bench-quick"
OURS = {"coordinator", "islands", "cluster", "archipelago"}
MACHINE = {
    "jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "numba", "llvmlite", "pyarrow",
}  # fmt: skip
"""The packages on a machine with an accelerator."""
BARE = """
import sys

finders = [*sys.meta_path]

class Bare:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {names} or top in sys.stdlib_module_names or top[0] == "_":
            found = (each.find_spec(name, path, target) for each in finders)
            return next((spec for spec in found if spec is not None), None)

sys.meta_path[:] = [Bare()]
"""
"""A script that limits Python's imports to these names and the standard library."""


def flats(learner: Loopback) -> list[bytes]:
    """Return the bits of the learner's parameters."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(learner.params)]


# --- the measurements ------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_step_without_hooks_is_the_inner_step() -> None:
    measured, steps = compiled(TINY), 5
    learner = Loopback(measured, "device", windows=2)
    state = measured.inner.started(measured.drawn(seed=0), None)
    assert len(learner.plain(steps).step) == steps
    for clock in range(steps):
        state, _ = measured.inner.step(state, measured.batch(2), clock)
    assert flats(learner) == [np.asarray(x).tobytes() for x in jax.tree.leaves(state.params)]
    learner.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("where", ["device", "host"])
def test_hooks_hand_in_and_adopt_every_fragment(where: Where) -> None:
    """One fragment is exchanged at each step; f32 is exact, so training is as without hooks."""
    measured = compiled(TINY)
    cycle, steps = measured.model.fragments, 2 * measured.model.fragments
    learner = Loopback(measured, where, windows=2, wire=Wire.F32)
    alone = Loopback(measured, where, windows=2)
    alone.plain(steps)
    before = flats(learner)
    times = learner.hooked(steps)
    learner.settle()
    assert len(times.step) == len(times.hand_in) == len(times.adopt) == steps
    assert learner.adopted == steps
    assert learner.sent_bytes == steps // cycle * 4 * measured.parameters
    assert flats(learner) != before
    pairs = zip(jax.tree.leaves(learner.params), jax.tree.leaves(alone.params), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    learner.close()
    alone.close()


@pytest.mark.long
@pytest.mark.slow
def test_both_paths_train_the_same_bits() -> None:
    """Each fragment is adopted at the boundary of its hand-in, so nothing depends on threads.

    int4 loses precision, and both paths lose the same.
    """
    measured = compiled(TINY)
    trained = list[list[bytes]]()
    for where in ("device", "host"):
        learner = Loopback(measured, where, windows=2)
        for _ in range(2 * measured.model.fragments):
            learner.hooked(1)
            learner.settle()
        trained.append(flats(learner))
        learner.close()
    alone = Loopback(measured, "device", windows=2)
    alone.plain(2 * measured.model.fragments)
    assert trained[0] == trained[1]
    assert trained[0] != flats(alone)
    alone.close()


@pytest.mark.long
@pytest.mark.slow
def test_measured_kernels_are_those_of_a_hand_in() -> None:
    """The device's payload equals the codec's for fragment - anchor + residual."""
    measured = compiled(TINY)
    it = accelerator_wire.bed(measured)
    assert it.elements == measured.parameters == it.host_elements
    assert accelerator_wire.identical(it) == dict.fromkeys(accelerator_wire.WIRES, True)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(it.params)]
    for p, flat, origin, taken in zip(it.fragments, it.flats, it.origins, it.taken, strict=True):
        np.testing.assert_array_equal(flat, take(measured.layout, p, leaves))
        delta = np.asarray(flat) - np.asarray(origin) + np.asarray(taken)
        assert np.abs(delta).max() > 0
        for wire in accelerator_wire.WIRES:
            payload, _ = OnDevice(wire)(flat, origin, taken, 1.0, flat.size)
            np.testing.assert_array_equal(payload, encode(wire, delta))


def test_encoded_bytes_count_all_memory_traffic() -> None:
    sizes = [1000, 24]
    assert accelerator_wire.encoded_bytes(sizes, Wire.BF16) == (16 + 2) * 1024
    int4 = sum(map(Wire.INT4.bytes_of, sizes))
    assert accelerator_wire.encoded_bytes(sizes, Wire.INT4) == 16 * 1024 + int4


def test_timed_waits_for_the_device() -> None:
    """A time ends when the result is ready, not when the call is dispatched."""
    results = list[Any]()

    def call() -> jax.Array:
        x = jnp.ones((256, 256))
        for _ in range(20):
            x = x @ x / 256
        results.append(x)
        return x

    assert timed(call) > 0
    assert results[-1].is_ready()


@pytest.mark.long
@pytest.mark.slow
def test_memory_matches_the_formulas() -> None:
    measured = compiled(TINY)
    found: Any = measure_alone(measured, 2)["memory"]
    n = 4 * measured.parameters
    assert found["formula_step_bytes"]["moments"] == pytest.approx(2 * n, abs=64)
    assert found["formula_step_bytes"]["total"] == pytest.approx(4 * n, abs=64)
    assert found["formula_with_hooks_bytes"]["total"] == pytest.approx(6 * n, abs=64)
    assert found["step"]["host_peak_bytes"] > 6 * n


def test_every_step_is_in_the_histogram() -> None:
    plain, hooked = [StepTimes(step=[0.010] * 20)], [StepTimes(step=[0.011] * 19 + [0.100])]
    hooked[0].hand_in, hooked[0].adopt = [0.001] * 20, [0.0] * 19 + [0.09]
    told: Any = histogram(plain, hooked)
    assert sum(told["plain"]) == sum(told["with_hooks"]) == 20
    assert told["with_hooks"][-1] == 1  # the stall
    assert told["percentiles_ms"]["adopt"]["p100"] == pytest.approx(90)
    assert told["percentiles_ms"]["hand_in"]["p50"] == pytest.approx(1)


@pytest.mark.parametrize(("name", "parameters"), [("bench-125m", 125e6), ("bench-1b", 1e9)])
def test_presets_have_the_size_of_their_name(name: str, parameters: float) -> None:
    model = MODELS[name]
    assert not model.spec.problems()
    assert model.spec.compute_dtype == "bfloat16"
    data = DataSpec(STDLIB, None, False, 5.0, model.window, 0, 256)
    layout = layout_of(language_model(name, model.spec, data), model.fragments)
    assert layout.parameters == pytest.approx(parameters, rel=0.02)
    assert model.fragments == 24


# --- the study ------------------------------------------------------------------------------------


def test_arms_differ_only_in_mode_and_interval(tmp_path: Path) -> None:
    configs = {
        arm: accelerator_study.config_of(accelerator_study.FULL, arm, STEPS, tmp_path)
        for arm in ARMS
    }
    assert not [problem for each in configs.values() for problem in refused(each)]
    h8, h24 = (configs[arm].model_dump() for arm in ("h8", "h24"))
    assert (h8["sync"].pop("every"), h24["sync"].pop("every")) == (8, 24)
    assert h8 == h24
    base = configs["data-parallel"].model_dump()
    for table in ("task", "data", "optimizer"):
        assert base[table] == h8[table]
    assert base["run"].pop("mode") != h8["run"].pop("mode")
    assert base["run"] == h8["run"]
    assert base["islands"][0]["batch_size"] == h8["islands"][0]["batch_size"]
    assert base["islands"][0]["count"] == h8["islands"][0]["count"] == 4


def test_gap_is_at_the_end_or_at_the_last_common_step() -> None:
    ended = {"steps": 96, "heldout_loss": 2.0, "curve": [{"t": 9, "heldout_loss": 3.0}]}
    found = gaps({"data-parallel": ended, "h8": {**ended, "heldout_loss": 2.1}})
    assert found["gap_percent_h8"] == pytest.approx(5)
    assert (found["gap_percent_h8_at_step"], found["gap_percent"]) == (96, None)
    cut = {"curve": [{"t": 9, "heldout_loss": 3.3}, {"t": 18, "heldout_loss": 3.0}]}
    found = gaps({"data-parallel": ended, "h24": cut})
    assert found["gap_percent"] == pytest.approx(10)
    assert found["gap_percent_at_step"] == 9
    diverged = {"steps": 96, "heldout_loss": None}
    for arms in ({}, {"data-parallel": diverged, "h24": ended}, {BASE: ended, "h24": diverged}):
        assert gaps(arms)["gap_percent"] is None


def test_study_length_fits_the_remaining_time() -> None:
    arms = [{"s_per_step": 0.1, "compile_s": 10.0}, {"s_per_step": 0.2, "compile_s": 5.0}]
    assert planned_steps(arms, 1000, left_s=1000.0) == 1000
    fewer = planned_steps(arms, 1000, left_s=110.0)
    assert 0 < fewer <= 0.7 * 100 / 0.2
    assert fewer % 24 == 0
    assert planned_steps(arms, 1000, left_s=5.0) == 0


# --- the whole bench ----------------------------------------------------------------------


def test_without_time_every_part_is_skipped_with_a_reason(tmp_path: Path) -> None:
    figures: Any = accelerator(out=tmp_path, budget_s=0.0)
    assert figures["skipped"].keys() == {*PARTS, "study"}
    assert all("no time is left" in why for why in figures["skipped"].values())
    for each in figures["rows"]:
        assert each["preset"] in PARTS
        assert {"peak_bytes", *KEYS} <= each.keys()
        assert "no time is left" in each["not_measured"]["step_ms"]
    assert json.loads((tmp_path / "accelerator.json").read_text())["rows"] == figures["rows"]
    assert [path.name for path in tmp_path.iterdir()] == ["accelerator.json"]


def test_command_prints_one_json_object() -> None:
    done = CliRunner().invoke(bench, ["accelerator", "--budget", "0", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["gap_percent"] is None
    assert "skipped" in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_failed_part_is_reported_and_the_bench_ends(tmp_path: Path) -> None:
    done = started("--quick", "--json", "--out", str(tmp_path), JAX_PLATFORMS="abacus")
    assert done.returncode == 1
    figures = json.loads(done.stdout)
    assert "abacus" in figures["parts"][TINY]
    assert "abacus" in figures["rows"][0]["not_measured"]["step_ms"]
    assert "abacus" in figures["skipped"]["study"]


@pytest.mark.slow
def test_entry_imports_only_shipped_or_installed_packages() -> None:
    """No package for runs or terminals is imported.

    Without the shipped packages everything but the study works.
    """
    study = "import archipelago.lab.bench.accelerator_study\n"
    others = "import archipelago.lab.bench.accelerator, archipelago.lab.bench.accelerator_parts\n"
    others += (
        "import archipelago.lab.bench.accelerator_step, archipelago.lab.bench.accelerator_wire\n"
    )
    for names, imports in ((MACHINE | shipped(), study), (MACHINE | {"optax", "absl"}, others)):
        script = BARE.format(names=names | OURS) + imports
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    script = BARE.format(names=OURS) + "import archipelago.lab.bench.accelerator\n"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def shipped() -> set[str]:
    """Return the import names of the packages that `make accelerator` ships beside the code."""
    tree = ast.parse((ROOT / ".ci" / "accelerator").read_text(encoding="utf-8"))
    (packages,) = (
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "PACKAGES"
    )
    return {name.removesuffix("-py").replace("-", "_") for name in packages}


def test_row_explains_missing_figures() -> None:
    whole: Any = row({"preset": "p", "step_ms": 1.0}, "it was stopped")
    assert whole["step_ms"] == 1.0
    assert whole["not_measured"]["encode_gb_s"] == "it was stopped"
    assert "step_ms" not in whole["not_measured"]


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_quick_form_measures_everything(tmp_path: Path) -> None:
    done = started("--quick", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures == json.loads((tmp_path / "accelerator.json").read_text()) | {
        "took_s": figures["took_s"]
    }
    assert figures["skipped"] == {}
    assert {*figures["parts"].values()} == {"done"}, figures["parts"]
    assert figures["device"]["platform"] == "cpu"
    (only,) = figures["rows"]
    assert "not_measured" not in only
    for key in KEYS:
        assert math.isfinite(only[key])
        assert only[f"{key}_low"] <= only[key] <= only[f"{key}_high"]
    assert only["peak_bytes"] > 4 * only["parameters"]
    assert only["rounds"] == only["rounds_host_encode"] == MODELS[TINY].rounds
    assert only["identical"] == {"int4": True, "int2": True, "bf16": True}
    for kind in ("", "_host_encode"):
        steps = only[f"rounds{kind}"] * only["fragments"]
        histogram = only[f"histogram{kind}"]
        assert sum(histogram["plain"]) == sum(histogram["with_hooks"]) == steps
        assert only[f"hooks{kind}"]["adopted"] == 2 * steps  # as many adoptions before each window
        assert math.isfinite(only[f"hooks{kind}"]["loss"])
    told = figures["study"]["arms"]
    assert {arm: each["steps"] for arm, each in told.items()} == dict.fromkeys(ARMS, 24)
    tokens = 4 * 24 * 2 * 16
    assert told["data-parallel"]["tokens_trained"] == tokens
    for arm in ("h8", "h24"):
        assert tokens <= told[arm]["tokens_trained"] <= 1.2 * tokens
        assert told[arm]["heldout_loss"] < told[arm]["initial_heldout_loss"]
    assert told["h8"]["up_bytes_per_token"] > 2 * told["h24"]["up_bytes_per_token"]
    assert math.isfinite(figures["gap_percent"])
    assert math.isfinite(figures["gap_percent_h8"])
    assert (figures["gap_percent_at_step"], figures["gap_percent_h8_at_step"]) == (24, 24)


def started(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the bench as it is started on a machine without Ray."""
    command = [sys.executable, "-m", "archipelago.lab.bench.accelerator", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )
