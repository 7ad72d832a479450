"""A real run whose evaluator measures single contributions in its idle time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.cli import TINY, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(390)]


def test_effect_of_each_island_is_measured_and_nothing_is_quarantined() -> None:
    with place() as here:
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.speed=0.3",
            "--set", "monitor.evaluate_every_s=10",
        )  # fmt: skip

        def islands() -> list[dict[str, Any]]:
            return here.last_status.get("islands", [])

        until(lambda: islands() and all("contribution_effect" in each for each in islands()))
        assert {each["state"] for each in islands()} == {"live"}
        assert all(each["harmful_contributions"] >= 0 for each in islands())
        assert len(here.last_status["heldout"]) > 1, "the evaluations went on"
        assert here.last_status["unjudged"].get("raised", 0) == 0
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
