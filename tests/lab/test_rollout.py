"""The stages of a roll-out: each criterion fails alone, and the facts come from a run's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from archipelago.lab.checks.rollout import (
    LEAST_UPTIME,
    REGIONS,
    Harmed,
    StageFacts,
    criteria,
    verdict,
)
from archipelago.lab.report.run_record import read_run
from archipelago.lab.report.stage_facts import stage_facts
from cluster.config.load import parse
from cluster.fleet.event_kinds import EventKind, RunEvent
from cluster.fleet.metrics_row import COLUMNS
from cluster.fleet.run_events import InjectedFault, events_between, fault_events
from cluster.fleet.trouble_events import DOWN, link_events
from cluster.status import IslandState, RunStatus
from cluster.storage.files import json_text
from coordinator.errors import UserMistake
from tests.cluster.test_run_records import FIGURES, island, status

NAMES = tuple(f"region-{number}" for number in range(8))
SOUND = StageFacts(
    run="eight",
    ended=True,
    t=100,
    steps=100,
    regions=NAMES,
    bytes_per_token=109.0,
    planned_bytes_per_token=100.0,
    heldout_loss=1.5,
    initial_loss=5.5,
    expected_loss=1.5,
    drained=("a-0",),
    kills=(Harmed("b-0", True),),
    cuts=(Harmed("c-0", True),),
    uptime=0.995,
)


def failed(facts: StageFacts, stage: int) -> list[str]:
    return [each.name for each in criteria(facts, stage) if not each.passed]


@pytest.mark.parametrize("stage", REGIONS)
def test_sound_run_passes_every_stage(stage: int) -> None:
    assert failed(SOUND, stage) == []
    found = verdict(SOUND, stage)
    assert found.passed
    assert found.next_stage == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"ended": False}, "end"),
        ({"t": 99}, "end"),
        ({"regions": NAMES[:1]}, "regions"),
        ({"bytes_per_token": 111.0}, "bytes"),
        ({"bytes_per_token": 0.0}, "bytes"),
        ({"bytes_per_token": None}, "bytes"),
        ({"planned_bytes_per_token": None}, "bytes"),
        ({"heldout_loss": 1.51}, "loss"),
        ({"heldout_loss": None}, "loss"),
        ({"drained": ()}, "drain"),
        ({"kills": ()}, "kill"),
        ({"kills": (Harmed("b-0", False),)}, "kill"),
        ({"kills": (Harmed("a-0", True), Harmed("b-0", False))}, "kill"),
        ({"cuts": ()}, "cut"),
        ({"cuts": (Harmed("link eu", False),)}, "cut"),
        ({"uptime": 0.949}, "uptime"),
        ({"uptime": None}, "uptime"),
        ({"alerts": ("no merges",)}, "alerts"),
        ({"unsound_ends": ("b-0 is set aside",)}, "islands"),
        ({"expected_loss": None, "initial_loss": 1.5}, "loss"),
        ({"expected_loss": None, "initial_loss": None}, "loss"),
    ],
)
def test_each_criterion_fails_alone(changes: dict[str, Any], name: str) -> None:
    facts = replace(SOUND, **changes)
    for stage in REGIONS:
        assert failed(facts, stage) == [name]
    found = verdict(facts, 1)
    assert not found.passed
    (criterion,) = [each for each in found.criteria if not each.passed]
    assert criterion.remedy, "the user learns what to do"


@pytest.mark.parametrize("regions", range(9))
def test_stage_needs_its_number_of_regions(regions: int) -> None:
    facts = replace(SOUND, regions=NAMES[:regions])
    passed = [stage for stage in REGIONS if verdict(facts, stage).passed]
    assert passed == [stage for stage, least in REGIONS.items() if regions >= least]


def test_later_stages_need_more_uptime() -> None:
    facts = replace(SOUND, uptime=0.97)
    assert [stage for stage in REGIONS if verdict(facts, stage).passed] == [1]
    assert sorted(LEAST_UPTIME.values()) == list(LEAST_UPTIME.values())


def test_missing_for_the_next_stage() -> None:
    found = verdict(replace(SOUND, regions=NAMES[:3], uptime=0.96), 1)
    assert found.passed
    assert [each.name for each in found.next_stage] == ["regions", "uptime"]


def test_loss_must_fall_if_none_is_expected() -> None:
    assert failed(replace(SOUND, expected_loss=None), 1) == []
    assert failed(replace(SOUND, expected_loss=None, heldout_loss=5.6), 1) == ["loss"]
    assert failed(replace(SOUND, initial_loss=None), 1) == [], "the expected loss is enough"


# --- facts from the files of a run ----------------------------------------------------------------

CONFIG = parse({
    "run": {"steps": 40},
    "task": {"preset": "byte-tiny"},
    "sync": {"every": 8, "wire_up": "bf16", "wire_down": "bf16"},
    "islands": [{"group": "eu", "region": "eu"}, {"group": "us", "count": 2}],
})  # fmt: skip
PARAMETERS, TOKENS_PER_STEP = 1000, 256
STEPS = 40
PLANNED = PARAMETERS * (2 + 2) / 8 / TOKENS_PER_STEP


def row(t: int, contributions: dict[str, int]) -> dict[str, Any]:
    islands = [
        {"island": name, "group": name[:2], "state": "live", "steps": t, "contributions": count}
        for name, count in contributions.items()
    ]
    figures = dict.fromkeys(COLUMNS, 0)
    return {**figures, "run": "mine", "t": t, "elapsed_s": float(t), "islands": islands}


def line(at_s: float, kind: EventKind, text: str, island: str | None = None, why: str = "") -> str:
    return seen(at_s, RunEvent(kind, why, text, island, island and island[:2]))


def seen(at_s: float, event: RunEvent) -> str:
    status: Any = {"run": "mine", "t": int(at_s), "elapsed_s": at_s}
    typed: RunStatus = status
    return json_text(event.seen(typed, 0.0))


def fault(at_s: float, kind: str, target: str, for_s: float | None = None) -> str:
    """Return the line that the fleet writes of an injected fault."""
    injected = InjectedFault(kind, target, "the plan", for_s)
    (event,) = fault_events([injected], {target: target[:2]})
    return seen(at_s, event)


def changed(at_s: float, name: str, *states: IslandState, why: str = "") -> list[str]:
    """Return the lines of an island that is in one state after another; at the end it is gone."""
    looks = [status(islands=[island(name, each, why=why)]) for each in states]
    return [
        seen(at_s + number, event)
        for number, (before, after) in enumerate(pairwise([*looks, status(islands=[])]))
        for event in events_between(before, after)
    ]


EVENTS = (
    fault(5, "kill", "eu-0"),
    line(6, "loss", "eu-0 is lost", "eu-0"),
    line(9, "join", "eu-0 is back as life 2", "eu-0"),
    fault(12, "cut", "us-0", for_s=4.0),
    *changed(20, "us-1", "live", "draining", "left"),
)


def run_of(
    folder: Path,
    events: Sequence[str] = EVENTS,
    *,
    stops: dict[str, int] | None = None,
    **summary: object,
) -> Path:
    """Write a run whose islands contribute at every eighth step, until they stop."""
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG.toml())
    rows: list[dict[str, Any]] = []
    for t in range(0, STEPS + 1, 2):
        ends = {"us-1": 22, **(stops or {})}
        counts = {name: min(t, ends.get(name, t)) // 8 for name in ("eu-0", "us-0", "us-1")}
        rows.append(row(t, counts))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    (folder / "events.jsonl").write_text("".join(f"{each}\n" for each in events))
    found: dict[str, object] = {
        "run": "mine", "parameters": PARAMETERS, "tokens_trained": 3 * STEPS * TOKENS_PER_STEP,
        "up_bytes_per_token": PLANNED / 2, "down_bytes_per_token": PLANNED / 2, "uptime": 0.99,
        "heldout_loss": 1.25, "initial_heldout_loss": 5.5, **summary,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(found))
    return folder


def facts_of(folder: Path, **options: Any) -> StageFacts:
    return stage_facts(read_run(folder), **options)


def test_stage_is_not_passed_before_the_final_evaluation() -> None:
    """A run writes a summary before that evaluation, which may take minutes."""
    unknown = replace(SOUND, heldout_loss=None, initial_loss=None, expected_loss=None)
    early = replace(unknown, ended=False, evaluates=True)
    end, loss = (each for each in criteria(early, 1) if each.name in ("end", "loss"))
    assert not end.passed
    assert end.has.endswith(", its final evaluation is not over")
    assert not loss.passed
    assert loss.needs == "less than the initial model's"
    (end,) = (each for each in criteria(replace(early, evaluates=False), 1) if each.name == "end")
    assert end.has.endswith(", no summary")


def test_facts_of_a_run(tmp_path: Path) -> None:
    assert facts_of(run_of(tmp_path / "mine"), expected_loss=1.3) == StageFacts(
        run="mine",
        ended=True,
        t=40,
        steps=40,
        regions=["eu", "us"],
        bytes_per_token=PLANNED,
        planned_bytes_per_token=PLANNED,
        heldout_loss=1.25,
        initial_loss=5.5,
        expected_loss=1.3,
        drained=["us-1"],
        kills=[Harmed("eu-0", True)],
        cuts=[Harmed("us-0", True)],
        uptime=0.99,
        alerts=[],
        unsound_ends=[],
    )


def test_island_that_never_contributes_again_has_not_survived(tmp_path: Path) -> None:
    facts = facts_of(run_of(tmp_path / "mine", stops={"eu-0": 5, "us-0": 12}))
    assert facts.kills == [Harmed("eu-0", False)]
    assert facts.cuts == [Harmed("us-0", False)]
    assert facts.regions == ["us"], "an island without a contribution is in no region"


def test_only_the_last_of_several_kills_is_judged(tmp_path: Path) -> None:
    again = fault(26, "kill", "eu-0"), line(28, "join", "eu-0 is back as life 3", "eu-0")
    facts = facts_of(run_of(tmp_path / "mine", (*EVENTS, *again)))
    assert facts.kills == [Harmed("eu-0", True)]
    facts = facts_of(run_of(tmp_path / "other", (*EVENTS, *again), stops={"eu-0": 31}))
    assert facts.kills == [Harmed("eu-0", False)]


def test_death_that_was_not_injected_counts(tmp_path: Path) -> None:
    why = "its process ended (ActorDiedError)"
    died = line(5, "loss", f"us-0 is lost: {why}", "us-0", why)
    back = line(9, "join", "us-0 is back as life 2", "us-0")
    assert facts_of(run_of(tmp_path / "mine", [died, back])).kills == [Harmed("us-0", True)]
    assert facts_of(run_of(tmp_path / "other", [died])).kills == [Harmed("us-0", False)]


def test_contribution_under_way_does_not_survive_a_fault(tmp_path: Path) -> None:
    """One more contribution is in the row behind the event, and none after it."""
    stops = {"eu-0": 9, "us-0": 9}
    killed = [fault(7, "kill", "eu-0"), line(9, "join", "eu-0 is back as life 2", "eu-0")]
    facts = facts_of(run_of(tmp_path / "killed", killed, stops=stops))
    assert facts.kills == [Harmed("eu-0", False)]
    cut = [fault(7, "cut", "us-0", for_s=4.0)]
    assert facts_of(run_of(tmp_path / "cut", cut, stops=stops)).cuts == [Harmed("us-0", False)]
    assert facts_of(run_of(tmp_path / "short", cut)).cuts == [Harmed("us-0", True)]
    long = [fault(7, "cut", "us-0", for_s=60.0)]
    assert facts_of(run_of(tmp_path / "long", long)).cuts == [Harmed("us-0", False)]


def test_cut_of_an_earlier_version_is_over_when_the_island_joins(tmp_path: Path) -> None:
    plain = json.loads(fault(7, "cut", "us-0", for_s=4.0))
    del plain["for_s"]
    cut, back = json.dumps(plain), line(20, "join", "us-0 is back as life 2", "us-0")
    assert facts_of(run_of(tmp_path / "mine", [cut, back])).cuts == [Harmed("us-0", True)]
    assert facts_of(run_of(tmp_path / "other", [cut])).cuts == [Harmed("us-0", False)]


def test_kill_of_a_service_is_none_of_an_island(tmp_path: Path) -> None:
    killed = fault(5, "kill", "syncer")
    assert facts_of(run_of(tmp_path / "mine", [killed])).kills == []


def test_cut_of_a_link_is_judged_by_its_region(tmp_path: Path) -> None:
    usual: Any = {"link": "eu", "direction": "up", "slow": False, "down": False}
    before: Any = {"links": [usual]}
    after: Any = {"links": [{**usual, "down": True}]}
    (event,) = link_events(before, after)
    (back,) = link_events(after, before)
    assert facts_of(run_of(tmp_path / "back", [seen(10, back)])).cuts == []
    down = seen(10, event)
    run = run_of(tmp_path / "mine", [down])
    assert facts_of(run).cuts == [Harmed("link eu", True)]
    other = run_of(tmp_path / "other", [down], stops={"eu-0": 9})
    assert facts_of(other).cuts == [Harmed("link eu", False)]


@pytest.mark.parametrize(
    ("own", "cuts"),
    [
        ([fault(1, "kill", "eu-0")], []),
        ([fault(1, "node", "eu-0"), line(9, "join", "eu-0 is back", "eu-0")], []),
        ([fault(1, "kill", "eu-0"), line(3, "join", "eu-0 is back", "eu-0")], ["link eu"]),
        ([line(1, "loss", "eu-0 is lost", "eu-0", "its process ended (ActorDiedError)")], []),
        ([fault(1, "stop", "eu-0", for_s=30.0)], []),
        ([fault(1, "kill", "us-0")], ["link eu"]),
        ([line(9, "loss", "eu-0 is lost", "eu-0", "silent for 5 s")], ["link eu"]),
        ([*changed(1, "eu-0", "live", "draining")], []),
    ],
    ids=["killed", "no contribution yet", "back before", "died", "halted", "elsewhere", "silent",
         "drain that failed"],
)  # fmt: skip
def test_link_is_not_cut_if_its_island_has_a_fault_of_its_own(
    tmp_path: Path, own: Sequence[str], cuts: Sequence[str]
) -> None:
    down = seen(12, RunEvent("link", DOWN, f"the link of eu is {DOWN}", link="eu"))
    facts = facts_of(run_of(tmp_path / "mine", [*own, down]))
    assert [each.target for each in facts.cuts] == cuts


@pytest.mark.parametrize(
    "states", [("live", "draining"), ("live", "draining", "lost"), ("live", "draining", "joining")]
)
def test_drain_that_failed_does_not_count(tmp_path: Path, states: Sequence[IslandState]) -> None:
    events = changed(20, "us-1", *states)
    assert json.loads(events[-1])["kind"] == "leave"
    assert facts_of(run_of(tmp_path / "mine", events)).drained == []


def test_drain_counts_once_the_island_has_left(tmp_path: Path) -> None:
    assert facts_of(run_of(tmp_path / "mine", EVENTS[:-1])).drained == []
    assert facts_of(run_of(tmp_path / "other", EVENTS)).drained == ["us-1"]


def test_alert_that_is_over_does_not_count(tmp_path: Path) -> None:
    begun = line(5, "alert", "ALERT: no merges for 61 s", why="no merges for 61 s")
    over = line(9, "alert over", "over: no merges for 75 s", why="no merges for 75 s")
    assert facts_of(run_of(tmp_path / "mine", [begun])).alerts == ["no merges for 61 s"]
    assert facts_of(run_of(tmp_path / "other", [begun, over])).alerts == []


def with_troubles(not_durable: str = "", inside: bool = True) -> RunStatus:
    expected = {"inside": inside, "heldout_loss": 2.0, "tokens": 9, "loss": 1.0, "low": 0.9,
                "high": 1.1}  # fmt: skip
    return status(figures={**FIGURES, "not_durable": not_durable}, expected=expected)


def test_refused_writes_and_a_loss_outside_its_band_are_alerts_until_they_end(
    tmp_path: Path,
) -> None:
    well = with_troubles()
    for number, trouble in enumerate((with_troubles("tape: full"), with_troubles(inside=False))):
        begun = [seen(5, each) for each in events_between(well, trouble)]
        over = [seen(9, each) for each in events_between(trouble, well)]
        assert len(begun) == len(over) == 1
        (alert,) = facts_of(run_of(tmp_path / f"open-{number}", begun)).alerts
        assert ("not durable: tape: full", "the loss left its band")[number] in alert
        assert facts_of(run_of(tmp_path / f"over-{number}", [*begun, *over])).alerts == []


def test_island_that_contributed_must_be_live_at_the_end_or_have_left(tmp_path: Path) -> None:
    path = run_of(tmp_path / "mine") / "metrics.jsonl"
    rows = [json.loads(each) for each in path.read_text().splitlines()]
    eu, us, left = rows[-1]["islands"]
    eu["state"], us["state"], left["state"] = "quarantined", "set aside", "left"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert facts_of(path.parent).unsound_ends == ["eu-0 is quarantined", "us-0 is set aside"]


def test_run_without_a_summary_passes_no_stage(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "mine")
    (folder / "summary.json").unlink()
    assert failed(facts_of(folder), 1) == ["end", "bytes", "loss", "uptime"]


def test_plan_of_another_interval_expects_other_bytes(tmp_path: Path) -> None:
    run = run_of(tmp_path / "mine")
    plan = {"every": 32, "wire": "bf16"}
    facts = facts_of(run, plan=plan)
    assert facts.planned_bytes_per_token == pytest.approx(PLANNED / 4)
    assert failed(facts, 1) == ["bytes"]


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["stage", *arguments])
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, said.out, said.err


def test_command_passes_or_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(run_of(tmp_path / "mine"))
    code, out, _ = ended(capsys, run, "--stage", "1")
    assert code == 0
    assert "mine: stage 1 passed" in out
    assert "missing for stage 2: regions (4 or more with contributions)" in out
    code, out, _ = ended(capsys, run, "--stage", "2")
    assert code == 1
    assert "mine: stage 2 NOT passed" in out
    assert "regions: add groups of islands" in out
    code, out, _ = ended(capsys, run, "--stage", "2", "--json")
    assert code == 1
    plain = json.loads(out)
    assert (plain["passed"], plain["stage"]) == (False, 2)
    assert [each["name"] for each in plain["criteria"] if not each["passed"]] == ["regions"]


def test_command_reads_the_output_of_the_planner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, plan = str(run_of(tmp_path / "mine")), tmp_path / "plan.json"
    plan.write_text(json.dumps({"every": 8, "wire": "bf16", "quorum": 1}))
    assert ended(capsys, run, "--stage", "1", "--plan", str(plan))[0] == 0
    assert ended(capsys, run, "--stage", "1", "--expected-loss", "1.2")[0] == 1
    plan.write_text("{}")
    code, _, err = ended(capsys, run, "--stage", "1", "--plan", str(plan))
    assert code == 2
    assert "has no every and no wire" in err


def test_ring_has_no_stages(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "mine")
    ring = {"run": {"mode": "data-parallel"}, "task": {"preset": "byte-tiny"}, "islands": [{}]}
    (folder / "config.toml").write_text(parse(ring).toml())
    with pytest.raises(UserMistake, match="which sums gradients"):
        facts_of(folder)
