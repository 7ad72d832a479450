"""Runs on Ray whose islands train with a loop of the user's own, in JAX and in PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.live.cli import TINY, finish, place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(900)]

MINE = """
import json, os
from pathlib import Path

import jax
import optax
import archipelago as ap

HERE = Path(__file__).parent
SPEC = ap.ModelSpec(width=64, layers=2, heads=2, hidden=160)
DATA = ap.DataSpec("python-stdlib", None, False, 5.0, 32, 0, 64)
TOKENS = 100

def train():
    model = ap.language_model("its loss", SPEC, DATA)
    optimizer = optax.adam(6e-3)

    @jax.jit
    def update(params, moments, batch):
        value, gradients = jax.value_and_grad(model.loss)(params, batch)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(params, updates), moments, value

    island = ap.join()
    params, first = island.params, island.clock
    moments, losses = optimizer.init(params), []
    while island.running:
        params, moments, value = update(params, moments, island.batch)
        losses.append(float(value))
        line = [island.name, os.getpid(), first, losses[0]]
        (HERE / f"loop-{os.getpid()}.json").write_text(json.dumps(line))
        params = island.step(params, TOKENS, loss=value)
    (HERE / f"over-{os.getpid()}").touch()
"""
KILL = '[[faults.plan]]\nat_step = 16\nkind = "kill"\nisland = "local-1"\n'


def test_loop_of_jax_survives_a_kill() -> None:
    """Nothing but the loops trains, so the model learns only if their hand-ins are merged."""
    with place() as here:
        (here.folder / "mine.py").write_text(MINE)
        text = TINY.read_text().replace("[optimizer]\nwarmup_steps = 4\n", "")
        text = text.replace('"byte-tiny"', '"byte-tiny"\nloop = "mine:train"') + KILL
        (config := here.folder / "mine.toml").write_text(text)
        done = here.run(
            "run", str(config), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=40", "--set", "durability.keep_contributions=true",
            "--set", "islands.0.step_s=1.0",  # so that the killed loop is back before the end
        )  # fmt: skip
        assert done.code == 0, done.err
        summary = done.json
        assert summary["heldout_loss"] < 0.8 * summary["initial_heldout_loss"]
        assert summary["faults"] == 1
        loops = [json.loads(file.read_text()) for file in here.folder.glob("loop-*.json")]
        assert sorted(name for name, *_ in loops) == ["local-0", "local-1", "local-1"]
        restarted = max((each for each in loops if each[0] == "local-1"), key=lambda each: each[2])
        begun = max(each[3] for each in loops)
        assert restarted[2] > 0, "it has the clock of the others"
        assert restarted[3] < begun - 0.5, "it goes on from the model of the run"
        parts = ("merged", "discarded", "lost", "outstanding")
        assert summary["tokens_trained"] % 100 == 0, "the loop counts its tokens"
        assert summary["tokens_trained"] == sum(summary[f"tokens_{part}"] for part in parts)
        replayed = here.run("replay", str(here.run_dir), "--json")
        assert replayed.code == 0, replayed.err
        assert replayed.json["exact"]
        assert replayed.json["global_sha256"] == summary["global_sha256"]


@pytest.mark.parametrize("example", ["loop_jax", "loop_torch"])
def test_example_of_a_loop_runs_in_an_empty_folder(example: str) -> None:
    if example == "loop_torch":
        pytest.importorskip("torch")
    with place() as here:
        process = subprocess.Popen(
            [sys.executable, "-m", f"archipelago.examples.{example}"],
            cwd=here.folder,
            env=here.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        done = finish(process)
        assert done.code == 0, done.err
        assert "held-out loss" in done.out
        (summary_file,) = here.folder.glob("runs/*/summary.json")
        summary = json.loads(summary_file.read_text())
        assert summary["heldout_loss"] < 0.8 * summary["initial_heldout_loss"]
        assert summary["merges"] > 0
        assert summary["tokens_trained"] > 60 * 8 * 64, "both islands have trained"
