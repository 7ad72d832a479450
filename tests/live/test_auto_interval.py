"""`sync.every = "auto"` on real Ray: a measured choice, stored once and kept by a resumed run."""

from __future__ import annotations

import os
import signal
import tomllib
from contextlib import suppress
from typing import Any

import pytest

from tests.live.cli import TINY, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

AUTO = ("--set", "sync.every=auto", "--set", "run.steps=1000000")


def stored(here: Place) -> dict[str, Any]:
    """Return the table `[sync]` of the run directory."""
    return tomllib.loads((here.run_dir / "config.toml").read_text())["sync"]


def merged_more(here: Place, merges: int) -> bool:
    return here.merges > merges


@pytest.mark.long
def test_chosen_interval_is_stored_and_a_resumed_run_keeps_it() -> None:
    """Steps of 1 s take many times a round, so H is below 8.

    The resumed run has short steps. A new choice would give 8 or more.
    """
    with place() as here:
        run = ("run", str(TINY), "--json", "--run-dir", str(here.run_dir), *AUTO)
        process = here.start(*run, "--set", "islands.0.step_s=1.0")
        until(lambda: merged_more(here, 2) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        began = stored(here)
        assert began["every"] in (1, 2, 4)
        assert 1 <= began["fragments"] <= began["every"]
        assert len(here.last_status["fragments"]) == began["fragments"]
        for number in here.left_running():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        killed = finish(process)
        assert f"H = {began['every']}, P = {began['fragments']}: " in killed.err
        merges = here.merges
        process = here.start(*run, "--resume")
        until(lambda: merged_more(here, merges + 4) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        assert stored(here) == began
        assert len(here.last_status["fragments"]) == began["fragments"]
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert 'sync.every = "auto"' not in finished.err, "nothing is measured again"
        again = here.run("replay", str(here.run_dir), "--json").json
        assert again["compared"] == {"effects": True, "state": True, "tokens": True}


@pytest.mark.long
def test_islands_that_can_never_be_placed_are_refused_before_a_measurement() -> None:
    with place() as here:
        done = here.run(
            "run", str(TINY), "--run-dir", str(here.run_dir), "--set", "sync.every=auto",
            "--set", "islands.0.label_selector={region = 'mars'}",
        )  # fmt: skip
        assert done.code == 2
        assert "can never be placed" in done.err
        assert not (here.run_dir / "config.toml").exists(), "nothing was started"
