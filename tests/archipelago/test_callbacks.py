"""Callbacks get each event once, and can neither hold up nor end anything."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from archipelago.callbacks import (
    Callbacks,
    CallbackThreads,
    EvaluationEvent,
    Event,
    IslandLostEvent,
    MergeEvent,
    Tail,
    events_between,
)
from archipelago.started_run import starting
from cluster.config.load import parse
from cluster.status import IslandState, IslandStatus, RunStatus
from cluster.storage.files import json_text

CONFIG = parse({"task": {"preset": "byte-tiny"}, "islands": [{"group": "local", "count": 2}]})
WITHIN_S = 30.0


def island(name: str, state: IslandState = "live", restarts: int = 0) -> IslandStatus:
    return {
        "island": name, "group": "local", "state": state, "incarnation": 1, "life": 1, "steps": 0,
        "tokens_per_s": 0.0, "loss": None, "why": "silent", "contributions": 0, "cosine": None,
        "restarts": restarts,
    }  # fmt: skip


def status(t: int, versions: list[int] | None = None, **more: Any) -> RunStatus:
    fragments = [
        {"fragment": p, "version": version, "participants": ["local-0"], "round": None}
        for p, version in enumerate(versions or [])
    ]
    changed: Any = {**starting("mine", CONFIG), "t": t, "fragments": fragments, **more}
    return changed


def test_merges_are_counted_for_each_fragment() -> None:
    found = [*events_between(status(8, [1, 1]), status(9, [1, 4]))]
    assert found == [MergeEvent(9, 1, 4, 3, ("local-0",))]
    assert len([*events_between(None, status(9, [1, 4, 0]))]) == 2
    assert not [*events_between(status(9, [2]), status(9, [1]))], "the syncer's process restarted"


def test_each_point_of_the_curve_is_one_event() -> None:
    before = status(1, heldout=[(0, 5.0)])
    after = status(9, heldout=[(0, 5.0), (4, 4.0), (8, 3.0)])
    assert [*events_between(before, after)] == [EvaluationEvent(4, 4.0), EvaluationEvent(8, 3.0)]
    first = status(0, heldout=[(0, 5.0), (0, 5.0)])
    assert [*events_between(None, first)] == [EvaluationEvent(0, 5.0)]


@pytest.mark.parametrize(
    ("was", "now", "events"),
    [
        (island("a"), island("a", "lost"), [IslandLostEvent(2, "a", "silent")]),
        (island("a"), island("a", "set aside"), [IslandLostEvent(2, "a", "silent")]),
        (island("a"), island("a", restarts=1), [IslandLostEvent(2, "a", "")]),
        (island("a", "lost"), island("a", "joining", restarts=1), []),
        (island("a", "lost"), island("a", "set aside"), []),
        (island("a"), island("a", "draining"), []),
        (island("a", "left"), island("a", restarts=1), []),
    ],
)
def test_island_is_lost_once(was: IslandStatus, now: IslandStatus, events: list[Event]) -> None:
    assert [*events_between(status(1, islands=[was]), status(2, islands=[now]))] == events


class File:
    """A metrics log that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"

    def add(self, *statuses: RunStatus) -> None:
        with self.path.open("a") as file:
            file.writelines(json_text(each) + "\n" for each in statuses)


def test_callbacks_of_a_resumed_run_begin_where_it_begins(tmp_path: Path) -> None:
    file, seen = File(tmp_path), list[Event]()
    file.add(status(8, [1, 1]))
    threads = CallbackThreads(tmp_path, Callbacks(on_merge=seen.append))
    threads.start()
    file.add(status(16, [2, 1]), status(24, [2, 2]))
    threads.end(WITHIN_S)
    assert seen == [MergeEvent(16, 0, 2, 1, ("local-0",)), MergeEvent(24, 1, 2, 1, ("local-0",))]


def test_callback_that_never_returns_loses_events_and_holds_up_nothing(tmp_path: Path) -> None:
    file, release, entered = File(tmp_path), threading.Event(), threading.Event()

    def stuck(event: MergeEvent) -> None:
        entered.set()
        release.wait(WITHIN_S)

    threads = CallbackThreads(tmp_path, Callbacks(on_merge=stuck), size=3)
    threads.start()
    file.add(status(1, [1]))
    assert entered.wait(WITHIN_S)
    file.add(*(status(t, [t]) for t in range(2, 12)))
    threads.end(0.0)
    threads.reader.join(WITHIN_S)
    assert threads.dropped == 7
    release.set()
    threads.end(WITHIN_S)
    assert not threads.caller.is_alive()


def test_callback_that_raises_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, seen = File(tmp_path), list[Event]()

    def broken(event: MergeEvent) -> None:
        raise ValueError("of the user")

    threads = CallbackThreads(tmp_path, Callbacks(on_merge=broken, on_evaluate=seen.append))
    threads.start()
    file.add(status(1, [1]), status(2, [2]), status(3, [3], heldout=[(3, 4.0)]))
    threads.end(WITHIN_S)
    assert threads.failed == 3
    assert seen == [EvaluationEvent(3, 4.0)]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "MergeEvent has raised ValueError('of the user')" in caplog.text


def test_tail_reads_whole_lines_only_and_the_newest_of_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert [*tail.lines()] == []
    with path.open("w") as file:
        file.write("one\ntw")
        file.flush()
        assert [*tail.lines()] == ["one"]
        file.write("o\nthree\n")
    assert [*tail.lines()] == ["two", "three"]
    aside = tmp_path / "aside"
    aside.write_text("one\nthree\nfour\n")
    aside.replace(path)
    assert [*tail.lines()] == ["four"]
    with path.open("a") as file:
        file.write("five\n")
    assert [*tail.lines()] == ["five"]
