"""Tests of signals, and of the start and the end of a run's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from ray.exceptions import RayActorError

from cluster.launch.exit_message import resume_hint
from cluster.launch.interrupts import Interrupts
from cluster.launch.ray_cluster import STARTS, begun
from cluster.launch.run import LOST, death_of
from coordinator.errors import RunFailed


@pytest.fixture
def interrupts():
    """Route signals to an `Interrupts` during the test."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as listening:
        yield listening
    signal.signal(signal.SIGINT, before)


def test_first_ctrl_c_asks_and_second_ends_at_once(interrupts: Interrupts) -> None:
    signal.raise_signal(signal.SIGINT)
    assert interrupts.asked == "Ctrl-C"
    interrupts.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # nothing interrupts the clean-up


def test_swallowed_second_ctrl_c_is_not_lost(interrupts: Interrupts) -> None:
    signal.raise_signal(signal.SIGINT)
    with suppress(KeyboardInterrupt):  # Python does this in a finalizer, Ray in a callback
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()


# --- start and end --------------------------------------------------------------------------------


class Busy:
    """A machine on which the first `times` starts of Ray time out."""

    def __init__(self, times: int) -> None:
        self.left, self.starts, self.cleared = times, 0, 0

    def start(self) -> None:
        self.starts += 1
        self.left -= 1
        if self.left >= 0:
            raise RuntimeError("The current node timed out during startup.")

    def clear(self) -> None:
        self.cleared += 1


def test_ray_is_started_again_after_a_timeout() -> None:
    busy = Busy(1)
    begun(busy.start, busy.clear)
    assert (busy.starts, busy.cleared) == (2, 1), "what is left of the first start is cleared away"


def test_gives_up_if_ray_never_starts() -> None:
    busy = Busy(STARTS)
    with pytest.raises(RunFailed, match=r"does not start here, tried 2 times: The current node"):
        begun(busy.start, busy.clear)


@pytest.mark.parametrize(("end", "said"), [("pass", ""), ("os._exit(1)", "how to go on\n")])
def test_process_ended_by_ray_prints_how_to_continue(end: str, said: str) -> None:
    script = (
        "import os\nfrom cluster.launch.exit_message import printed_if_killed\n"
        f"with printed_if_killed('how to go on'):\n    {end}\n"
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


def test_resume_hint_is_a_command() -> None:
    assert resume_hint(Path("runs/demo")) == (
        "resume with `archipelago run runs/demo/config.toml --resume --run-dir runs/demo`"
    )


@pytest.mark.parametrize(
    ("init_failed", "message"),
    [
        (True, "the fleet of the run cannot start: ModuleNotFoundError: No module named 'their'"),
        (False, LOST),
    ],
)
def test_fleet_that_died_while_it_was_made_is_reported_with_its_error(
    *, init_failed: bool, message: str
) -> None:
    traceback = "raised in its creation task\n  File fleet.py\nModuleNotFoundError: No module "
    cause = RayActorError("1", traceback + "named 'their'\n", init_failed)
    error = RunFailed("an actor of the run has died")
    error.__cause__ = cause
    assert death_of(error, LOST) == message
