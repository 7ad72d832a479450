"""A task with dropout, batch statistics and parts of a batch on real Ray, in several modes.

DiLoCo refuses state. `test_rings` runs DiLoCo and the elastic mode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.lab.test_training import NORMALIZES
from tests.live.cli import place

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

CONFIG = """
[run]
steps = 60
[task]
target = "a_task_that_normalizes:task"
[data]
window = 32
lease_windows = 64
[sync]
{sync}
[[islands]]
count = 2
batch_size = 4
accumulate = 2
resources = {{CPU = 0.5}}
"""
MODES = {
    "decoupled": 'fragments = 3\nevery = 8\nwire_up = "int4"\nwire_down = "int4"',
    "streaming": 'fragments = 3\nevery = 8\noverlap = 2\nwire_up = "int4"',
    "data-parallel": "",
}


@pytest.mark.parametrize(
    "mode",
    [pytest.param("decoupled", marks=pytest.mark.long), "streaming", "data-parallel"],
)
def test_state_and_metrics_of_a_real_run(mode: str) -> None:
    with place() as here:
        (here.folder / "a_task_that_normalizes.py").write_text(NORMALIZES)
        config = here.folder / "run.toml"
        config.write_text(CONFIG.format(sync=MODES[mode]))
        words = ["--json", "--run-dir", str(here.run_dir), "--set", f"run.mode={mode}"]
        done = subprocess.run(
            [sys.executable, "-m", "archipelago", "run", str(config), *words],
            env={**os.environ, **here.environment},
            cwd=here.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        leaves = load_file(here.run_dir / "model.safetensors")
    assert summary["heldout_metrics"]["least_variance"] > 0.1
    assert summary["heldout_loss"] < summary["initial_heldout_loss"]
    assert np.abs(leaves["state/mean"]).max() > 0.01, "the mean moved from zero"
    assert leaves["state/variance"].min() > 0.1
