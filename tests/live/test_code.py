"""A user edits the task's module during the run."""

from __future__ import annotations

import pytest

from tests.live.cli import TINY, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]

TASK = """
from islands.task import load_task
import settings

def task(data):
    return load_task(settings.preset, None, {}, data)
"""

KILL = '[[faults]]\nafter_s = 0.0\nkind = "kill"\nisland = "local-1"\n'


def said_of(here: Place, island: str) -> str:
    return next(each["why"] for each in here.last_status["islands"] if each["island"] == island)


def test_island_that_returns_with_other_code_is_refused_and_the_run_continues() -> None:
    with place() as here:
        (here.folder / "mine.py").write_text(TASK)
        (settings := here.folder / "settings.py").write_text('preset = "byte-tiny"\n')
        config = here.folder / "mine.toml"
        config.write_text(TINY.read_text().replace('preset = "byte-tiny"', 'target = "mine:task"'))
        process = here.start(
            "run", str(config), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.speed=0.3",
        )  # fmt: skip
        until(lambda: here.merges > 4 or process.poll() is not None)
        assert process.poll() is None
        settings.write_text('preset = "byte-tiny"  # the same, but who knows\n')
        (plan := here.folder / "plan.toml").write_text(KILL)
        killed = here.run("chaos", str(here.run_dir), "--plan", str(plan))
        assert killed.code == 0, killed.err
        until(lambda: "put its files back" in said_of(here, "local-1"))
        merges = here.merges
        until(lambda: here.merges > merges + 4)
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
