"""Timelines of runs in the Chrome trace format: valid, nested, and with arrows that end."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
from typer.testing import CliRunner

import archipelago.cli.main
from archipelago.cli.options import app
from archipelago.lab.report.run_record import read_run
from archipelago.lab.report.tape_timeline import TapeTimeline
from archipelago.lab.report.timeline import FlowStop, Lane, Timeline
from archipelago.lab.report.trace import trace_of
from cluster.config.load import parse
from cluster.config.rule import rule_for
from cluster.storage.files import json_text
from cluster.storage.state_history import ReplayedEvent
from coordinator.protocol import (
    Adopted,
    Arrived,
    Ask,
    Contribution,
    ContributionId,
    Effect,
    Event,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Lost,
    Merge,
    Merged,
    Progress,
    Reference,
    Store,
    Tick,
    Version,
)
from coordinator.state import Rule, initial
from tests.cluster.played import Played

assert archipelago.cli.main, "it registers the commands"

MICRO = {"type": "integer", "minimum": 0}
PLACE = {"pid": MICRO, "tid": MICRO, "ts": MICRO, "name": {"type": "string", "minLength": 1}}
ARGS = {"args": {"type": "object"}}
CAT = {"cat": {"type": "string"}}


def kind(phase: str, required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of the events of one phase, which has no other keys."""
    return {
        "properties": {"ph": {"const": phase}, **PLACE, **properties},
        "required": ["ph", *PLACE, *required.split()],
        "additionalProperties": False,
    }


ID = {"id": {"type": "integer", "minimum": 1}}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "minItems": 1,
            "items": {
                "oneOf": [
                    kind("X", "dur cat", dur={"type": "integer", "minimum": 1}, **CAT, **ARGS),
                    kind("i", "s cat", s={"enum": ["g", "p", "t"]}, **CAT, **ARGS),
                    kind("M", "args", **ARGS),
                    kind(
                        "C", "args",
                        args={"type": "object", "minProperties": 1,
                              "additionalProperties": {"type": "number"}},
                    ),
                    kind("b", "id cat", **ID, **CAT, **ARGS),
                    kind("e", "id cat", **ID, **CAT),
                    kind("s", "id cat", **ID, **CAT),
                    kind("t", "id cat", **ID, **CAT),
                    kind("f", "id cat bp", bp={"const": "e"}, **ID, **CAT),
                ]
            },
        },
    },
}  # fmt: skip
"""The part of the Trace Event Format (the Chromium project) that a timeline uses."""


def validated(made: Any) -> list[dict[str, Any]]:
    """Check a trace, and return its events: schema, nesting, names of lanes, ends of arrows."""
    made = json.loads(json_text(made))
    jsonschema.validate(made, SCHEMA)
    events: list[dict[str, Any]] = made["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    assert {e["pid"] for e in events} == processes, "every process has a name"
    lanes: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for each in events:
        if each["ph"] == "X":
            lane = each["pid"], each["tid"]
            assert lane in named, "every lane has a name"
            lanes[lane].append((each["ts"], each["ts"] + each["dur"]))
    for slices in lanes.values():
        ends: list[int] = []
        for start, end in sorted(slices, key=lambda found: (found[0], -found[1])):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1], "slices of a lane are nested"
            ends.append(end)
    flows: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for each in events:
        if each["ph"] in "stf":
            flows[each["id"]].append(each)
    for flow in flows.values():
        phases = "".join(each["ph"] for each in flow)
        assert phases in ("sf", "stf"), "an arrow begins, and ends"
        assert [each["ts"] for each in flow] == sorted(each["ts"] for each in flow)
        for each in flow:
            inside = lanes[each["pid"], each["tid"]]
            assert any(start <= each["ts"] < end for start, end in inside), "it is on a slice"
    opened = {e["id"]: e["ts"] for e in events if e["ph"] == "b"}
    closed = {e["id"]: e["ts"] for e in events if e["ph"] == "e"}
    assert opened.keys() == closed.keys()
    assert all(opened[key] <= closed[key] for key in opened)
    return events


def test_run_has_lanes_rounds_and_arrows(tmp_path: Path) -> None:
    Played(tmp_path).to_the_end(24)
    made, problems = trace_of(read_run(tmp_path))
    events = validated(made)
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"syncer", "shard-0"} <= lanes
    names = [e["name"] for e in events]
    assert {"local-0", "local-1"} <= lanes
    merges = [e for e in events if e["ph"] == "X" and e["name"].startswith("merge ")]
    assert len(merges) > 8
    assert all(e["args"]["participants"] and e["args"]["why"] for e in merges)
    assert {e["name"].split()[0] for e in events if e["ph"] == "X"} >= {
        "life", "steps", "hand", "merge",
    }  # fmt: skip
    assert any(name.startswith("publish") for name in names)
    assert sum(e["ph"] == "b" for e in events) >= len(merges), "a round for each merge"
    assert not [each for each in problems if "tape" in each]


def test_arrows_lead_from_hand_in_to_merge_to_adoption() -> None:
    events = validated(trace_of(read_run(Path("tests/stored/decoupled")))[0])
    flows = [e for e in events if e["ph"] in "stf" and e["id"] == 1]
    assert [e["ph"] for e in flows] == ["s", "t", "f"]
    names: list[str] = []
    for each in flows:
        on_it = [
            e for e in events
            if e["ph"] == "X" and (e["pid"], e["tid"]) == (each["pid"], each["tid"])
            and e["ts"] <= each["ts"] < e["ts"] + e["dur"]
        ]  # fmt: skip
        names.append(min(on_it, key=lambda e: e["dur"])["name"])
    assert [name.split()[0] for name in names] == ["hand", "merge", "adopt"]


def test_learner_that_did_not_contribute_gets_an_arrow_from_the_merge() -> None:
    rule, lives = rule_of_two(), [Life(Island(f"a-{n}"), Incarnation(n + 1)) for n in range(2)]
    first, version, p = initial(rule), Version(0, 1), Fragment(0)
    made = contribution(lives[0])

    def at(now_s: float, event: Event, *effects: Effect) -> ReplayedEvent:
        return ReplayedEvent(first, event, first, effects, now_s)

    line = TapeTimeline(Timeline(), shards=1, fragments=1)
    versions = (Version(0, 0),)
    progress = Progress(8, 800, Lease(0))
    line.follow(
        [
            *(at(1.0, Tick(), Granted(life, 0, versions, ())) for life in lives),
            at(2.0, Tick(), Ask(lives[0], p)),
            at(3.0, Arrived(made), Merge(p, version, (Item(made, 1.0),), "all are here")),
            at(4.0, Merged(p, version), Store(p, version)),
            *(
                at(5.0 + n, Adopted(life, p, version, 8, 0, progress))
                for n, life in enumerate(lives)
            ),
            at(7.0, Lost(lives[1], "killed")),
        ]
    )
    line.end()
    events = validated({"traceEvents": line.timeline.events()})
    flows = [(e["id"], e["ph"], e["ts"]) for e in events if e["ph"] in "stf"]
    assert sorted(flows) == [
        (1, "f", 4_000_000), (1, "s", 2_000_000), (1, "t", 2_000_000),
        (2, "f", 5_000_000), (2, "s", 2_000_000),
    ]  # fmt: skip
    ended = {e["args"]["ended"] for e in events if e["name"].startswith("life ")}
    assert ended == {"killed", "the tape ends"}


def rule_of_two() -> Rule:
    config = parse({"task": {"preset": "byte-tiny"}, "sync": {"every": 1, "fragments": 1},
                    "islands": [{"group": "a", "count": 2}]})  # fmt: skip
    return rule_for(config, "layout")


def contribution(life: Life) -> Contribution:
    return Contribution(
        id=ContributionId(life, Fragment(0), 0, 8), base=Version(0, 0), since_step=0, tokens=800,
        fingerprint="layout", progress=Progress(8, 800, Lease(0)), norm=1.0, bytes=10,
        reference=Reference("r"),
    )  # fmt: skip


def test_run_that_sums_gradients_shows_the_states_of_its_islands() -> None:
    made, _ = trace_of(read_run(Path("tests/stored/data-parallel")))
    events = validated(made)
    assert {"lost", "waiting"} <= {e["name"] for e in events if e["ph"] == "X"}
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"held-out loss", "tokens per second"}


def test_damaged_tape_gives_a_timeline_that_names_it(tmp_path: Path) -> None:
    Played(tmp_path).to_the_end(24)
    whole = len(trace_of(read_run(tmp_path))[0]["traceEvents"])
    (tape,) = tmp_path.glob("tape-*.arrow")
    content = bytearray(tape.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    tape.write_bytes(content)
    made, problems = trace_of(read_run(tmp_path))
    assert len(validated(made)) < whole
    assert any(
        each.startswith(("damage of the tape", "the timeline ends early")) for each in problems
    )


def test_faults_and_events_are_moments(tmp_path: Path) -> None:
    Played(tmp_path).to_the_end(24)
    fault = {
        "schema": 1, "unix_s": 5.0, "elapsed_s": 5.0, "run": "mine", "t": 1, "kind": "fault",
        "island": "a-0", "group": "a", "why": "requested", "text": "a-0: kill <on> purpose",
    }  # fmt: skip
    (tmp_path / "events.jsonl").write_text(json.dumps(fault) + "\n")
    events = validated(trace_of(read_run(tmp_path))[0])
    (moment,) = [e for e in events if e["ph"] == "i" and e["s"] == "g"]
    assert moment["name"] == "a-0: kill <on> purpose"


def test_long_tape_ends_at_the_limit(tmp_path: Path) -> None:
    Played(tmp_path).to_the_end(24)
    made, problems = trace_of(read_run(tmp_path), most=40)
    assert len(validated(made)) < 200
    assert any("its first" in each for each in problems)


def test_slices_that_overlap_are_cut() -> None:
    line, lane = Timeline(), Lane("islands", "a-0")
    line.slice(lane, "one", 0.0, 2.0)
    line.slice(lane, "two", 1.0, 3.0)
    line.slice(lane, "moment", 5.0, 5.0)
    line.flows.append(("arrow", [FlowStop(lane, 1.0), FlowStop(lane, 5.0)]))
    events = validated({"traceEvents": line.events()})
    assert [(e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [
        (0, 2_000_000), (1_000_000, 1_000_000), (5_000_000, 1),
    ]  # fmt: skip


def test_command_writes_a_timeline_and_names_it(tmp_path: Path) -> None:
    Played(tmp_path).to_the_end(24)
    done = CliRunner().invoke(app, ["trace", str(tmp_path), "--json"])
    found = json.loads(done.stdout)
    assert found["file"] == str(tmp_path / "trace.json")
    assert found["events"] == len(validated(json.loads((tmp_path / "trace.json").read_text())))
    done = CliRunner().invoke(app, ["trace", str(tmp_path / "nothing")])
    assert "no run" in str(done.exception)
