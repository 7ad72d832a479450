"""The quick forms of the benches run on real Ray, and leave no process running."""

from __future__ import annotations

import pytest

from archipelago.lab.bench.goals import GOALS
from tests.live.cli import finish, place

pytestmark = [pytest.mark.live, pytest.mark.timeout(200)]


@pytest.mark.long
def test_bench_scale_closes_every_round() -> None:
    with place() as here:
        finished = here.run("bench", "scale", "--quick", "--json")
    assert finished.code == 0, finished.err
    told = finished.json
    (row,) = told["rows"]
    assert told["learners"] == [row["learners"]] == [8]
    assert row["rounds_closed"] > 0
    assert row["mean_participants"] > 1
    assert row["rejected_contributions"] == 0
    assert row["reports_per_s"] > 0
    assert 0 < row["report_p50_ms"] <= row["report_p99_ms"]
    assert 0 < row["syncer_cpu_fraction"] < 2
    assert row["syncer_rss_bytes"] > 1e7
    assert told["late_ms"] == 50
    assert row["empty_reports_per_s"] > 0
    assert row["empty_p99_ms"] > 0
    assert 0 < row["empty_cpu_us_per_report"] < 1e5


GANG = ("--set", "islands.0.hosts=2", "--set", "islands.0.batch_size=16")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [(), GANG])
def test_bench_overhead_trains_both_ways_in_the_same_processes(more: tuple[str, ...]) -> None:
    with place() as here:
        process = here.start("bench", "overhead", "--quick", "--json", *more)
        finished = finish(process, within_s=550)
    assert finished.code == 0, finished.err
    told = finished.json
    assert told["samples"] == 1
    bare, shipped = told["rows"]
    assert (bare["every"], bare["wires"]) == (24, "int4, int4")
    assert (shipped["every"], shipped["wires"]) == (8, "bf16, bf16")
    assert told["ratio"] == bare["ratio"]
    for row in (bare, shipped):
        assert row["merges"] > 0
        assert row["ratio"] > 0
        assert row["cpu_ratio"] > 0
        assert 0 < row["thread_fraction"] < 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_bench_large_kills_a_syncer_whose_tape_is_long() -> None:
    with place() as here:
        finished = finish(here.start("bench", "large", "--quick", "--json"), within_s=500)
    assert finished.code == 0, finished.err
    told = finished.json
    assert [row["steps"] for row in told["rows"]] == [100, 1_000]
    assert told["tape_events"] > 10 * 64 * 100
    assert 0 < told["syncer_gap_s"] < 60
    assert told["peak_bytes"].keys() == {"syncer", "shard", "learner"}
    assert told["peak_bytes"].keys() >= told["formula_bytes"].keys()
    assert 0 < told["join_first_s"] <= told["join_s"] < 60
    assert told["learners_that_map"] == told["joining"] == 4
    assert 0 < told["shard_gap_s"] < 60
    assert GOALS["large"].keys() <= told.keys()


@pytest.mark.long
@pytest.mark.timeout(1100)
def test_bench_recovery_kills_learner_syncer_and_node_and_sees_them_back() -> None:
    with place() as here:
        finished = finish(here.start("bench", "recovery", "--quick", "--json"), within_s=1000)
    assert finished.code == 0, finished.err
    told = finished.json
    assert told["repeats"] == 1
    for name in ("merge_period_s", "cold_start_s", "syncer_gap_s", "node_back_s"):
        assert 0 < told[f"{name}_low"] <= told[name] <= told[f"{name}_high"]
    assert GOALS["recovery"].keys() <= told.keys()
    assert told["learner_gap_s"] < told["learner_back_s"]  # the others continued
