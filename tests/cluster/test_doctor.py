"""Tests of the doctor: it names the cause of every fault that can be injected, and nothing else.

The statuses are those of the real rules and measures; the events are those that the fleet records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from archipelago.cli.main import main
from cluster.config.fault_kinds import FAULTS, FaultKind
from cluster.failures import Unjudged
from cluster.fleet.inbox import ON_PURPOSE
from cluster.fleet.metrics_row import metrics_line
from cluster.fleet.preemption import DRAINING
from cluster.fleet.run_events import events_between
from cluster.launch.cluster_findings import (
    ClusterHealth,
    DeadNode,
    NodeHealth,
    findings_about_cluster,
)
from cluster.launch.cluster_health import UNEXPECTED, dead_nodes, skew_s
from cluster.launch.link_findings import Finding, Severity
from cluster.launch.run_facts import facts_of
from cluster.launch.run_findings import FileFacts, ProbeAnswer, RunFacts, findings_about
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.files import json_text
from cluster.syncer.slow_islands import slow_islands
from coordinator.protocol import Drain, Fragment, Left, Life, Lost, Resume, ShardLost, Version
from tests.cluster.test_island_time import an_island
from tests.cluster.test_measures import A, B, Told

ENDED = "its process ended (ActorUnavailableError)"
"""The reason of `RayPorts.watch` for a process that is gone."""


@dataclass
class Story:
    """A run of two islands that was healthy for ten seconds, and facts beside its status."""

    told: Told
    a: Life
    b: Life
    files: FileFacts | None = None
    probes: dict[str, ProbeAnswer] = field(default_factory=dict)
    dead_nodes: dict[str, str] = field(default_factory=dict)
    gap_s: float = 0.0
    slow: bool = False

    @classmethod
    def begin(cls) -> Story:
        told = Told(every=1000)
        story = cls(told, told.join(0, A), told.join(0, B))
        story.both(1, 11)
        return story

    def both(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            for life in (self.a, self.b):
                self.told.report(step, life, step)

    def alone(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            self.told.report(step, self.a, step)

    def status(self, now_s: float) -> RunStatus:
        status = self.told.status(now_s)
        if self.slow:  # as `run_time` does with the real rule
            rates = [an_island("g-0", 100.0, computing=60), an_island("g-1", 40.0, computing=60)]
            (why,) = slow_islands(rates).values()
            status["islands"][1]["why"] += f"; {why}"
        return status


def facts_after(happens: Callable[[Story], float]) -> RunFacts:
    """Return the facts about a run in which this happened; it returns the time at its end."""
    story = Story.begin()
    before = story.status(10)
    looks = [before]
    now_s = happens(story)
    looks.append(story.status(now_s))
    events = [
        json.loads(json_text(event.seen(after, now_s)))
        for was, after in pairwise(looks)
        for event in events_between(was, after)
    ]
    return RunFacts(
        looks[-1], before, events, story.gap_s, 0.1, files=story.files, probes=story.probes,
        dead_nodes=story.dead_nodes,
    )  # fmt: skip


def healthy(story: Story) -> float:
    story.both(11, 31)
    return 30.0


def killed(story: Story) -> float:
    story.told.say(11, Lost(story.b, ENDED))
    story.alone(11, 16)
    return 15.0


def silent(story: Story) -> float:
    story.alone(11, 60)
    return 60.0


def stopped(story: Story) -> float:
    story.probes = {str(B): "silent"}
    return silent(story)


def cut_off(story: Story) -> float:
    story.probes = {str(B): "answers"}
    return silent(story)


def refused(story: Story, norm: float) -> float:
    """Have the gate refuse contributions of one island until it is quarantined."""
    for number in range(12):
        at_s, start, stop = 11.0 + number, 10 + number, 11 + number
        story.told.report(at_s, story.a, stop)
        story.told.arrive(at_s, story.a, start, stop)
    for number in range(3):
        at_s, start, stop = 23.0 + number, 10 + number, 11 + number
        story.told.report(at_s, story.b, stop)
        story.told.arrive(at_s, story.b, start, stop, norm=norm)
    return 26.0


def not_finite(story: Story) -> float:
    return refused(story, math.nan)


def too_large(story: Story) -> float:
    return refused(story, 1e6)


def slowed(story: Story) -> float:
    story.both(11, 21)
    story.slow = True
    return 20.0


def node_died(story: Story) -> float:
    story.dead_nodes = {"192.0.2.7": "health check failed"}
    return killed(story)


def drained(why: str) -> Callable[[Story], float]:
    def happens(story: Story) -> float:
        story.told.say(11, Drain(B, why))
        story.told.say(12, Left(story.b, story.told.progress(story.b, 10)))
        story.alone(11, 16)
        return 15.0

    return happens


def disk_full(story: Story) -> float:
    story.told.measures.trouble("snapshot", "[Errno 28] No space left on device")
    return healthy(story)


def syncer_restarted(story: Story) -> float:
    story.told.say(11, Resume(1, (Version(0, 0), Version(0, 0))))
    return 11.5


def syncer_stalled(story: Story) -> float:
    story.gap_s = 20.0
    return healthy(story)


def shard_restarted(story: Story) -> float:
    story.told.say(11, ShardLost((Fragment(0), Fragment(1))))
    return healthy(story)


def evaluator(why: Unjudged) -> Callable[[Story], float]:
    def happens(story: Story) -> float:
        story.told.measures.unjudged(why)
        return healthy(story)

    return happens


def fleet_restarted(story: Story) -> float:
    story.files = FileFacts(10**9, 10**9, fleet_lives=2)
    return healthy(story)


Case = tuple[Callable[[Story], float], str, str]
"""A story, the place of its finding, and a phrase of it that no other cause has."""
ISLAND: dict[FaultKind, Case] = {
    FaultKind.KILL: (killed, "b", "its process was killed"),
    FaultKind.STOP: (stopped, "b", "it hangs"),
    FaultKind.NAN: (not_finite, "b", "NaN or infinite"),
    FaultKind.SCALE: (too_large, "b", "far too large"),
    FaultKind.SLOW: (slowed, "b", "straggler"),
    FaultKind.CUT: (cut_off, "b", "its network is cut"),
    FaultKind.NODE: (node_died, "node 192.0.2.7", "the node has died"),
    FaultKind.DRAIN: (drained("no longer wanted"), "b", "a person or a plan drained it"),
    FaultKind.PREEMPT: (drained(ON_PURPOSE), "b", "taken away"),
}
SERVICES: dict[tuple[str, FaultKind], Case] = {
    ("syncer", FaultKind.KILL): (syncer_restarted, "syncer", "restarted once"),
    ("syncer", FaultKind.STOP): (syncer_stalled, "syncer", "no status for 20 s"),
    ("syncer", FaultKind.DISK): (disk_full, "disk", "the disk refuses writes"),
    ("shard-0", FaultKind.KILL): (shard_restarted, "shards", "process of a shard ended"),
    ("shard-0", FaultKind.STOP): (shard_restarted, "shards", "process of a shard ended"),
    ("shard-0", FaultKind.DISK): (disk_full, "disk", "the disk refuses writes"),
    ("evaluator", FaultKind.KILL): (evaluator(Unjudged.DIED), "evaluator", "was killed"),
    ("evaluator", FaultKind.STOP): (evaluator(Unjudged.HUNG), "evaluator", "it hung"),
    ("fleet", FaultKind.KILL): (fleet_restarted, "fleet", "restarted once"),
}
CASES = [*ISLAND.values(), *SERVICES.values()]


def diagnosed(happens: Callable[[Story], float]) -> list[Finding]:
    return findings_about(facts_after(happens))


def test_every_fault_that_can_be_injected_has_a_case() -> None:
    assert ISLAND.keys() == {kind for kind, row in FAULTS.items() if row.islands}
    assert SERVICES.keys() == {
        (name, kind) for kind, row in FAULTS.items() for name in row.services
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]} {case[2]}")
def test_doctor_names_the_cause_of_a_fault_and_no_other(case: Case) -> None:
    happens, where, phrase = case
    found = diagnosed(happens)
    assert [each for each in found if each.where == where and phrase in each.what], found
    others = {(w, p) for h, w, p in CASES if h is not happens}
    if happens is node_died:
        others.remove(("b", "its process was killed"))  # which is true, too
    named = {(w, p) for w, p in others for each in found if each.where == w and p in each.what}
    assert named == set()
    assert all(each.hint for each in found)


def test_healthy_run_has_no_finding() -> None:
    assert diagnosed(healthy) == []


@pytest.mark.parametrize(
    ("age_s", "round_s", "is_late"),
    [(100.0, 1.0, True), (100.0, 20.0, False), (1000.0, None, False), (1900.0, None, True)],
)
def test_first_merge_has_more_time_than_later_ones(
    age_s: float, round_s: float | None, is_late: bool
) -> None:
    facts = facts_after(healthy)
    figures: Any = {**cast(Any, facts.status["figures"]), "merge_age_s": age_s}
    figures["round_s"] = round_s
    found = findings_about(replace(facts, status={**facts.status, "figures": figures}))
    assert [each.what for each in found] == [f"nothing was merged for {age_s:.0f} s"] * is_late


def test_silent_island_that_was_not_called_may_hang_or_be_cut_off() -> None:
    (found,) = [each for each in diagnosed(silent) if each.where == "b"]
    assert "hangs, or its network is cut" in found.what
    assert found.severity is Severity.PROBLEM


@pytest.mark.parametrize("why", ["preempted: SIGTERM of its process", DRAINING])
def test_preempted_island_is_a_note(why: str) -> None:
    (found,) = diagnosed(drained(why))
    assert (found.where, found.severity) == ("b", Severity.NOTE)
    assert "taken away" in found.what


def test_island_that_the_queue_has_taken_is_a_note() -> None:
    (found,) = diagnosed(drained("taken by the queue: run big (priority 10) needs the machines"))
    assert (found.where, found.severity) == ("b", Severity.NOTE)
    assert "a run of higher priority has its machines" in found.what


def test_island_that_is_back_is_a_warning_with_its_cause() -> None:
    facts = facts_after(killed)
    live = facts_after(healthy).status
    (found,) = findings_about(replace(facts, status=live))
    assert (found.where, found.severity) == ("b", Severity.WARNING)
    assert found.what.endswith("its process was killed, or its node died; it is back")


def test_counters_before_the_span_do_not_count() -> None:
    facts = facts_after(shard_restarted)
    assert findings_about(replace(facts, before=facts.status, events=())) == []


def test_worst_finding_comes_first() -> None:
    facts = replace(facts_after(killed), gap_s=60.0)
    severities = [each.severity for each in findings_about(facts)]
    assert severities == [Severity.PROBLEM, Severity.WARNING]


@pytest.mark.parametrize(
    ("changes", "where", "phrase"),
    [
        ({"age_s": -30.0}, "clock", "30 s in the future"),
        ({"age_s": 40.0}, "syncer", "no status for 40 s"),
        ({"is_live": False, "age_s": 99.0}, "run", "is not live and has not finished"),
        ({"files": FileFacts(10**6, 10**9)}, "disk", "0.0 GB are free"),
        ({"files": FileFacts(10**9, 2 * 10**9, 10**9)}, "disk", "at least 3.0"),
        ({"files": FileFacts(10**9, 10**9, token_is_open=True)}, "token", "can read the token"),
        ({"files": FileFacts(10**9, 10**9, port_answers=False)}, "port", "does not answer"),
    ],
)
def test_files_clock_and_port(changes: Mapping[str, Any], where: str, phrase: str) -> None:
    (found,) = findings_about(replace(facts_after(healthy), **changes))
    assert found.where == where
    assert phrase in found.what


def test_island_that_hands_in_nothing_while_others_do_is_named() -> None:
    facts = facts_after(healthy)
    before = facts.before
    assert before is not None
    idle, busy = facts.status["islands"]
    status: Any = {
        **facts.status,
        "elapsed_s": before["elapsed_s"] + 120,
        "islands": [idle, {**busy, "contributions": 9}],
    }
    (found,) = findings_about(replace(facts, status=status))
    assert (found.where, found.severity) == (idle["island"], Severity.WARNING)
    assert "for 120 s, while others were" in found.what


# --- a recorded run -------------------------------------------------------------------------------


def recorded(folder: Path, happens: Callable[[Story], float], finished: bool = True) -> Path:
    """Write the directory of a run in which this happened."""
    facts, run_dir = facts_after(happens), folder / "runs" / "mine"
    run_dir.mkdir(parents=True)
    (run_dir / runs.CONFIG).write_text("")
    assert facts.before is not None
    last: Any = {**facts.status, "phase": "finished" if finished else "running"}
    rows: Sequence[tuple[RunStatus, float]] = [
        (facts.before, 1000.0), (facts.status, 1005.0), (last, 1008.0),
    ]  # fmt: skip
    lines = [metrics_line(status, at_s) for status, at_s in rows]
    (run_dir / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"torn')
    told = [{**event, "unix_s": 1003.0} for event in facts.events]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    return run_dir


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)


def test_recorded_healthy_run_ends_with_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, healthy)
    assert doctor(capsys) == (0, "no finding\n")
    code, out = doctor(capsys, "mine", "--json")
    assert (code, json.loads(out)) == (0, {"ok": True, "findings": []})


def test_run_directory_comes_before_the_cluster_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is over, so that its cluster is not asked; nothing listens at this address."""
    recorded(tmp_path, healthy)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.chdir(tmp_path / "runs")
    assert doctor(capsys, "mine") == (0, "no finding\n")


def test_recorded_run_with_a_killed_island_ends_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, killed)
    code, out = doctor(capsys, "mine", "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (1, False)
    (finding,) = found["findings"]
    assert finding.keys() == {"where", "what", "severity", "hint"}
    assert (finding["where"], finding["severity"]) == ("b", "problem")


def test_run_that_died_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, healthy, finished=False)
    code, out = doctor(capsys, "mine")
    assert code == 1
    assert out.startswith("problem: run: the run is not live and has not finished")
    assert "--resume" in out


def test_gap_between_rows_is_measured(tmp_path: Path) -> None:
    facts = facts_of(recorded(tmp_path, healthy), 600.0, now_unix_s=1010.0)
    assert (facts.gap_s, facts.age_s, facts.is_live) == (5.0, 2.0, False)
    assert facts_of(recorded(tmp_path / "b", healthy), 1.0, 1010.0).before is None


def test_run_without_a_status_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir := tmp_path / "runs" / "mine").mkdir(parents=True)
    (run_dir / runs.CONFIG).write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "mine"])
    assert ended.value.code == 2
    assert "has written no status" in capsys.readouterr().err


# --- a cluster ------------------------------------------------------------------------------------

USUAL = {"python": "3.11.2", "source": "aa"}


def node(name: str, **more: Any) -> NodeHealth:
    return NodeHealth(name, versions=USUAL, free={"the disk": 0.5}, **more)


NODES = [node("n1"), node("n2"), node("n3")]


def test_healthy_cluster_has_no_finding() -> None:
    assert findings_about_cluster(ClusterHealth(NODES)) == []


@pytest.mark.parametrize(
    ("health", "where", "severity", "phrase"),
    [
        (ClusterHealth([*NODES, NodeHealth("n4", "No module named 'cluster'")]), "node n4",
         Severity.PROBLEM, "No module named"),
        (ClusterHealth([*NODES, node("n4", skew_s=-7.0)]), "node n4", Severity.WARNING,
         "at least 7.0 s behind"),
        (ClusterHealth([*NODES, replace(NODES[0], name="n4", versions=USUAL | {"source": "bb"})]),
         "node n4", Severity.PROBLEM, "source is bb, and aa on most nodes"),
        (ClusterHealth([*NODES, replace(NODES[0], name="n4", free={"the disk": 0.01})]), "node n4",
         Severity.WARNING, "1% of the disk is free"),
        (ClusterHealth(NODES, dead_nodes={"n4": DeadNode("lost")}), "node n4", Severity.PROBLEM,
         "lost"),
        (ClusterHealth(NODES, dead_nodes={"n4": DeadNode("lost", 599.0)}), "node n4",
         Severity.PROBLEM, "ended unexpectedly 10 min ago: lost"),
        (ClusterHealth(NODES, dead_nodes={"n4": DeadNode("lost", 9000.0)}, span_s=1e4), "node n4",
         Severity.PROBLEM, "2 h ago"),
        (ClusterHealth(NODES, dead_nodes={"n4": DeadNode("lost", 601.0)}), "node n4",
         Severity.NOTE, "lost"),
        (ClusterHealth(NODES, dead_nodes={"n4": DeadNode("lost", 31.0)}, span_s=30.0), "node n4",
         Severity.NOTE, "31 s ago"),
        (ClusterHealth(NODES, draining=["n2"]), "node n2", Severity.NOTE, "drains"),
        (ClusterHealth(NODES, leftover={"old": 3}), "run old", Severity.WARNING, "3 actors"),
    ],
)  # fmt: skip
def test_cluster_finding(health: ClusterHealth, where: str, severity: str, phrase: str) -> None:
    (found,) = findings_about_cluster(health)
    assert (found.where, found.severity) == (where, severity)
    assert phrase in found.what


@pytest.mark.parametrize(
    ("clock_s", "skew"), [(100.5, 0.0), (100.0, 0.0), (103.0, 2.0), (96.0, -4.0)]
)
def test_skew_is_what_the_time_of_the_call_cannot_explain(clock_s: float, skew: float) -> None:
    assert skew_s(100.0, clock_s, 101.0) == skew


def ray_node(address: str, reason: int | None = None, name: str = "id") -> dict[str, Any]:
    """Return a node as `ray.nodes` does: alive without a reason of its death."""
    return {
        "NodeID": name,
        "NodeManagerAddress": address,
        "Alive": reason is None,
        "DeathReason": reason or 0,
        "DeathReasonMessage": "health check failed" if reason == UNEXPECTED else None,
    }


def test_node_that_has_rejoined_is_not_reported_as_dead() -> None:
    """Ray keeps the entry of the dead node beside that of the new one."""
    lost, asked_to_end = ray_node("10.8.2.1", UNEXPECTED), ray_node("10.8.3.1", 1)
    assert dead_nodes([ray_node("10.8.1.1"), lost, asked_to_end], {}, 0.0) == {
        "10.8.2.1": DeadNode("health check failed")
    }
    assert dead_nodes([lost, ray_node("10.8.2.1"), lost], {}, 0.0) == {}


def test_last_end_of_an_address_counts() -> None:
    nodes = [ray_node("10.8.2.1", UNEXPECTED, name) for name in ("late", "early")]
    ends = {"early": 1000.0, "late": 5000.0}
    assert dead_nodes(nodes, ends, 5007.0) == {"10.8.2.1": DeadNode("health check failed", 7.0)}
    ahead = dead_nodes(nodes, ends, 4000.0)
    assert ahead["10.8.2.1"].age_s == 0.0, "a clock may differ"
