"""The shipped examples in virtual time, and the study of batch statistics."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from archipelago.examples import digits_nnx, lora
from archipelago.lab.training.loss_curve import LossCurve
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.train import train
from archipelago.lab.training.world import TrainingWorld
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.workers.evaluator import Evaluator
from coordinator.codec import Wire
from coordinator.protocol import Arrived

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STUDIES = Path(__file__).parents[2] / "examples" / "studies"
RANK, STEPS = 4, 24


def config_of(module: Any, *overrides: str, **options: Any) -> Config:
    """Return the configuration of an example for a few steps."""
    task = {"target": f"{module.__name__}:task", "options": options}
    words = (f"run.steps={STEPS}", *overrides)
    return parse({**module.CONFIG, "task": task}, origin="test", overrides=words)


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT4])
def test_lora_sends_its_own_leaves_and_no_others(tmp_path: Path, wire: Wire) -> None:
    draws = np.random.default_rng(0)
    base = {name: draws.normal(0, 0.1, size).astype("f4") for name, size in lora.SIZES.items()}
    path = tmp_path / "base.safetensors"
    save_file(base, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    config = config_of(lora, f"sync.wire_up={wire}", base=str(path), sha256=digest, rank=RANK)
    curve = LossCurve(Evaluator(config), 0)
    world = TrainingWorld(config, Timing(), curve)
    figures = world.run().figures
    layout = curve.evaluator.layout
    assert {leaf.path for leaf in layout.leaves} == {
        f"{name}/{half}" for name in lora.SIZES for half in "ab"
    }
    elements = sum(RANK * (inputs + outputs) for inputs, outputs in lora.SIZES.values())
    assert sum(layout.sizes) == elements < sum(array.size for array in base.values()) / 10
    sent = [event.contribution for _, event in world.tape if isinstance(event, Arrived)]
    assert len(sent) > 2
    for each in sent:
        assert each.bytes == wire.bytes_of(layout.sizes[each.id.fragment])
    tokens: Any = figures["tokens_trained"]
    assert figures["up_bytes_per_token"] == sum(each.bytes for each in sent) / tokens


@pytest.mark.long
def test_nnx_example_replays_by_seed_and_its_statistics_move() -> None:
    def learned(seed: int) -> dict[str, Any]:
        config = config_of(digits_nnx, f"run.seed={seed}")
        return dict(train(config, Timing(jitter=0.3), 0).figures)

    first = learned(0)
    assert learned(0)["global_sha256"] == first["global_sha256"]
    assert learned(1)["global_sha256"] != first["global_sha256"]
    metrics = first["heldout_metrics"]
    assert metrics["mean_error"] < 0.4, "it is 0.6 with the initial statistics"
    assert 0.8 < metrics["variance_ratio"] < 2, "it is 6.5 with the initial statistics"
    assert first["heldout_loss"] < first["initial_heldout_loss"]


def script(name: str = "batch_statistics.py") -> Any:
    spec = importlib.util.spec_from_file_location("comparing", STUDIES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_study_of_batch_statistics_compares_both_arms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"study.dir={tmp_path}", "study.seeds=2", "run.steps=16"]
    assert script().main(["--jobs=1", *(f"--set={each}" for each in words)]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*script().FIGURES]


@pytest.mark.long
def test_plain_step_has_the_losses_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--preset=gemma-0.1m", "--sequences=2", "--window=40", "--steps=3", "--pairs=1"]
    assert script("plain_step.py").main([*words, "--json"]) in (0, 1), "1: so few steps are no time"
    figures = json.loads(capsys.readouterr().out)
    assert figures["loss_difference"] < 1e-5
    assert figures["ours_losses"][0] > figures["ours_losses"][-1] > 0


def test_plain_step_refuses_a_model_that_it_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        script("plain_step.py").main(["--preset=gemma-moe-1m"])
    assert ended.value.code == 2
    assert "the plain step is a Gemma 3" in capsys.readouterr().err


def test_figures_that_differ_by_more_than_the_spread_do_not_agree() -> None:
    compare, names = script().compared, script().FIGURES
    single = {seed: dict.fromkeys(names, 1.0 + 0.1 * seed) for seed in range(4)}
    near = {seed: dict.fromkeys(names, 1.1 + 0.1 * seed) for seed in range(4)}
    far = {seed: dict.fromkeys(names, 1.2 + 0.1 * seed) for seed in range(4)}
    assert all(row[-1] for row in compare(near, single))
    assert not any(row[-1] for row in compare(far, single))


@pytest.mark.long
def test_second_level_without_momentum_changes_nothing_if_both_merge_together() -> None:
    """Then a region's model is the mean of its islands, and the mean of both is that of all."""
    levels = script("two_levels.py")
    one, two = levels.Arm("one", 4), levels.Arm("two", 4, regional=4)
    assert (one.changes, two.changes) == (24, 6)
    losses = [levels.trained(arm, 0, 34e-3, 0.0, 8) for arm in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] < 5.0, "a model that has learned nothing has 5.5"
    assert levels.trained(levels.Arm("two", 4, regional=2), 0, 34e-3, 0.0, 8) != losses[0]
