"""`bench faults --levels` kills islands in three modes on real Ray, and leaves nothing running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.cli import finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1500)]


def test_each_mode_loses_goodput_under_the_same_kills(tmp_path: Path) -> None:
    with place() as here:
        process = here.start(
            "bench", "faults", "--levels", "0,3", "--quick", "--json", "--out", str(tmp_path)
        )
        finished = finish(process, within_s=1400)
    assert finished.code == 0, finished.err
    told = finished.json
    rows = {(row["mode"], row["level"]): row for row in told["rows"]}
    modes = ["decoupled", "elastic-data-parallel", "data-parallel"]
    assert [*rows] == [(mode, level) for mode in modes for level in (0, 3)]
    assert len({rows[mode, 3]["planned"] for mode in modes}) == 1
    for mode in modes:
        calm, broken = rows[mode, 0], rows[mode, 3]
        assert (calm["planned"], calm["kills"], calm["simulated"]) == (0, 0, pytest.approx(1.0))
        assert 0 < broken["kills"] <= broken["planned"]
        assert 0 <= broken["goodput"] < calm["goodput"] < 1.2
        assert broken["simulated"] < 1
        assert told["recoveries"][mode]["back_s"] > 0
    assert rows["decoupled", 3]["goodput"] > rows["data-parallel", 3]["goodput"]
    assert json.loads((tmp_path / "faults.json").read_text())["rows"] == told["rows"]
    assert {each.name for each in tmp_path.iterdir()} == {
        "faults.json", "faults.csv", "faults-light.svg", "faults-dark.svg",
    }  # fmt: skip


def test_terminated_benchmark_ends_its_run() -> None:
    """The run is in a session of its own, which the end of the benchmark's process spares."""
    with place() as here:
        process = here.start("bench", "faults", "--levels", "0", "--quick")
        until(lambda: any("raylet" in command for command in here.left_running().values()))
        process.terminate()
        assert finish(process).code == 143
