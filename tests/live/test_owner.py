"""Two processes want one run: the second is refused, and the first is not disturbed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.live.cli import TINY, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

ENDLESS = ("--set", "run.steps=1000000", "--set", "islands.0.speed=0.3")


def asks(here: Place, *more: str) -> tuple[str, ...]:
    return ("run", str(TINY), "--json", "--run-dir", str(here.run_dir), *ENDLESS, *more)


@pytest.mark.long
def test_live_run_is_not_resumed_if_its_address_file_is_missing() -> None:
    """The second acts as if on another machine, with its own directory and the same depot."""
    with place() as here:
        (there := here.folder / "depots").mkdir()
        depot = ("--set", f"durability.dir={there}")
        first = here.start(*asks(here, *depot))
        until(lambda: here.merges > 4 or first.poll() is not None)
        assert first.poll() is None
        (here.run_dir / "live.json").rename(here.folder / "live.json")
        second = here.run(*asks(here, *depot), "--resume")
        assert second.code == 2
        assert "is live, as process" in second.err
        (here.folder / "live.json").rename(here.run_dir / "live.json")
        merges = here.merges
        until(lambda: here.merges > merges + 4)
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(first)
        assert finished.code == 0, finished.err


@pytest.mark.long
def test_one_of_two_simultaneous_resumes_takes_the_run() -> None:
    with place() as here:
        process = here.start(*asks(here))
        until(lambda: here.merges > 4 or process.poll() is not None)
        for number in here.left_running():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        finish(process)
        before = here.last_status
        both = [here.start(*asks(here), "--resume") for _ in range(2)]
        until(lambda: any(each.poll() is not None for each in both))
        (refused,) = (each for each in both if each.poll() is not None)
        (goes_on,) = (each for each in both if each is not refused)
        told = finish(refused)
        assert told.code == 2
        assert "is live: process" in told.err
        assert "two processes cannot write one run" in told.err
        until(lambda: here.merges > before["merges"] + 8 or goes_on.poll() is not None)
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(goes_on)
        assert finished.code == 0, finished.err
        again = here.run("replay", str(here.run_dir), "--json").json
        assert again["compared"] == {"effects": True, "state": True, "tokens": True}
