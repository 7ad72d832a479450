"""Tests of the records of a run: rows for data frames, events with their reasons, identity."""

from __future__ import annotations

import json
import os
import re
import resource
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import pandas  # pyright: ignore[reportMissingTypeStubs]
import pytest

from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.fleet.budget import devices_of
from cluster.fleet.event_kinds import EVENT_FIELDS
from cluster.fleet.metrics_row import (
    COLUMNS,
    COMPLETE_S,
    ISLAND_BYTES,
    columns,
    interval_s,
    metrics_line,
    status_of_row,
)
from cluster.fleet.outcome import SUMMARY_FIELDS
from cluster.fleet.placement import Node
from cluster.fleet.ray_metrics import EVERY_S, RayMetrics
from cluster.fleet.record_files import RecordFiles
from cluster.fleet.requests import Requests
from cluster.fleet.run_events import (
    InjectedFault,
    events_between,
    fault_events,
    scale_events,
)
from cluster.fleet.run_identity import identity_of
from cluster.fleet.run_records import RunRecords
from cluster.fleet.status_view import starting_status
from cluster.status import Figures, IslandState, IslandStatus, RunStatus
from cluster.storage.metrics_log import EVENTS, LOOKS, MEGABYTE
from tests.cluster.test_metrics import FakeGauge

FIGURES = cast(Figures, {**dict.fromkeys(Figures.__annotations__, 0), "goodput": 0.5, "trouble": "",
                         "not_durable": "", "damage": ""})  # fmt: skip


def config_of(**tables: Any) -> Config:
    islands = tables.pop("islands", [{"group": "eu", "count": 2}])
    return parse({"task": {"preset": "byte-tiny"}, "islands": islands, **tables})


def island(name: str, state: IslandState = "live", life: int = 1, **more: Any) -> IslandStatus:
    return {
        "island": name, "group": "eu", "state": state, "incarnation": life, "life": life,
        "steps": 0, "tokens_per_s": 0.0, "loss": 2.0, "why": "", "contributions": 0,
        "cosine": None, "restarts": 0, **more,
    }  # type: ignore[typeddict-item]  # fmt: skip


def status(t: int = 1, **more: Any) -> RunStatus:
    begun = starting_status("mine", config_of())
    changed: Any = {**begun, "t": t, "phase": "running", "figures": FIGURES, **more}
    return changed


# --- rows -----------------------------------------------------------------------------------------


def test_pandas_plots_the_held_out_loss_of_the_rows(tmp_path: Path) -> None:
    path = tmp_path / LOOKS
    looks = [
        status(0, figures=None),
        status(4, heldout=[(0, 5.5)], islands=[island("eu-0"), island("eu-1", "lost")]),
        status(9, heldout=[(0, 5.5), (8, 4.5)]),
    ]
    path.write_text("".join(metrics_line(x, 1000.0 + n) + "\n" for n, x in enumerate(looks)))
    frame = pandas.read_json(path, lines=True)
    assert [*frame["heldout_loss"].fillna(-1)] == [-1, 5.5, 4.5]
    assert [*frame["unix_s"]] == [1000.0, 1001.0, 1002.0]
    assert [*frame["goodput"].fillna(-1)] == [-1, 0.5, 0.5], "a figure is a column of its own"
    assert [*frame["train_loss"].fillna(-1)] == [-1, 2.0, -1], "of live islands alone"
    assert {*frame["schema"]} == {1}
    import matplotlib as mpl

    mpl.use("agg")
    line = frame.plot("t", "heldout_loss").lines[0]
    assert [*line.get_xdata()] == [0, 4, 9]
    assert [*line.get_ydata()][1:] == [5.5, 4.5]


def test_row_is_a_status_with_columns_of_its_own_names() -> None:
    seen = status(9, heldout=[(8, 4.5)])
    assert not columns(seen, 1.0).keys() & seen.keys(), "no column hides a key of the status"
    assert columns(seen, 1.0).keys() == COLUMNS
    again: Any = status_of_row(metrics_line(seen, 1.0))
    assert json.dumps(again) == json.dumps({**seen, "heldout": [(8, 4.5)]})


# --- events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "now", "kinds"),
    [
        (None, island("eu-0", "starting"), []),
        (None, island("eu-0"), ["join"]),
        (island("eu-0"), island("eu-0"), []),
        (island("eu-0"), island("eu-0", "lost"), ["loss"]),
        (island("eu-0"), island("eu-0", life=2), ["loss", "join"]),
        (island("eu-0"), island("eu-0", "joining", life=2), ["loss"]),
        (island("eu-0", "lost"), island("eu-0", life=2), ["join"]),
        (island("eu-0"), island("eu-0", "joining"), ["loss"]),
        (island("eu-0"), island("eu-0", "quarantined"), ["quarantine"]),
        (island("eu-0"), island("eu-0", "set aside"), ["set aside"]),
        (island("eu-0"), island("eu-0", "draining"), ["drain"]),
        (island("eu-0", "draining"), island("eu-0", "left"), ["leave"]),
        (island("eu-0"), None, ["leave"]),
        (island("eu-0", "left"), None, []),
    ],
)
def test_each_change_of_an_island_is_an_event(
    was: IslandStatus | None, now: IslandStatus | None, kinds: list[str]
) -> None:
    before = status(islands=[] if was is None else [was])
    after = status(islands=[] if now is None else [{**now, "why": "<because>"}])
    found = [*events_between(before, after)]
    assert [each.kind for each in found] == kinds
    assert {each.island for each in found} <= {"eu-0"}
    assert all(each.why == "<because>" for each in found if now is not None)


def test_alert_is_one_event_while_only_its_numbers_change() -> None:
    def alerted(*alerts: str, not_durable: str = "") -> RunStatus:
        return status(alerts=[*alerts], figures={**FIGURES, "not_durable": not_durable})

    first = [*events_between(alerted(), alerted("broke 2 times"))]
    assert [(each.kind, each.text) for each in first] == [("alert", "ALERT: broke 2 times")]
    assert not [*events_between(alerted("broke 2 times"), alerted("broke 3 times"))]
    over = [*events_between(alerted("broke 3 times"), alerted())]
    assert [(each.kind, each.why) for each in over] == [("alert over", "broke 3 times")]
    full = [*events_between(alerted(), alerted(not_durable="tape: no space"))]
    assert [(each.kind, each.why) for each in full] == [("durability", "tape: no space")]


def test_faults_and_other_numbers_of_islands_are_events() -> None:
    (fault,) = fault_events([InjectedFault("kill", "eu-0", "the plan, at step 5")], {"eu-0": "eu"})
    assert (fault.kind, fault.group, fault.why) == ("fault", "eu", "the plan, at step 5")
    (scale,) = scale_events({"eu": 2, "us": 1}, {"eu": 3, "us": 1})
    assert scale.text == "group eu: 3 islands are wanted, not 2: requested"


def test_records_continue_after_a_restart_of_the_fleet(tmp_path: Path) -> None:
    config = config_of()
    faults: deque[InjectedFault] = deque()
    requests = Requests("mine", config, lambda: [Node("here", {"CPU": 8.0, "memory": 1e9}, {})])
    clock = cast(Iterator[float], count(1000.0))

    def records() -> RunRecords:
        return RunRecords(tmp_path, config, faults, requests, lambda: next(clock))

    live = status(3, islands=[island("eu-0"), island("eu-1")])
    with records() as first:
        first.look(live)
    with records() as second:
        second.look({**live, "t": 4})
        faults.append(InjectedFault("kill", "eu-1", "requested"))
        requests.scale({"eu": 3})
        second.look({**live, "t": 5})
        second.end({**live, "t": 5}, {"sample_heldout_loss": 1.25})
    events = [json.loads(each) for each in (tmp_path / EVENTS).read_text().splitlines()]
    assert [each["kind"] for each in events] == ["phase", "join", "join", "fault", "scale"]
    assert all([*each] == [*EVENT_FIELDS] for each in events)
    assert [each["t"] for each in events] == [3, 3, 3, 5, 5]
    last = json.loads((tmp_path / LOOKS).read_text().splitlines()[-1])
    assert (last["t"], last["heldout_loss"]) == (5, 1.25), "of the final model"


def test_failure_is_an_alert_until_the_run_is_resumed(tmp_path: Path) -> None:
    config = config_of()
    with RunRecords(tmp_path, config, deque(), Requests("mine", config, list)) as first:
        first.look(status(3))
        first.failed("eu-0 broke 3 times; its last words:\nTraceback")
    why = "the run has failed: eu-0 broke 3 times; its last words:"
    row = json.loads((tmp_path / LOOKS).read_text().splitlines()[-1])
    assert (row["t"], row["alerts"]) == (3, [why])
    with RunRecords(tmp_path, config, deque(), Requests("mine", config, list)) as second:
        second.look(status(4))
    events = [json.loads(each) for each in (tmp_path / EVENTS).read_text().splitlines()]
    found = [(each["kind"], each["why"]) for each in events]
    assert found == [("phase", ""), ("alert", why), ("alert over", why)]


def test_failure_before_the_first_look_is_recorded(tmp_path: Path) -> None:
    config = config_of()
    with RunRecords(tmp_path, config, deque(), Requests("mine", config, list)) as records:
        records.failed("no shard holds a model")
    (event,) = [json.loads(each) for each in (tmp_path / EVENTS).read_text().splitlines()]
    assert event["text"] == "ALERT: the run has failed: no shard holds a model"


def test_ray_gets_the_alerts_of_a_status_whose_other_parts_are_old(tmp_path: Path) -> None:
    values = dict[tuple[str, ...], float]()
    clock = cast(Iterator[float], count(0.0, EVERY_S))

    def make(name: str, help: str, labels: tuple[str, ...]) -> Any:
        return FakeGauge(values, name, labels)

    config = config_of(monitor={"ray_metrics": True})
    requests, ray = Requests("mine", config, list), RayMetrics(make, lambda: next(clock))
    with RunRecords(tmp_path, config, deque(), requests, ray_metrics=ray) as records:
        records.look(status(3))
        assert values["archipelago_alerts", "mine"] == 0.0
        records.alerted(status(3, alerts=["the storage is away"]))
        assert values["archipelago_alerts", "mine"] == 1.0


def test_rows_of_many_islands_are_complete_for_a_quarter_of_an_hour(tmp_path: Path) -> None:
    """A run of 1,000 islands once kept all rows of 25 seconds, and rewrote the file in 13."""
    config, clock = config_of(), iter(0.5 * n for n in count())
    many = [island(f"eu-{n}") for n in range(1000)]
    curve = [(1, 3.0)]
    looks: list[RunStatus] = []
    with RunRecords(
        tmp_path, config, deque(), Requests("mine", config, list), lambda: next(clock)
    ) as records:
        for number in range(200):
            curve = [*curve, (number, 2.5)] if number == 150 else curve
            looks.append(status(number, islands=many, heldout=curve))
            records.look(looks[-1])
    rows = [json.loads(line) for line in (tmp_path / LOOKS).read_text().splitlines()]
    complete_bytes = config.monitor.metrics_mb * MEGABYTE / 2
    lines = complete_bytes / (1000 * ISLAND_BYTES)
    assert [each["unix_s"] for each in rows] == [0.0, 17.0, 34.0, 51.0, 68.0, 75.0, 92.0]
    assert lines * interval_s(1000, config.monitor.metrics_mb) >= COMPLETE_S
    assert rows[5]["heldout"][-1] == [150, 2.5], "an evaluation has a row at once"
    assert interval_s(32, 64) == 0.0


@pytest.mark.parametrize("back_s", [100.0, 1e6])
def test_rows_continue_after_the_clock_was_set_back(tmp_path: Path, back_s: float) -> None:
    config, clock = config_of(), iter((2e6, 2e6 - back_s))
    many = [island(f"eu-{n}") for n in range(1000)]
    with RunRecords(
        tmp_path, config, deque(), Requests("mine", config, list), lambda: next(clock)
    ) as records:
        records.look(status(1, islands=many))
        records.look(status(2, islands=many))
    assert len((tmp_path / LOOKS).read_text().splitlines()) == 2


def test_damaged_last_row_costs_no_records(tmp_path: Path) -> None:
    (tmp_path / LOOKS).write_text('{"run": "mi\n')
    config = config_of()
    with RunRecords(tmp_path, config, deque(), Requests("mine", config, list)) as records:
        records.look(status(3))
    assert len((tmp_path / LOOKS).read_text().splitlines()) == 2


def test_records_that_hang_lose_lines_and_never_the_keeper(tmp_path: Path) -> None:
    """A pipe without a reader stands for a file on storage that hangs."""
    os.mkfifo(tmp_path / LOOKS)
    files = RecordFiles(tmp_path, 1, limit_s=0.05)
    assert files.last_status() is None, "opening the pipe hangs"
    for line in ("1", "2", "3"):
        files.add_status(line)
    assert re.search(r"miss lines: the storage has not answered since 2", str(files.trouble))
    files.add_event("left out, too")
    files.close()
    assert not (tmp_path / EVENTS).exists()
    with (tmp_path / LOOKS).open("wb"):
        pass  # the call that was given up ends


@contextmanager
def files_of_at_most(size: int) -> Generator[None]:
    """Have the kernel refuse each byte of a file beyond this size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_run_directory_is_an_alert_until_it_takes_lines(tmp_path: Path) -> None:
    """A full disk once cost lines without an alert, and events for good."""
    files = RecordFiles(tmp_path, 1)
    files.add_status('{"t": 1}')
    files.add_event('{"t": 1}')
    with files_of_at_most(12):
        files.add_event('{"event": 2}')
        assert re.search(r"miss lines: .*File too large", str(files.trouble))
        files.add_event('{"event": 3}')
        files.add_status('{"t": 2}')
        assert files.trouble is not None
    files.add_status('{"t": 3}')
    assert files.trouble is None
    files.close()
    assert (tmp_path / LOOKS).read_text().splitlines() == ['{"t": 1}', '{"t', '{"t": 3}']
    kept = (tmp_path / EVENTS).read_text().splitlines()
    assert kept == ['{"t": 1}', '{"e', '{"event": 2}', '{"event": 3}'], "events wait for room"


def test_line_that_the_status_file_refuses_is_an_alert(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path, 1)
    with files_of_at_most(4):
        files.add_status('{"t": 1}')
        assert "File too large" in str(files.trouble)
    files.close()


# --- identity -------------------------------------------------------------------------------------


def test_summary_identifies_its_run_and_its_cost() -> None:
    groups = [
        {"group": "eu", "count": 2, "usd_per_hour": 2.0, "resources": {"GPU": 4}, "hosts": 2},
        {"group": "us", "usd_per_hour": 0.5, "mesh": {"data": 4, "fsdp": 1}},
    ]
    config = config_of(islands=groups, run={"seed": 7})
    assert [devices_of(group) for group in config.islands] == [8.0, 4.0]
    found = identity_of(config, "mine", 1000, {"island_hours": {"eu": 0.5, "us": 1.0}})
    assert found.keys() <= SUMMARY_FIELDS.keys()
    assert (found["run"], found["seed"], found["mode"]) == ("mine", 7, "decoupled")
    assert (found["parameters"], found["devices"]) == (1000, 20.0)
    assert (found["device_hours"], found["usd"]) == (8.0, 2.0 * 4.0 + 0.5 * 4.0)
    assert found["config_sha256"] == config.sha256
    assert {"python", "jax", "ray"} <= cast(dict[str, str], found["versions"]).keys()


def test_cost_is_unknown_unless_every_group_has_a_price() -> None:
    groups: list[Any] = [{"group": "eu", "usd_per_hour": 2.0}, {"group": "us"}]
    found = identity_of(config_of(islands=groups), "mine", 1, {"island_hours": {"eu": 1.0}})
    assert (found["device_hours"], found["usd"]) == (1.0, None)
    unmeasured = identity_of(config_of(), "mine", 1, {})
    assert (unmeasured["device_hours"], unmeasured["usd"]) == (None, None)
