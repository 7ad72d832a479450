"""In lock-step, virtual time trains what a run on Ray trains, to the last bit."""

from __future__ import annotations

import math

import pytest

from tests.live.cli import TINY, finish, place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]

ISLANDS, STEPS = 3, 24
TASK = f'''
"""byte-tiny, where nobody begins before all islands have joined: none is offered the moments of
another, which are of whatever step that one has just done."""
import os
import time
from dataclasses import replace
from pathlib import Path

import ray

from islands.task import load_task

JOINED = Path(__file__).parent / "joined"


class Together:
    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def next(self):
        if not ray.is_initialized():  # the check before the run takes a batch, too
            return self._stream.next()
        (JOINED / str(os.getpid())).touch()
        while len(list(JOINED.iterdir())) < {ISLANDS}:
            time.sleep(0.01)
        return self._stream.next()


def task(data):
    plain = load_task("byte-tiny", None, {{}}, data)
    return replace(plain, stream=lambda size: Together(plain.stream(size)))
'''


@pytest.mark.parametrize("wire", [pytest.param("f32", marks=pytest.mark.long), "int4"])
def test_lock_step_run_is_reproduced_bit_for_bit(wire: str) -> None:
    with place() as here:
        (here.folder / "joined").mkdir()
        (here.folder / "together.py").write_text(TASK)
        config = here.folder / "together.toml"
        config.write_text(
            TINY.read_text().replace('preset = "byte-tiny"', 'target = "together:task"')
        )
        done = here.run(
            "run", str(config), "--json", "--run-dir", str(here.run_dir),
            "--set", f"islands.0.count={ISLANDS}", "--set", f"sync.quorum={ISLANDS}",
            "--set", "sync.overlap=0", "--set", f"run.steps={STEPS}",
            "--set", f"sync.wire_up={wire}", "--set", f"sync.wire_down={wire}",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert len([*(here.folder / "joined").iterdir()]) >= ISLANDS, "they began together"
        again = here.start_python("-m", "archipelago.lab.training", str(here.run_dir))
        twin = finish(again)
        assert twin.code == 0, twin.err
        same = ("global_sha256", "merges", "tokens_trained", "tokens_merged", "heldout_loss")
        assert {key: twin.json[key] for key in same} == {key: done.json[key] for key in same}
        assert math.isfinite(done.json["heldout_loss"])
