"""The budget of a run: its check, its amounts, and the end of a run that has used them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.config.load import parse
from cluster.fleet.budget import Spent, reason_to_stop, spent
from cluster.fleet.status_view import starting_status
from cluster.names import SYNCER
from cluster.status import RunStatus
from coordinator.errors import UserMistake
from tests.cluster.test_controller import (
    FINISHED,
    FakeCluster,
    at_once,
    config_of,
    fleet_of,
    seen,
)

assert at_once, "a fixture that is used by its name alone"
GROUPS: list[dict[str, Any]] = [
    {"group": "eu", "count": 2, "usd_per_hour": 2.0, "resources": {"GPU": 4}},
    {"group": "us", "usd_per_hour": 0.5, "resources": {"GPU": 8}},
]
HOURS = {"eu": 10.0, "us": 5.0}
"""40 hours of devices in each group: 80 and 20 dollars."""


def config(budget: Mapping[str, float], groups: Any = GROUPS) -> Any:
    tables = {"run": {"budget": budget}, "task": {"preset": "byte-tiny"}, "islands": groups}
    return parse(tables, origin="test", overrides=())


def test_cost_is_that_of_the_devices_that_islands_hold() -> None:
    assert spent(config({}), HOURS) == Spent(80.0, 100.0)
    unpriced = [{**GROUPS[0]}, {"group": "us", "resources": {"GPU": 8}}]
    assert spent(config({}, unpriced), HOURS) == Spent(80.0, None)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({}, None),
        ({"device_hours": 80.1, "usd": 100.1}, None),
        ({"device_hours": 80.0}, "run.budget.device_hours: 80 are used"),
        ({"usd": 100.0}, "run.budget.usd: 100 dollars are used"),
        ({"device_hours": 1e9, "usd": 99.0}, "run.budget.usd: 99 dollars are used"),
    ],
)
def test_run_ends_once_an_amount_is_used(budget: dict[str, float], reason: str | None) -> None:
    within = config(budget)
    status = starting_status("run", within)
    assert reason_to_stop(within, status) is None, "nothing is measured yet"
    assert reason_to_stop(within, {**status, "island_hours": HOURS}) == reason


def test_dollars_need_prices_of_all_groups() -> None:
    with pytest.raises(UserMistake, match=r"run.budget.usd: no price is known for us; give usd_"):
        config({"usd": 5.0}, [GROUPS[0], {"group": "us"}])
    assert config({"device_hours": 5.0}, [{"group": "us"}]).run.budget is not None
    with pytest.raises(UserMistake, match=r"run.budget.device_hours: must be more than 0"):
        config({"device_hours": 0.0})


def test_fleet_asks_the_syncer_to_stop_once(tmp_path: Path) -> None:
    class Working(FakeCluster):
        """A cluster whose islands have held devices for an hour more at each look."""

        def status(self) -> RunStatus:
            return {**super().status(), "island_hours": {"eu": float(self.looks)}}

    live = seen(eu_0="live", eu_1="live")
    cluster = Working(config_of(run={"budget": {"device_hours": 4.0}}), [live] * 8 + [FINISHED])
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")
    fleet.keep()
    assert cluster.heard("stop") == [(SYNCER, ("run.budget.device_hours: 4 are used",))]
    assert fleet.outcome is not None
    assert fleet.outcome.error is None, "it ends gracefully, with its summary"
