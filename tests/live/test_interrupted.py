"""Ctrl-C while many runs train: the running ones are dropped, and no process continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.given import LEAST, sums
from tests.live.cli import Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

STUDY = """
[study]
seeds = 1
dir = "{folder}"
[[islands]]
count = 2
batch_size = 2
[[arms]]
name = "short"
set = {{ run.steps = 8 }}
[[arms]]
name = "endless"
set = {{ run.steps = 10000000 }}
[[arms]]
name = "waiting"
set = {{ run.steps = 20000000 }}
"""


def study_at_work(here: Place) -> subprocess.Popen[str]:
    """Return a study of which one cell is finished; the others never end."""
    path = here.folder / "many.toml"
    model = LEAST.replace("SOURCE", str(sums(here.folder / "text")))
    path.write_text(STUDY.format(folder=here.folder) + model)
    process = here.start("study", str(path), "--jobs", "2", "--json")
    until(lambda: finished_cells(here) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def finished_cells(here: Place) -> list[Path]:
    return [*(here.folder / "many" / "cells").glob("*.json")]


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_keeps_and_reports_finished_cells_of_a_study() -> None:
    with place() as here:
        process = study_at_work(here)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the foreground group
        done = finish(process)
        assert done.code == 130, done.err
        assert "Traceback" not in done.err
        assert "1 of 3 cells are trained" in done.err
        rows: dict[str, Any] = {row["arm"]: row for row in done.json["rows"]}
        assert {arm: row["missing"] for arm, row in rows.items()} == {
            "short": [], "endless": [0], "waiting": [0]
        }  # fmt: skip
        (kept,) = finished_cells(here)
        assert json.loads(kept.read_text())["figures"]["heldout_loss"] > 0
        there = here.run("study", str(here.folder / "many.toml"), "--plan")
        assert "3 cells, 1 of them are there already" in there.out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("how", ["ctrl-c, again and again", "kill -9"])
def test_study_that_is_killed_leaves_no_process(how: str) -> None:
    with place() as here:  # it looks for processes
        process = study_at_work(here)
        if how == "kill -9":
            process.kill()
        else:

            def pressed() -> bool:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
                return process.poll() is not None

            until(pressed)
        done = finish(process)
        assert done.code == (-signal.SIGKILL if how == "kill -9" else 130), done.err
        assert len(finished_cells(here)) == 1


@pytest.mark.long
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_of_bench_parity_ends_the_run_that_is_under_way(presses: int) -> None:
    with place() as here:
        process = here.start("bench", "parity", "--json", "--set", "monitor.refresh_s=0.1")

        def islands() -> list[str]:
            return [each for each in here.left_running().values() if "IslandActor" in each]

        until(lambda: len(islands()) == 4 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        for _ in range(presses):
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        done = finish(process)
        assert done.code == 130, done.err
        assert done.json["error"]["kind"] == "interrupted"
        assert "Traceback" not in done.err
