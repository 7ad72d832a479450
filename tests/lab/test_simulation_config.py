"""`archipelago simulate CONFIG.toml` simulates a configured run and its fault plan."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from archipelago.lab.simulation.from_config import counterpart, plan_of, simulate
from archipelago.lab.simulation.plan import SimFault, Trouble
from cluster.config.fault_kinds import FaultKind
from cluster.config.load import load, parse
from cluster.config.schema import Config, Harm
from coordinator import contributions, orders
from coordinator.protocol import Item
from tests.given import first_of

FAULTS = Path(__file__).resolve().parents[1] / "faults.toml"
"""The fault plan that tests/live/test_run.py applies to real processes."""
SEEDS = 4


def config(*overrides: str) -> Config:
    tables = {"task": {"preset": "byte-tiny"}, "islands": [{"group": "eu", "count": 2}]}
    return parse(tables, overrides=overrides)


@pytest.mark.parametrize("seed", first_of(range(SEEDS)))
def test_fault_plan_of_the_live_test_has_no_violation(seed: int) -> None:
    known = load(FAULTS)
    result = simulate(known, seed)
    assert (result.violations, result.violated) == (0, None)
    assert result.left_out == []
    assert result.faults == len(known.faults.plan)
    assert result.t == known.run.steps
    assert result.merges >= known.run.steps // known.sync.lasting_every * known.sync.fragments // 2


def test_fault_plan_has_all_kinds_but_node() -> None:
    """The missing kind is tested with a second node, in tests/live/test_cluster.py."""
    assert {fault.kind for fault in load(FAULTS).faults.plan} == {*FaultKind} - {"node"}


@pytest.mark.long
def test_run_is_determined_by_the_seed() -> None:
    first, again, other = (simulate(load(FAULTS), seed) for seed in (1, 1, 2))
    assert first == again
    assert first.lasts_s != other.lasts_s


def test_simulates_the_configured_islands() -> None:
    plan = plan_of(
        config("islands.0.speed=0.5", "islands.0.batch_size=3", 'islands.0.region="eu"'), [], 0
    )
    assert [(t.island, t.step_s, t.windows, t.region) for t in plan.traits] == [
        ("eu-0", 2.0, 3, "eu"),
        ("eu-1", 2.0, 3, "eu"),
    ]
    assert {trait.tokens for trait in plan.traits} == {3 * Config().data.window}


def test_paced_island_is_simulated_at_its_pace() -> None:
    for step_s, expected_s in ((0.5, 1.0), (3.0, 3.0)):
        plan = plan_of(config(f"islands.0.step_s={step_s}"), [], 0)
        assert {trait.step_s for trait in plan.traits} == {expected_s}


@pytest.mark.parametrize(
    ("kind", "island", "more", "expected"),
    [
        ("kill", "eu-1", {}, Trouble.CRASH),
        ("kill", "syncer", {}, Trouble.RESTART),
        ("kill", "shard-0", {}, Trouble.SHARD),
        ("kill", "fleet", {}, "no fleet"),
        ("kill", "evaluator", {}, "no evaluator"),
        ("stop", "eu-1", {}, Trouble.HANG),
        ("stop", "syncer", {}, "no syncer to which that could happen"),
        ("disk", "shard-0", {}, Trouble.DISK),
        ("disk", "syncer", {}, "no syncer"),
        ("node", "eu-1", {}, Trouble.VANISH),
        ("slow", "eu-1", {"factor": 3.0}, Trouble.SLOW),
        ("cut", "eu-1", {}, Trouble.CUT),
        ("nan", "eu-1", {}, Trouble.NAN),
        ("scale", "eu-1", {"factor": -5000.0}, Trouble.LOUD),
        ("scale", "eu-1", {"factor": 2.0}, "no factor below 1000"),
        ("drain", "eu-1", {}, Trouble.DRAIN),
        ("preempt", "eu-1", {}, Trouble.DRAIN),
    ],
)
def test_each_fault_kind_has_a_counterpart_or_is_left_out(
    kind: str, island: str, more: dict[str, Any], expected: str
) -> None:
    found = counterpart(Harm.model_validate({"kind": kind, "island": island, **more}), config())
    if isinstance(expected, Trouble):
        assert isinstance(found, SimFault)
        assert found.trouble is expected
    else:
        assert isinstance(found, str)
        assert expected in found


def test_lock_step_has_no_counterpart_of_a_cut() -> None:
    harm = Harm.model_validate({"kind": "cut", "island": "eu-1"})
    assert "loses no words" in str(counterpart(harm, config("sync.overlap=0")))


def test_slow_fault_multiplies_the_step_time() -> None:
    """The run has one island, so the whole run is slow for that time."""
    alone = ("islands.0.count=1", "run.steps=60")
    slow = 'faults.plan=[{at_step=10, kind="slow", island="eu-0", factor=3.0, for_s=60.0}]'
    plain_s, slowed_s = (simulate(config(*alone, *more), 0).lasts_s for more in ((), (slow,)))
    assert slowed_s - plain_s == pytest.approx(60 - 60 / 3, abs=6)


def test_batch_may_be_larger_than_a_lease() -> None:
    large = config("islands.0.batch_size=100", "data.lease_windows=64", "run.steps=60")
    assert simulate(large, 0).violated is None


def test_killed_and_preempted_islands_return_and_a_drained_one_does_not() -> None:
    """If the quorum is both islands, a run continues after the others, but not after the drain."""
    both = ("sync.quorum=2", "run.steps=60")
    fault = 'faults.plan=[{{at_step=20, kind="{}", island="eu-1"}}]'
    assert simulate(config(*both, fault.format("kill")), 0).violated is None
    assert simulate(config(*both, fault.format("preempt")), 0).violated is None
    ended = simulate(config(*both, fault.format("drain")), 0)
    assert ended.violated is not None
    assert ended.violated.startswith("the run ends: ")
    assert 20 <= ended.t < 60


def test_poison_is_refused_until_its_process_ends() -> None:
    """The gate refuses poison in each life, and the judge records what was poisoned."""
    poison = 'faults.plan=[{at_step=20, kind="nan", island="eu-1"}]'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contributions.gate, "inspect", lambda *_, **__: None)
        assert str(simulate(config(poison), 0).violated).startswith("the gate: ")
    assert simulate(config(poison), 0).violated is None


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["simulate", *arguments])
    assert isinstance(end.value.code, int)
    out, err = capsys.readouterr()
    return end.value.code, out, err


@pytest.mark.long
def test_command_prints_its_result_and_fails_on_a_violation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = asdict(simulate(load(FAULTS), 3))
    code, out, err = cli(capsys, str(FAULTS), "--seed", "3", "--json")
    assert (code, json.loads(out), err) == (0, wanted, "")
    monkeypatch.setattr(orders, "weigh", lambda items, **_: tuple(Item(c, math.pi) for c in items))
    code, out, _ = cli(capsys, str(FAULTS), "--json")
    result = json.loads(out)
    assert (code, result["violations"]) == (1, 1)
    assert result["violated"].startswith("weights are tokens^2/steps: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((str(FAULTS), "--fuzz", "3"), "either CONFIG.toml or --fuzz N"),
        ((str(FAULTS), "--for", "3"), "either CONFIG.toml or --fuzz N"),
        (("--schedule", "7/1", "--for", "3"), "--schedule SEED/NUMBER is one schedule"),
        (("--set", "run.steps=3"), "--set changes a configuration"),
        ((str(FAULTS), "--set", "sync.quorm=3"), "did you mean"),
        (("nowhere.toml",), "nowhere.toml"),
    ],
)
def test_mistake_gives_one_message(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = cli(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
