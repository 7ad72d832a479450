"""Thousands of rounds on real Ray leak nothing; tests/leaks.py explains the measurement."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.live.cli import ROOT, Finished, place

ROUNDS = "ARCHIPELAGO_LEAK_ROUNDS"
"""An environment variable with the number of rounds, for a shorter test."""
LONGEST_S = 900.0

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(LONGEST_S + 60)]


def test_ten_thousand_rounds_leave_no_object_no_reference_and_no_memory() -> None:
    rounds = os.environ.get(ROUNDS, "10000")
    with place() as here:
        done = subprocess.run(
            [sys.executable, "-m", "tests.leaks", "--rounds", rounds],
            cwd=ROOT,
            env=here.environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    finished = Finished(done.returncode, done.stdout, done.stderr)
    assert finished.out, finished.err
    told = finished.json
    print(told)
    assert told["wrong"] == []
    assert told["rounds"] >= int(rounds)
    assert finished.code == 0
