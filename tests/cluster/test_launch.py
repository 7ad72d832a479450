"""Signals: what a person presses is not lost, whatever was going on when it was pressed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.launch.exit_message import resume_hint
from cluster.launch.interrupts import Interrupts
from cluster.launch.ray_cluster import STARTS, begun
from coordinator.errors import RunFailed


@pytest.fixture
def interrupts():
    """Signals go to these for the time of a test."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as listening:
        yield listening
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_asks_and_the_second_ends_at_once(interrupts: Interrupts) -> None:
    signal.raise_signal(signal.SIGINT)
    assert interrupts.asked == "Ctrl-C"
    interrupts.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # nothing stops the cleaning up


def test_a_second_ctrl_c_that_was_swallowed_is_not_lost(interrupts: Interrupts) -> None:
    signal.raise_signal(signal.SIGINT)
    with suppress(KeyboardInterrupt):  # as Python does in a finalizer, and Ray in a callback
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()


# --- how it starts, and how it ends -------------------------------------------------------------


class Busy:
    """A machine on which Ray does not start in time, so many times."""

    def __init__(self, times: int) -> None:
        self.left, self.starts, self.cleared = times, 0, 0

    def start(self) -> None:
        self.starts += 1
        self.left -= 1
        if self.left >= 0:
            raise RuntimeError("The current node timed out during startup.")

    def clear(self) -> None:
        self.cleared += 1


def test_ray_that_does_not_start_in_time_is_started_again() -> None:
    busy = Busy(1)
    begun(busy.start, busy.clear)
    assert (busy.starts, busy.cleared) == (2, 1), "what is left of the first start is cleared away"


def test_ray_that_never_starts_is_given_up() -> None:
    busy = Busy(STARTS)
    with pytest.raises(RunFailed, match=r"does not start here, tried 2 times: The current node"):
        begun(busy.start, busy.clear)


@pytest.mark.parametrize(("end", "said"), [("pass", ""), ("os._exit(1)", "how to go on\n")])
def test_a_process_that_ray_ends_says_how_to_go_on(end: str, said: str) -> None:
    script = (
        "import os\nfrom cluster.launch.exit_message import last_words\n"
        f"with last_words('how to go on'):\n    {end}\n"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.stderr == said


def test_the_hint_is_a_command() -> None:
    assert resume_hint(Path("runs/demo")) == (
        "go on with `archipelago run runs/demo/config.toml --resume --run-dir runs/demo`"
    )
