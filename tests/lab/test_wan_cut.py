"""The parts of the run with a cut of `bench wan` that need no network."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from archipelago.cli.bench_output import tell
from archipelago.cli.bench_wan import further_runs
from archipelago.cli.main import app
from archipelago.lab.bench.wan_cut import BATCH, WINDOW, CutPlan, config_of, taking_part
from coordinator.errors import UserMistake


def test_every_region_has_one_island_with_its_pace() -> None:
    plan = CutPlan(0.0, regions=3, step_s=0.5, slowness=2.0)
    config = config_of(plan, "/nowhere")
    assert config.sync.shard_labels is None
    assert [each.group for each in config.islands] == ["r0", "r1", "r2"]
    assert [each.label_selector for each in config.islands] == [
        {"region": name} for name in plan.names
    ]
    assert [each.step_s for each in config.islands] == [0.5, 0.5, 1.0]
    assert sum(plan.tokens_per_s) == pytest.approx(2.5 * BATCH * WINDOW / 0.5)


def test_spread_shards_are_one_in_each_region_with_a_store_for_all() -> None:
    config = config_of(CutPlan(30.0, regions=3, spread=True), "/everywhere")
    assert config.sync.shards == 3
    assert config.sync.shard_labels == {"region": "in(r0,r1,r2)"}
    assert config.durability.dir == "/everywhere"


def test_region_takes_part_if_it_is_in_the_last_merge_of_every_fragment() -> None:
    def look(*participants: list[str]) -> dict[str, Any]:
        return {"fragments": [{"participants": each} for each in participants]}

    assert taking_part(look(["r0-0", "r1-0"], ["r1-0"])) == {"r1"}
    assert taking_part(look(["r0-0"], [])) == set()
    assert taking_part(look()) == set(), "there is no model yet"


def test_full_bench_has_both_cuts_a_slow_region_and_bulk() -> None:
    assert [*further_runs(4, print, full=False)] == ["cut"]
    names = [*further_runs(4, print, full=True)]
    assert names == ["cut", "long_cut", "slow_region", "bulk"]


@pytest.mark.parametrize("other", ["--full", "--quick"])
def test_cut_is_a_run_of_its_own(other: str) -> None:
    found = CliRunner().invoke(app, ["bench", "wan", "--cut", "60", other])
    assert isinstance(found.exception, UserMistake)
    assert "--cut is a run of its own" in str(found.exception)


def test_window_needs_a_cut() -> None:
    found = CliRunner().invoke(app, ["bench", "wan", "--window", "300"])
    assert isinstance(found.exception, UserMistake)
    assert "give --cut SECONDS" in str(found.exception)


def test_figures_of_a_part_are_printed_under_its_name() -> None:
    console = Console(width=80, record=True)
    tell("none", {"speedup": 3.0, "cut": {"back_s": 24.5}}, console, as_json=False)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines == [["speedup", "3"], ["cut"], ["back_s", "24.5"]]
