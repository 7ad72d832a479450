"""Processes of the core that hang for longer than they may, on real Ray."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest
from safetensors.numpy import load_file

from tests.live.cli import TINY, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

HANG_S = 6.0
ENDLESS = ("--set", "run.steps=1000000", "--set", "islands.0.speed=0.3")


def pid_of(here: Place, kind: str) -> int | None:
    """Return the process of this kind of actor; None while there is none."""
    left = here.left_running().items()
    return next((pid for pid, command in left if f"ray::{kind}Actor" in command), None)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Syncer", "Shard", "Evaluator"])
def test_hanging_process_is_restarted_and_the_run_continues(kind: str) -> None:
    """SIGSTOP is never followed by SIGCONT, and the run does not end."""
    with place() as here:
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir), *ENDLESS,
            "--set", f"durability.hang_s={HANG_S}",
        )  # fmt: skip
        until(lambda: here.merges > 4 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        victim = pid_of(here, kind)
        assert victim is not None
        os.kill(victim, signal.SIGSTOP)
        try:
            until(lambda: pid_of(here, kind) not in (None, victim) or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            merges = here.merges
            until(lambda: here.merges > merges + 8 or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            taken = here.folder / "taken.safetensors"
            saved = here.run("save", str(here.run_dir), str(taken), "--json")
            assert saved.code == 0, saved.err
            assert load_file(taken).keys() == load_file(saved.json["path"]).keys()
            assert here.run("stop", str(here.run_dir)).code == 0
            finished = finish(process)
        finally:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        assert finished.code == 0, finished.err
        assert finished.json["heldout_loss"] is not None
        assert (here.run_dir / "model.safetensors").exists()
