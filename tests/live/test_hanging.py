"""A learner that hangs when its run is stopped, where every learner is needed, on real Ray."""

from __future__ import annotations

import json

import pytest

from tests.live.cli import TINY, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

HANGING_TASK = '''
"""The training thread of one island hangs once FOLDER has a file that says so; it speaks on."""
import threading
from pathlib import Path

from islands.task import load_task
from islands.trainer import Trainer

FOLDER = Path(__file__).parent


def task(data):
    serve, step = Trainer._serve, Trainer._step

    def hang(self):
        if self._habits.island == "local-1" and (FOLDER / "hang").exists():
            (FOLDER / "hangs").touch()
            threading.Event().wait()

    def hanging_serve(self, word):
        hang(self)
        serve(self, word)

    def hanging_step(self, before_s):
        hang(self)
        return step(self, before_s)

    Trainer._serve, Trainer._step = hanging_serve, hanging_step
    return load_task("byte-tiny", None, {}, data)
'''


@pytest.mark.long
def test_a_run_that_needs_all_ends_though_one_hangs_when_it_is_stopped() -> None:
    """It waits as long as it must for whom may only be slow, and no longer."""
    with place() as here:
        (here.folder / "hanging.py").write_text(HANGING_TASK)
        config = here.folder / "hanging.toml"
        config.write_text(
            TINY.read_text().replace('preset = "byte-tiny"', 'target = "hanging:task"')
        )
        process = here.start(
            "run", str(config), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "sync.quorum=2",
        )  # fmt: skip
        until(lambda: process.poll() is not None or here.merges > 8)
        assert process.poll() is None, process.communicate()
        (here.folder / "hang").touch()
        until((here.folder / "hangs").exists)
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
        assert finished.json == json.loads((here.run_dir / "summary.json").read_text())
        assert (here.run_dir / "model.safetensors").exists()
        assert finished.json["heldout_loss"] is not None
