"""A learner that hangs when its run is stopped, and an evaluation that hangs, on real Ray."""

from __future__ import annotations

import json
import os
import signal

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
        if self._settings.island == "local-1" and (FOLDER / "hang").exists():
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
def test_stopped_run_that_needs_all_islands_ends_although_one_hangs() -> None:
    """The run waits as long as for a straggler, and no longer."""
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


ENDLESS_TASK = '''
"""The last evaluation takes for ever."""
import threading
from pathlib import Path

from cluster.workers.evaluator import Evaluator
from islands.task import load_task

FOLDER = Path(__file__).parent


def task(data):
    loss = Evaluator.loss

    def endless(self, flats, *windows):
        if "initial_loss" in self.__dict__:  # that is known already
            (FOLDER / "judges").touch()
            threading.Event().wait()
        return loss(self, flats, *windows)

    Evaluator.loss = endless
    return load_task("byte-tiny", None, {}, data)
'''


@pytest.mark.long
def test_ctrl_c_during_the_last_evaluation_keeps_model_and_summary() -> None:
    with place() as here:
        (here.folder / "endless.py").write_text(ENDLESS_TASK)
        config = here.folder / "endless.toml"
        config.write_text(
            TINY.read_text().replace('preset = "byte-tiny"', 'target = "endless:task"')
        )
        process = here.start(
            "run", str(config), "--json", "--run-dir", str(here.run_dir), "--set", "run.steps=20",
        )  # fmt: skip
        until(lambda: process.poll() is not None or (here.folder / "judges").exists())
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert "there is no heldout_loss: its evaluation was cut short" in finished.err
        assert finished.json == json.loads((here.run_dir / "summary.json").read_text())
        assert finished.json["heldout_loss"] is None
        assert finished.json["merges"] > 0
        assert (here.run_dir / "model.safetensors").exists()
