"""Tests of fault plans before they reach a run; tests/live carries such plans out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.schema import Harm, PlannedFault
from cluster.fleet.fault_plan import FaultPlan
from cluster.launch.chaos import ANY, at_random, read_plan
from coordinator.errors import UserMistake


def test_plan_is_sorted_by_time(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[[faults]]\nafter_s = 9.0\nkind = "kill"\nisland = "syncer"\n'
        '[[faults]]\nafter_s = 2.5\nkind = "stop"\nisland = "*"\nfor_s = 3.0\n'
    )
    told = [
        (attack.after_s, attack.kind, attack.island, attack.for_s) for attack in read_plan(path)
    ]
    assert told == [(2.5, "stop", "*", 3.0), (9.0, "kill", "syncer", 20.0)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[faults", "is not valid TOML"),
        (
            '[[faults]]\nkind = "kill"\nisland = "a"\n',
            r"faults\.0\.after_s: is missing: the seconds",
        ),
        (
            '[[faults]]\nafter_s = 1.0\nat_step = 3\nkind = "kill"\nisland = "a"\n',
            r"faults\.0\.at_step: is not known; at_step is for faults\.plan",
        ),
        (
            '[[faults]]\nafter_s = 1.0\nkind = "stop"\nisland = "a"\nfor_s = -2.0\n',
            r"faults\.0\.for_s: must be more than 0\.0, given -2\.0",
        ),
        ('[[faults]]\nafter_s = 1.0\nkind = "nap"\nisland = "a"\n', r"faults\.0\.kind"),
        ("", r"a list of tables \[\[faults\]\]"),
        ('[[harm]]\nafter_s = 1.0\nkind = "kill"\nisland = "a"\n', r"\[\[faults\]\]"),
    ],
)
def test_invalid_plan_is_refused_with_a_message(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UserMistake, match=says):
        read_plan(path)
    with pytest.raises(UserMistake, match="cannot be read: No such file"):
        read_plan(tmp_path / "other.toml")


def test_random_plan_is_seeded() -> None:
    kinds = ["kill", "stop", "slow"]
    plan = at_random(7, 15.0, 600.0, kinds)
    assert plan == at_random(7, 15.0, 600.0, kinds)
    assert plan != at_random(8, 15.0, 600.0, kinds)
    assert [attack.after_s for attack in plan] == [15.0 * n for n in range(1, 41)]
    assert {attack.kind for attack in plan} == {*kinds}
    assert {attack.island for attack in plan} == {ANY}


@pytest.mark.parametrize(
    ("kind", "island", "why"),
    [
        ("kill", "eu-0", None),
        ("node", "eu-0", None),
        ("kill", "fleet", None),
        ("disk", "shard-0", None),
        ("disk", "eu-0", "cannot have the fault disk; that is for syncer or shard-0"),
        ("nan", "syncer", "cannot have the fault nan; it can be disk or kill or stop"),
        ("kill", "eu-9", "names no island"),
    ],
)
def test_impossible_fault_is_refused(kind: str, island: str, why: str | None) -> None:
    said = Harm.model_validate({"kind": kind, "island": island}).misfit(["eu-0", "eu-1"])
    assert (said is None) == (why is None)
    assert why is None or why in str(said)


def test_planned_fault_happens_once_even_after_a_restart() -> None:
    first, second, t = "eu-0", "eu-1", 7
    table = {"kind": "kill", "at_step": t}
    harms = [
        PlannedFault.model_validate({**table, **more})
        for more in (
            {"island": first},
            {"island": first},
            {"island": "syncer"},
            {"island": second, "at_step": t + 1},
        )
    ]
    plan = FaultPlan(harms)
    assert plan.due_at(t, {second}) == {2: harms[2]}, "an island that is not live waits"
    assert plan.due_at(t, {second}) == {2: harms[2]}, "it could not be done: it is due until it is"
    plan.struck(2)
    assert plan.due_at(t, {first, second}) == {0: harms[0], 1: harms[1]}, "two of the same are two"
    plan.struck(0)
    plan.struck(1)
    assert plan.due_at(t, {first, second}) == {}
    again = FaultPlan(harms, plan.done)
    assert again.due_at(t, {first, second}) == {}
    assert again.due_at(t + 1, {first, second}) == {3: harms[3]}
    again.struck(3)
    assert again.done == [0, 1, 2, 3]
