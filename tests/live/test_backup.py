"""A restore drill on real Ray: a live run is backed up, lost with its directory, and comes back.

A backup that had only the configuration would begin at t = 0; one that was no moment of the run
would be refused, or would lose tokens that the summary has to account for.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress

import pytest

from tests.live.cli import TINY, finish, last_status, place, strict_json, until

LONGER = ("--set", "run.steps=150", "--set", "islands=[{count=2, batch_size=4, step_s=0.2, "
          "resources={CPU=0.5}}]", "--set", "durability.keep_contributions=true")  # fmt: skip


@pytest.mark.live
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_comes_back_from_the_backup_of_a_live_run() -> None:
    with place() as here:
        process = here.start("run", str(TINY), "--json", "--run-dir", str(here.run_dir), *LONGER)
        until(lambda: here.merges >= 6 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        copy = here.folder / "copy"
        made = here.run("backup", str(here.run_dir), str(copy), "--json")
        assert made.code == 0, made.err
        assert made.json["t"] > 0
        assert last_status(here.run_dir)["phase"] == "running", "the run is live"

        for number in here.left_running():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        assert finish(process).code == -signal.SIGKILL
        shutil.rmtree(here.run_dir)

        verified = here.run("verify", str(copy), "--json", "--replay")
        assert verified.code == 0, verified.out
        assert strict_json(verified.out)["problems"] == []
        back = ("run", str(copy / "config.toml"), "--resume", "--run-dir", str(copy), "--json")
        done = here.run(*back)
        assert done.code == 0, done.err
        summary = done.json
        assert summary["merges"] > 6
        parts = ("merged", "discarded", "lost", "outstanding")
        assert sum(summary[f"tokens_{each}"] for each in parts) == summary["tokens_trained"]
        assert here.run("verify", str(copy), "--json").code == 0
