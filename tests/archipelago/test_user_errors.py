"""An error of the user's own code: one message, the user's line first, before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import archipelago as ap
from islands.user_lines import line_in

MODULE = """
import dataclasses
from islands.task import load_task

def base(data):
    return load_task("byte-tiny", None, {}, data)

def made(data):
    raise ValueError("a mistake in make")

def streams(data):
    def stream(batch_size):
        raise ValueError("a mistake in stream")
    return dataclasses.replace(base(data), name="mine", stream=stream)

def holds_out(data):
    def heldout(batch_size):
        raise ValueError("a mistake in heldout")
    return dataclasses.replace(base(data), name="mine", heldout=heldout)

def loses(data):
    def loss(params, batch):
        raise ValueError("a mistake in loss")
    return dataclasses.replace(base(data), name="mine", loss=loss)
"""
CONFIG = """
[task]
target = "tasks_that_raise:TARGET"
[data]
source = "text"
window = 16
lease_windows = 8
[sync]
fragments = 2
[[islands]]
batch_size = 2
"""
PLACES = {
    "made": ("made", "task.target = 'tasks_that_raise:made' raises"),
    "streams": ("stream", "task mine: stream raises"),
    "holds_out": ("heldout", "task mine: heldout raises"),
    "loses": ("loss", "task mine: loss raises"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a text and a module of tasks that raise, and return it."""
    (tmp_path / "tasks_that_raise.py").write_text(MODULE)
    (tmp_path / "text").mkdir()
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{number} and something to read\n" * 40)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message(here: Path, target: str) -> str:
    """Return the whole message about a target."""
    inside, says = PLACES[target]
    words = f"a mistake in {'make' if target == 'made' else inside}"
    number = next(n for n, line in enumerate(MODULE.splitlines(), 1) if words in line)
    where = f"{here / 'tasks_that_raise.py'}:{number}"
    return f"{where}: {says} ValueError: {words} (in {inside})"


@pytest.mark.parametrize("target", PLACES)
def test_command_ends_with_one_message_and_code_2(here: Path, target: str) -> None:
    (here / "run.toml").write_text(CONFIG.replace("TARGET", target))
    command = [sys.executable, "-m", "archipelago", "run", "run.toml", "--run-dir", "new"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"archipelago: {message(here, target)}\n"
    assert not (here / "new").exists()


def test_run_of_the_python_api_raises_the_message(here: Path) -> None:
    given = {"task.target": "tasks_that_raise:streams"}
    (here / "run.toml").write_text(CONFIG)
    sys.path.insert(0, str(here))
    try:
        run = ap.Run(here / "run.toml", given, run_dir=here / "new")
        run.start()
        with pytest.raises(ap.UserMistake) as caught:
            run.wait()
    finally:
        sys.path.remove(str(here))
    assert str(caught.value) == message(here, "streams")


def test_line_of_an_error_is_the_innermost_one_of_the_user() -> None:
    def own() -> None:
        json.loads("not JSON")

    with pytest.raises(ValueError, match="Expecting value") as caught:
        own()
    line = own.__code__.co_firstlineno + 1
    assert line_in(caught.value) == f"{__file__}:{line}: "
    assert line_in(ValueError("never raised")) == ""
