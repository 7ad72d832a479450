"""A plan from a cluster file is within 2 % of the best, and `run` accepts it.

An impossible file is refused, with the nearest possible value.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import jax
import pytest

from archipelago.cli.main import main
from archipelago.cli.planning import sizes_of
from archipelago.lab.planner import loss_cost as loss
from archipelago.lab.planner import (
    plan,
    plan_choice,
    plan_reasons,
    plan_replay,
    setting_traffic,
    settings,
)
from archipelago.lab.planner.compare import compare
from archipelago.lab.planner.configurations import Configuration
from archipelago.lab.planner.objective import SimulationEffort, Simulator
from cluster.config.load import parse
from cluster.config.machines import ClusterFile, load_cluster, parse_cluster
from coordinator.errors import UserMistake

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster.toml"
NEAR = 1.02
SWEPT = (*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128)


def tables(
    *,
    chips: int = 16384,
    gbit_s: float = 100.0,
    groups: Mapping[str, object] | None = None,
    **training: object,
) -> dict[str, Any]:
    group = {"group": "a", "region": "here", "chips": chips, "slice_chips": 256}
    return {
        "regions": [{"name": "here", "gbit_s": gbit_s}],
        "groups": [{**group, **(groups or {})}],
        "training": {"parameters": 12e9, "tokens": 1e12, "batch_tokens": 16e6, **training},
    }


def two_regions(gbit_s: float, **training: Any) -> dict[str, Any]:
    found = tables(**training)
    found["regions"] = [
        {"name": "here", "gbit_s": gbit_s, "usd_per_gb": 0.05, "latency_ms": 20.0},
        {"name": "there", "gbit_s": gbit_s, "usd_per_gb": 0.05, "latency_ms": 40.0},
    ]
    found["groups"].append(
        {"group": "b", "region": "there", "chips": 8192, "slice_chips": 128, "usd_per_hour": 2.0}
    )
    found["groups"][0]["usd_per_hour"] = 2.0
    return found


SCENARIOS: dict[str, dict[str, Any]] = {
    "the paper's 1.2M chips": tables(chips=4688 * 256, parameters=5e9, step_s=1.0),
    "a million chips, a small model": tables(chips=2**20, parameters=1e9, tokens=1e11),
    "slices that are a whole learner": tables(
        chips=8 * 9216, groups={"slice_chips": 9216, "mtbi_years": 0.5}
    ),
    "two regions, a thin link": two_regions(4.0, parameters=12e9, batch_tokens=64e6),
    "two regions, the cheapest": {
        **two_regions(40.0, parameters=12e9, batch_tokens=64e6),
        "objective": {"minimise": "cost"},
    },
}


def cluster_of(given: Mapping[str, Any]) -> ClusterFile:
    return parse_cluster(given, "cluster.toml")


@pytest.mark.parametrize("name", SCENARIOS)
def test_plan_is_within_2_percent_of_the_best_of_a_full_sweep(name: str) -> None:
    """The sweep has other traces, and every number of learners up to 16."""
    cluster = cluster_of(SCENARIOS[name])
    simulator = Simulator(cluster, 0, plan.PLANNED)
    works = [w for s in settings.settings(cluster) if not (w := simulator.worth(s)).why]
    best = plan_choice.chosen(works)
    other = Simulator(cluster, 12345, SimulationEffort(2, 3_000))
    swept = [other.worth(s) for s in settings.settings(cluster, SWEPT)]
    assert len({worth.setting for worth in swept}) > len(works) / 2
    least = min(worth.objective for worth in swept)
    assert other.worth(best.setting).objective <= NEAR * least, best.setting


@pytest.mark.long
def test_planned_configuration_is_accepted_by_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(EXAMPLE), "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    pasted = {**tomllib.loads(said["toml"]), "task": {"preset": "byte-tiny"}}
    config = parse(pasted)
    assert len(config.island_names) == said["learners"]
    assert config.sync.every == said["every"]
    assert config.sync.wire_up == said["wire"]
    assert 0 < said["goodput"] < 100
    assert said["uptime"] > 99.9
    assert max(said["gbit_s_by_region"].values()) <= 20
    assert len(said["replays"]) == 3
    for replay in said["replays"]:
        assert replay["rounds_goodput"] == pytest.approx(replay["chips_goodput"], abs=0.5)
    assert said["runner_up"]["learners"] != said["learners"]
    assert len(said["reasons"]) >= 6
    auto = said["auto"]
    assert auto["fits"]
    assert auto["busiest"]["use"] <= 0.7
    assert any(
        f"H = {auto['every']} and P = {auto['fragments']} here" in r for r in said["reasons"]
    )
    assert any(not change["same"] for change in said["changes"])


@pytest.mark.parametrize(
    ("groups", "spared"),
    [
        ({}, {(7, 1)}),  # one of eight learners makes room; fewer have several slices each
        ({"learners": 8}, set()),  # the file fixes a learner on each slice
        ({"learners": 4}, set()),  # a learner that loses a slice has another
        ({"chips": 256}, set()),
    ],
)
def test_spares_are_offered_only_where_a_slice_is_left_for_them(
    groups: dict[str, object], spared: set[tuple[int, int]]
) -> None:
    cluster = cluster_of(tables(chips=2048, groups=groups))
    slices = cluster.groups[0].chips // 256
    offered = [*settings.settings(cluster)]
    assert len(offered) == len(set(offered))
    assert all(setting.total + setting.spares <= slices for setting in offered)
    assert {(each.total, each.spares) for each in offered if each.spares} == spared


def test_traffic_and_memory_of_a_setting_match_hand_computed_values() -> None:
    """1 B parameters in bf16, H = P = 24, steps of 2 s: 16e9 / 24 / 2 bits a second and island."""
    cluster = cluster_of(
        {**two_regions(10.0, parameters=1e9, step_s=2.0), "syncer": {"memory_gb": 8.0}}
    )
    setting = settings.Setting((3, 2), 24, "bf16", 0)
    moving = setting_traffic.traffic(setting, cluster)
    one = 16 / 24 / 2
    assert moving.syncer == "here"
    assert moving.island_gbit_s == pytest.approx(one)
    assert moving.gbit_s == pytest.approx({"here": 2 * one, "there": 2 * one})
    assert moving.busiest == pytest.approx(2 * one / 10)
    assert moving.egress_gb_per_hour == pytest.approx(2 * 2 * one * 3600 / 8)
    assert moving.egress_usd_per_hour == pytest.approx(0.05 * 2 * 2 * one * 3600 / 8)
    holding = setting_traffic.shards(setting, moving, cluster)
    assert holding.gbit_s == pytest.approx(5 * one)
    # 12 bytes, four differences of 2 bytes, and three of 24 fragments for five contributions of 2
    # bytes
    assert holding.memory_gb == pytest.approx(12 + 8 + 10 * 3 / 24)
    assert holding.count == 3
    thin = cluster_of({**two_regions(10.0, parameters=1e9, step_s=2.0), "syncer": {"gbit_s": 0.5}})
    assert setting_traffic.shards(setting, moving, thin).count == 4
    simulator = Simulator(cluster, 0, SimulationEffort(1, 200))
    worth = simulator.worth(setting)
    rate = cluster.training.batch_tokens / 2.0
    assert worth.tokens_per_s == pytest.approx(rate * worth.goodput * worth.merged)
    assert worth.hours == pytest.approx(worth.tokens / worth.tokens_per_s / 3600)
    hourly = (16384 + 8192) * 2.0 + moving.egress_usd_per_hour
    assert worth.usd == pytest.approx(worth.hours * hourly)


def four_regions(gbit_s: float, **training: Any) -> dict[str, Any]:
    found = tables(**training)
    names = ("eu", "us", "asia", "africa")
    found["regions"] = [{"name": name, "gbit_s": gbit_s, "latency_ms": 40.0} for name in names]
    found["groups"] = [
        {"group": name, "region": name, "chips": 1024, "slice_chips": 256, "learners": 1}
        for name in names
    ]
    return found


def test_shards_are_in_all_regions_only_if_one_region_cannot_carry_them() -> None:
    """One learner in each of four regions: 3 of 4 exchanges cross the link of the only shard.

    With a shard in each region 3/4 cross a link for its own shard, and 3/4 for its learner.
    """
    one = 16 / 24 / 2  # Gbit/s of a learner: 1 B parameters in bf16, H = P = 24, steps of 2 s
    setting = settings.Setting((1, 1, 1, 1), 24, "bf16", 0)
    given = {"parameters": 1e9, "step_s": 2.0}
    wide = setting_traffic.traffic(setting, cluster_of(four_regions(3.1 * one, **given)))
    assert wide.shard_regions == ("eu",)
    assert wide.gbit_s == pytest.approx({"eu": 3 * one, "us": one, "asia": one, "africa": one})
    cluster = cluster_of(four_regions(1.6 * one, **given))
    thin = setting_traffic.traffic(setting, cluster)
    assert thin.shard_regions == ("eu", "us", "asia", "africa")
    assert list(thin.gbit_s.values()) == pytest.approx([1.5 * one] * 4)
    assert thin.island_gbit_s == pytest.approx(0.75 * one)
    assert sum(thin.gbit_s.values()) == pytest.approx(sum(wide.gbit_s.values())), "as many bytes"
    assert setting_traffic.shards(setting, thin, cluster).count == 4
    none = setting_traffic.traffic(setting, cluster_of(four_regions(1.4 * one, **given)))
    assert none.busiest == pytest.approx(1.5 / 1.4), "the nearest that could do"


def test_two_regions_gain_nothing_by_a_shard_in_each() -> None:
    cluster = cluster_of(two_regions(0.1, parameters=1e9, step_s=2.0))
    moving = setting_traffic.traffic(settings.Setting((1, 1), 24, "bf16", 0), cluster)
    assert moving.busiest > settings.SLACK
    assert moving.shard_regions == ("here",)


def test_plan_with_a_shard_in_each_region_can_be_pasted() -> None:
    cluster = cluster_of(four_regions(0.1, parameters=1e9, tokens=1e11, step_s=2.0))
    made = plan.plan(cluster, 0)
    assert made.best.moving.spread
    pasted = tomllib.loads(made.toml)
    assert pasted["sync"]["shard_labels"] == {"region": "in(eu,us,asia,africa)"}
    assert pasted["sync"]["shards"] % 4 == 0
    assert "dir = " in made.toml, "shards elsewhere need a durable store"
    pasted["durability"]["dir"] = "/mnt/shared"
    config = parse({**pasted, "task": {"preset": "byte-tiny"}}, origin="plan", overrides=())
    assert config.sync.shard_labels == {"region": "in(eu,us,asia,africa)"}
    assert any(each.startswith("shards in eu, us, asia, africa:") for each in made.reasons)


def test_reasons_state_that_the_tokens_to_the_target_do_not_depend_on_the_interval() -> None:
    cluster = cluster_of(tables(parameters=1e9, tokens=1e11, step_s=2.0))
    simulator = Simulator(cluster, 0, SimulationEffort(1, 200))
    short, long = (simulator.worth(settings.Setting((4,), h, "int4", 0)) for h in (24, 192))
    assert short.tokens == long.tokens
    for worth in (short, long):
        (law,) = (r for r in plan_reasons.reasons(cluster, worth, [worth]) if "law of the gap" in r)
        assert "the tokens to the target, and with them hours and dollars, depend on M" in law


def test_auto_interval_of_a_setting_is_the_choice_of_a_run_on_its_links() -> None:
    """12B parameters in int4 over 2 Gbit/s with steps of 5 s: three learners cross the hub's."""
    given = two_regions(2.0, parameters=12e9, step_s=5.0)
    cluster = cluster_of({**given, "syncer": {"gbit_s": 100.0}})
    auto = setting_traffic.auto_interval(settings.Setting((3, 3), 24, "int4", 0), cluster)
    use = 12e9 * 4.25 * 3 / (auto.every * 5.0) / 2e9
    assert (auto.every, auto.fragments, auto.fits) == (24, 24, True)
    assert auto.busiest.use == pytest.approx(use)
    assert auto.busiest.link.exchanges == 3
    thin = cluster_of(two_regions(0.01, parameters=12e9, step_s=5.0))
    assert not setting_traffic.auto_interval(settings.Setting((3, 3), 24, "int4", 0), thin).fits


def test_auto_interval_counts_the_shards_of_each_region() -> None:
    given = four_regions(0.1, parameters=1e9, tokens=1e11, step_s=2.0)
    cluster, setting = cluster_of(given), settings.Setting((1, 1, 1, 1), 24, "int4", 0)
    moving = setting_traffic.traffic(setting, cluster)
    assert len(moving.shard_regions) == 4
    auto = setting_traffic.auto_interval(setting, cluster)
    assert auto.busiest.link.exchanges == pytest.approx(1.5)
    needs_gbit_s = moving.gbit_s[moving.where] * setting.every / auto.every
    assert auto.busiest.needs_bit_s == pytest.approx(1e9 * needs_gbit_s)


def test_cluster_is_simulated_in_all_configurations(tmp_path: Path) -> None:
    cluster = load_cluster(EXAMPLE)
    rows = {row.configuration: row for row in compare(cluster, 0, seeds=2, failures=300)}
    assert rows.keys() == {*Configuration}
    goodput = [rows[c].goodput for c in (Configuration.NOT_ELASTIC, Configuration.ELASTIC)]
    assert goodput[0] < goodput[1] < rows[Configuration.DECOUPLED].goodput
    assert rows[Configuration.DILOCO].goodput < rows[Configuration.DECOUPLED].goodput


@pytest.mark.parametrize("learners", [1, 2, 4, 8])
def test_scaling_law_per_replica_count_agrees_with_the_joint_fit(learners: int) -> None:
    """arXiv:2503.09799 has both: 19.226 N^-0.0985 M^0.0116 is the joint fit over all M."""
    for parameters in (35e6, 2.4e9, 10e9):
        a, power = loss.REPLICAS[learners]
        joint = 19.226 * parameters**-0.0985 * learners**0.0116
        assert a * parameters**power == pytest.approx(joint, rel=0.01)


def test_loss_grows_with_islands_and_less_for_large_models() -> None:
    for parameters in (35e6, 1e9):
        ratios = [loss.ratio(parameters, m) for m in (1, 2, 4, 8, 16, 32)]
        assert ratios == sorted(ratios)
        assert ratios[0] == 1.0
    assert loss.ratio(2.4e9, 8) == pytest.approx(1.0091, abs=1e-4)  # by the fit of M = 8
    assert loss.ratio(35e6, 8) == pytest.approx(1.0372, abs=1e-4)
    target = loss.data_parallel(1e9, 2e10)
    assert loss.tokens_to(1e9, 1, target) == pytest.approx(2e10)
    assert loss.tokens_to(1e9, 8, target) > 1.2 * 2e10
    assert loss.tokens_to(1e9, 8, 1.7) == float("inf")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "negative": (tables(groups={"mtbi_years": -1.0}), "groups.0.mtbi_years: must be more than 0"),
    "absurd": (tables(parameters=1e30), "training.parameters: must be at most"),
    "not a number": (tables(groups={"chips": "many"}), "must be a whole number"),
    "unknown": (tables(groups={"slice_chip": 3}), "did you mean slice_chips?"),
    "slices": (
        tables(chips=1000),
        "slices of 256 do not divide 1000 chips; the nearest that can: 768 or 1024 chips, or "
        "slices of 250",
    ),
    "learners": (
        tables(groups={"learners": 65}),
        "65 learners cannot share 64 slices; at most 64 can",
    ),
    "uneven": (
        tables(groups={"learners": 33}),
        "33 learners cannot share 64 slices evenly; the nearest that can: 32",
    ),
    "region": (tables(groups={"region": "her"}), "did you mean here?"),
    "interruptions": (
        tables(chips=2**20, groups={"mtbi_years": 1e-5}),
        "groups: their chips are interrupted 3.32e+03 times a second",
    ),
    "batch": (tables(tokens=1e6), "one step would take 1.6e+07 tokens of 1e+06"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_bad_input_with_the_nearest_possible_value(name: str) -> None:
    given, words = REFUSED[name]
    with pytest.raises(UserMistake) as refused:
        cluster_of(given)
    assert words in str(refused.value)


def test_reports_every_problem_at_once() -> None:
    given = tables(groups={"mtbi_years": -1.0, "chips": 0}, parameters=-3.0)
    with pytest.raises(UserMistake) as refused:
        cluster_of(given)
    assert str(refused.value).startswith("cluster.toml: 3 problems\n")


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "links": (two_regions(0.01), "no setting can live with these links"),
    "loss": (tables(target_loss=1.2), "is not reached by 1.2e+10 parameters with any number"),
    "tokens": (tables(target_loss=1.9), "training.tokens: 1e+12 do not reach a loss of 1.9"),
    "days": (tables(days=0.1), "days are not enough: the fastest"),
    "memory": (
        {**tables(parameters=1e13, tokens=1e14), "syncer": {"memory_gb": 64.0}},
        "no setting fits its shards",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_explains_why_no_plan_is_possible(name: str) -> None:
    given, words = IMPOSSIBLE[name]
    with pytest.raises(UserMistake) as refused:
        plan.plan(cluster_of(given), 0)
    assert words in str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "points"),
    [
        (tables(chips=256), 1.0),
        (tables(chips=512, groups={"mtbi_years": 900.0}), 1.0),
        (tables(chips=4096, batch_tokens=1e5), 1.0),
        (tables(chips=4096, step_s=600.0), 1.2),  # chips layer: one without slices waits a step
        (tables(groups={"learners": 4}), 1.0),
        ({**tables(), "recovery": {"weibull_shape": 0.5, "returns": "exponentiated-weibull"}}, 1.0),
    ],
    ids=["one slice", "hardly a failure", "short steps", "long steps", "learners given", "bursts"],
)
def test_plans_unusual_clusters(
    given: dict[str, Any], points: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both layers predict the same goodput, to this many percentage points."""
    monkeypatch.setattr(plan_replay, "REPLAY_EVENTS", 1500)
    monkeypatch.setattr(plan, "PLANNED", SimulationEffort(2, 1000))
    monkeypatch.setattr(plan_reasons, "QUICK", SimulationEffort(1, 200))
    made = plan.plan(cluster_of(given), 1)
    said = made.as_json()
    assert 0 < made.best.goodput <= 1
    assert said["hours"] == pytest.approx(made.best.hours)
    for replay in made.replays:
        assert replay.rounds_goodput == pytest.approx(replay.chips_goodput, abs=points)


def test_sizes_of_a_preset_replace_those_of_the_file(tmp_path: Path) -> None:
    """Twelve billion parameters have 47 GB in float32; their sizes need no array of them."""
    path = tmp_path / "cluster.toml"
    path.write_text(
        "[training]\nparameters = 1e9\ntokens = 1e12\nbatch_tokens = 16e6\n"
        '[[regions]]\nname = "here"\ngbit_s = 100.0\n'
        '[[groups]]\ngroup = "a"\nregion = "here"\nchips = 1024\nslice_chips = 256\n'
    )
    sizes_of("gemma-0.1m")  # the imports
    arrays, peak_kib = len(jax.live_arrays()), getrusage(RUSAGE_SELF).ru_maxrss
    dense = load_cluster(path, sizes_of("gemma-3-12b"))
    sparse = load_cluster(path, sizes_of("gemma-4-26b-a4b"))
    assert len(jax.live_arrays()) == arrays
    assert getrusage(RUSAGE_SELF).ru_maxrss - peak_kib < 300 * 1024
    assert dense.training.parameters == dense.training.active_parameters == 11_765_788_416
    active = sparse.training.active_parameters
    assert active is not None
    assert active < 5e9 < 25e9 < sparse.training.parameters
    whole = sparse.training.model_copy(update={"active_parameters": None})
    slower = sparse.model_copy(update={"training": whole})
    ratio = sparse.training.parameters / active
    assert settings.step_s(slower) == pytest.approx(ratio * settings.step_s(sparse))
    assert load_cluster(path).training.parameters == 1e9


def test_plan_takes_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(EXAMPLE.read_text())
    with pytest.raises(SystemExit) as done:
        main(["plan", str(path), "--model", "gemma-3-12"])
    assert done.value.code == 2
    assert "did you mean 'gemma-3-12b'" in capsys.readouterr().err
    more = tables(active_parameters=13e9)
    with pytest.raises(UserMistake, match=r"1.3e\+10 are more than all 1.2e\+10 parameters"):
        cluster_of(more)


def test_refuses_a_run_configuration_as_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text("[run]\nsteps = 4\n[[islands]]\ncount = 2\n")
    with pytest.raises(UserMistake, match=r"is the configuration of a run") as refused:
        load_cluster(path)
    assert len(str(refused.value).splitlines()) == 1
