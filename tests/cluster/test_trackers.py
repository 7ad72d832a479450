"""Tests of trackers, which keep the curves of a run and can neither hold it up nor end it."""

from __future__ import annotations

import importlib
import json
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.fleet import tracking
from cluster.fleet.status_view import starting_status
from cluster.fleet.tracked_values import values_of
from cluster.fleet.tracker import TrackedRun
from cluster.fleet.tracking import LoggedValues, Trackers, TrackerThread, check_trackers
from cluster.status import RunStatus
from cluster.storage.folder import Folder
from cluster.storage.identity import have_identity
from coordinator.errors import UserMistake
from islands.package_extras import install_command
from tests.live.cli import until

WITHIN_S = 60.0


def config_of(*track: str) -> Config:
    islands = [{"group": "eu", "count": 2}]
    return parse(
        {"task": {"preset": "byte-tiny"}, "islands": islands, "monitor": {"track": [*track]}}
    )


def status(t: int, tokens: int, **more: Any) -> RunStatus:
    eu: Any = {
        "island": "eu-0", "group": "eu", "state": "live", "incarnation": 1, "life": 1, "steps": t,
        "tokens_per_s": 10.0, "loss": 2.5, "why": "", "contributions": 0, "cosine": None,
        "restarts": 0,
    }  # fmt: skip
    begun = starting_status("mine", config_of())
    changed: Any = {
        **begun, "t": t, "phase": "running", "islands": [eu, {**eu, "island": "eu-1", "loss": 3.5}],
        "tokens_trained": tokens, "tokens_per_s": 20.0, **more,
    }  # fmt: skip
    return changed


class Kept:
    """A tracker in memory."""

    made: list[Kept] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.runs: list[TrackedRun] = []
        self.logged: list[LoggedValues] = []
        self.summaries: list[Mapping[str, Any]] = []
        Kept.made.append(self)

    def start(self, run: TrackedRun) -> None:
        self.runs.append(run)

    def log(self, values: Mapping[str, float], t: int, tokens: int, unix_s: float) -> None:
        self.logged.append(LoggedValues(values, t, tokens, unix_s))

    def end(self, summary: Mapping[str, Any]) -> None:
        self.summaries.append(summary)


def run_of(run_dir: Path) -> Callable[[], TrackedRun]:
    return lambda: TrackedRun("mine", "id", run_dir, {}, resumed=False)


OWN = "tests.cluster.test_trackers:Kept"


def test_own_tracker_gets_run_values_evaluations_and_summary(tmp_path: Path) -> None:
    identity = have_identity(Folder(tmp_path))
    Kept.made.clear()
    config = config_of(OWN)
    assert check_trackers(config) == []
    trackers = Trackers.start(config, tmp_path, resumed=False)
    trackers.log(status(4, 400, heldout=[(0, 5.0)]), 1.0)
    trackers.log(status(5, 500, heldout=[(0, 5.0), (4, 4.0)]), 2.0)  # too soon but for the loss
    trackers.end({"heldout_loss": 3.0})
    trackers.close(WITHIN_S)
    (kept,) = Kept.made
    assert [each.run_id for each in kept.runs] == [identity]
    assert kept.runs[0].config["islands"][0]["group"] == "eu"
    evaluations = [each for each in kept.logged if "eval/loss" in each.values]
    assert [(e.t, e.tokens, dict(e.values)) for e in evaluations] == [
        (0, 400, {"eval/loss": 5.0}), (4, 500, {"eval/loss": 4.0}),
    ]  # fmt: skip
    (values,) = [each.values for each in kept.logged if "eval/loss" not in each.values]
    assert (values["train/loss"], values["train/loss/eu-1"]) == (3.0, 3.5)
    assert kept.summaries == [{"heldout_loss": 3.0}]
    assert trackers.trouble is None


def test_metrics_of_the_loss_are_means_of_the_live_islands() -> None:
    now: Any = status(1, 10)
    for island, accuracy in zip(now["islands"], (0.25, 0.75), strict=True):
        island["metrics"] = {"accuracy": accuracy, "overflow": None, "loss": 99.0}
    found = values_of(now)
    assert found["train/accuracy"] == 0.5
    assert found["train/loss"] == 3.0, "the name of a value of ours"
    assert not [name for name in found if "overflow" in name]
    now["islands"][1]["state"] = "lost"
    assert values_of(now)["train/accuracy"] == 0.25


def test_evaluations_are_logged_once_over_a_restart(tmp_path: Path) -> None:
    Kept.made.clear()
    trackers = Trackers.start(config_of(OWN), tmp_path, resumed=True, evaluated=(4, 4.0))
    curve = [(0, 5.0), (0, 5.0), (4, 4.0)]
    trackers.log(status(8, 800, heldout=curve), 1.0)
    trackers.log(status(8, 800, heldout=[*curve, (8, 3.5)]), 2.0)
    trackers.log(status(8, 800, heldout=[*curve, (8, 3.5), (8, 3.25)]), 3.0)  # the final model
    trackers.close(WITHIN_S)
    logged = [e.values["eval/loss"] for e in Kept.made[0].logged if "eval/loss" in e.values]
    assert logged == [3.5, 3.25]


def test_evaluations_are_logged_after_the_run_went_back(tmp_path: Path) -> None:
    Kept.made.clear()
    trackers = Trackers.start(config_of(OWN), tmp_path, resumed=True, evaluated=(8, 3.5))
    trackers.log(status(5, 500, heldout=[(0, 5.0), (4, 4.0)]), 1.0)
    trackers.log(status(7, 700, heldout=[(0, 5.0), (4, 4.0), (6, 3.75)]), 2.0)
    trackers.close(WITHIN_S)
    logged = [e.values["eval/loss"] for e in Kept.made[0].logged if "eval/loss" in e.values]
    assert logged == [3.75], "each once"


def test_hanging_tracker_costs_only_its_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, entered = threading.Event(), threading.Event()

    class Hanging(Kept):
        def log(self, values: Mapping[str, float], t: int, tokens: int, unix_s: float) -> None:
            entered.set()
            hangs.wait(WITHIN_S)

    now_s = [0.0]
    thread = TrackerThread("hanging", Hanging, run_of(tmp_path), lambda: now_s[0])
    trackers = Trackers([thread], now_s=lambda: 0.0)
    trackers.log(status(1, 1), 0.0)
    assert entered.wait(WITHIN_S)
    for t in range(tracking.QUEUE + 10):
        trackers.log(status(t, t, phase="finished"), 0.0)
    assert thread.dropped >= 9
    assert trackers.trouble == (
        f"tracker hanging is too slow or hangs: {thread.dropped} values are dropped"
    )
    now_s[0] = tracking.DROPPED_S - 1.0
    assert trackers.trouble is not None
    now_s[0] += 1.0
    assert trackers.trouble is None, "nothing was dropped for ten minutes"
    with caplog.at_level("WARNING"):
        trackers.close(0.05)
    assert f"tracker hanging did not get {thread.dropped} values of this run" in caplog.messages
    hangs.set()


def test_raising_tracker_is_given_up_and_can_recover_before(tmp_path: Path) -> None:
    class Raising(Kept):
        fails = 3

        def log(self, values: Mapping[str, float], t: int, tokens: int, unix_s: float) -> None:
            if t < self.fails:
                raise ValueError("<no & disk>")
            super().log(values, t, tokens, unix_s)

    class Useless(Raising):
        fails = 10**6

    found: list[TrackerThread] = []
    for kind in (Raising, Useless):
        thread = TrackerThread("mine", kind, run_of(tmp_path))
        for t in range(tracking.FAILURES + 5):
            thread.put(LoggedValues({}, t, t, 0.0))
        thread.put({"done": 1})
        assert thread.wait(WITHIN_S)
        found.append(thread)
    assert (found[0].trouble, found[0].dropped) == (None, 0)
    assert found[1].trouble == "tracker mine is given up: ValueError: <no & disk>"
    assert found[1].dropped == 5


def test_tracker_that_cannot_start_is_given_up(tmp_path: Path) -> None:
    def make() -> Kept:
        raise RuntimeError("no network")

    thread = TrackerThread("mine", make, run_of(tmp_path))
    thread.put(LoggedValues({}, 1, 1, 0.0))
    thread.put({})
    assert thread.wait(WITHIN_S)
    assert thread.trouble == "tracker mine is given up: RuntimeError: no network"


def test_missing_package_of_a_tracker_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    (problem,) = check_trackers(config_of("wandb"))
    assert "needs the package wandb, which is not installed" in problem
    assert problem.endswith(install_command("wandb"))


def test_unknown_or_missing_trackers_are_refused() -> None:
    with pytest.raises(UserMistake, match='"tensorbord" is no tracker'):
        config_of("tensorbord")
    (problem,) = check_trackers(config_of("no_such_module_here:Tracker"))
    assert "no module 'no_such_module_here'" in problem
    (problem,) = check_trackers(config_of("tests.cluster.test_trackers:WITHIN_S"))
    assert "is not a class or function" in problem


def tracked(tmp_path: Path, name: str, *, resumed: bool = False) -> None:
    """Track a run of two looks, or its continuation."""
    trackers = Trackers.start(config_of(name), tmp_path, resumed=resumed)
    first = 10 if resumed else 0
    trackers.log(status(first + 4, 400 + first, heldout=[(first, 5.0)]), 1000.0)
    last = status(first + 8, 800 + first, heldout=[(first + 8, 4.0)], phase="finished")
    trackers.log(last, 1002.0)
    if resumed:
        trackers.end({"heldout_loss": 4.0})
    trackers.close(WITHIN_S)
    assert trackers.trouble is None


@pytest.mark.long
def test_tensorboard_reads_both_axes_and_the_configuration(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed in (False, True):
        tracked(tmp_path, "tensorboard", resumed=resumed)
    read: dict[str, Any] = {}
    for axis in ("t", "tokens"):
        read[axis] = EventAccumulator(str(tmp_path / "tensorboard" / axis)).Reload()
    assert [(e.step, e.value) for e in read["t"].Scalars("eval/loss")] == [
        (0, 5.0), (8, 4.0), (10, 5.0), (18, 4.0),
    ]  # fmt: skip
    assert [e.step for e in read["tokens"].Scalars("train/loss/eu-1")] == [400, 800, 410, 810]
    assert read["t"].Scalars("throughput/tokens_per_s")[0].wall_time == 1000.0
    assert {*values_of(status(1, 1))} <= {*read["t"].Tags()["scalars"]}
    (text,) = read["t"].Tensors("configuration/text_summary")
    assert b'"group": "eu"' in text.tensor_proto.string_val[0]


WRITTEN_S = 30.0
"""Seconds that W&B's own process may take to write what `finish` has handed to it."""
BLOCK, HEADER = 2**15, 7
"""Bytes of a block of LevelDB's log format, and of the header of the file and of each piece."""


def records_of(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file of W&B: LevelDB's log format after a header of its own."""
    assert content.startswith(b":W&B")
    place, record = HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield record
            record = b""


@pytest.mark.slow
def test_wandb_keeps_one_run_over_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    identity = have_identity(Folder(tmp_path))
    for resumed in (False, True):
        tracked(tmp_path, "wandb", resumed=resumed)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert [each.name for each in files] == [f"run-{identity}.wandb"] * 2
    rows: list[dict[str, Any]] = []
    configured: list[set[str]] = []

    def records(file: Path) -> list[Any]:
        return [messages.Record.FromString(data) for data in records_of(file.read_bytes())]

    def is_whole(file: Path) -> bool:
        return any(each.HasField("exit") for each in records(file))

    until(lambda: all(map(is_whole, files)), WRITTEN_S)
    for file in files:
        for record in records(file):
            if record.HasField("history"):
                items = record.history.item
                rows.append(
                    {each.key or ".".join(each.nested_key): json.loads(each.value_json)
                     for each in items}
                )  # fmt: skip
            if record.HasField("run") and record.run.config.update:
                configured.append({each.key for each in record.run.config.update})
    losses = [(row["t"], row["tokens"], row["eval/loss"]) for row in rows if "eval/loss" in row]
    assert losses == [(0, 400, 5.0), (8, 800, 4.0), (10, 410, 5.0), (18, 810, 4.0)]
    assert any(row.get("train/loss/eu-1") == 3.5 for row in rows)
    assert [keys >= {"islands", "sync"} for keys in configured].count(True) == 1
