"""The parts of `bench wan --bytes` that need no network."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from archipelago.cli.main import app
from archipelago.lab.bench.goals import GOALS, verdict
from archipelago.lab.bench.wan_bytes import (
    REGIONS,
    BytesMeasured,
    BytesPlan,
    audited_bytes,
    config_of,
    rows_of,
)
from archipelago.lab.checks.audit_result import RegionAudit, Traffic, TrafficKind
from coordinator.errors import UserMistake


def test_each_region_has_one_island_that_the_audit_counts_apart() -> None:
    config = config_of(BytesPlan(steps=48), every=4)
    assert [(each.group, each.region) for each in config.islands] == [(r, r) for r in REGIONS]
    assert config.sync.every == 4
    assert config_of(BytesPlan(steps=48), every=48).sync.every == 48


def test_bytes_of_a_direction_are_those_of_all_its_payloads() -> None:
    region = RegionAudit("r1")
    region.up[TrafficKind.DELTA] = Traffic(3, 700)
    region.up[TrafficKind.MOMENTS] = Traffic(3, 50)
    region.up[TrafficKind.REPORT] = Traffic(9, 2_000)
    region.down[TrafficKind.DIFFERENCE] = Traffic(3, 800)
    assert audited_bytes(region, "up") == 750
    assert audited_bytes(region, "down") == 800


@pytest.mark.parametrize(
    ("payload", "relayed", "explained", "reached"),
    [
        (6_370, 0, 1.0, True),
        (5_770, 0, 0.94, False),
        (7_070, 0, 1.07, False),
        (5_770, 600, 1.0, True),
        (6_370, 600, 1.06, False),
    ],
)
def test_payload_and_background_must_be_what_the_interface_counts(
    payload: int, relayed: int, explained: float, reached: bool
) -> None:
    key = ("r1", "up")
    busy = BytesMeasured({key: 10_000}, {key: 30}, {key: payload}, {key: relayed})
    still = BytesMeasured({key: 3_400}, {key: 5}, {key: 300}, {key: 1_120})
    (row,) = rows_of(busy, still)
    assert row["background_bytes"] == 1_980
    assert row["header_bytes"] == 25 * 66
    assert row["explained"] == pytest.approx(explained)
    figures = {"audit_deviation": abs(row["explained"] - 1)}
    said = verdict(GOALS["bytes"]["audit_deviation"], "audit_deviation", figures)
    assert (said == "reached") is reached


@pytest.mark.parametrize("other", [["--quick"], ["--cut", "60"]])
def test_comparison_of_bytes_is_a_run_of_its_own(other: list[str]) -> None:
    found = CliRunner().invoke(app, ["bench", "wan", "--bytes", *other])
    assert isinstance(found.exception, UserMistake)
    assert "is a run of its own" in str(found.exception)
