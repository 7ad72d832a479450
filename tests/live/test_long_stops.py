"""Each process of the core is stopped for 150 s in one run with default settings."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from tests.live.cli import TINY, finish, place, until
from tests.live.test_silent import ENDLESS, pid_of

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1500)]

STOPPED_S = 150.0
KINDS = ("Syncer", "Shard", "Evaluator", "Fleet")


def alive(pid: int) -> bool:
    """Return whether the process exists; a test's own zombie would count, but these are Ray's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_run_survives_a_stop_of_each_process_of_the_core() -> None:
    victims: list[int] = []
    with place() as here:
        process = here.start("run", str(TINY), "--json", "--run-dir", str(here.run_dir), *ENDLESS)
        until(lambda: here.merges > 4 or process.poll() is not None)
        try:
            for kind in KINDS:
                until(lambda kind=kind: pid_of(here, kind) or process.poll() is not None)
                assert process.poll() is None, (kind, process.communicate())
                victim = pid_of(here, kind)
                assert victim is not None
                victims.append(victim)
                os.kill(victim, signal.SIGSTOP)
                end_s = time.monotonic() + STOPPED_S
                until(
                    lambda end_s=end_s, victim=victim: (
                        time.monotonic() > end_s or not alive(victim) or process.poll() is not None
                    ),
                    2 * STOPPED_S,
                )
                assert process.poll() is None, (kind, process.communicate())
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGCONT)
                merges = here.merges
                until(lambda merges=merges: here.merges > merges + 8 or process.poll() is not None)
                assert process.poll() is None, (kind, process.communicate())
            assert here.run("stop", str(here.run_dir)).code == 0
            finished = finish(process)
        finally:
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
        assert finished.code == 0, finished.err
        assert finished.json["heldout_loss"] is not None
        fates = ("merged", "discarded", "lost", "outstanding")
        assert finished.json["tokens_trained"] == sum(
            finished.json[f"tokens_{fate}"] for fate in fates
        )
        assert (here.run_dir / "model.safetensors").exists()
