"""Tests of calls of a storage that hangs: each is given up in time, and none overtakes another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.fleet.depot_reads import DepotReads
from cluster.storage.folder import Folder
from cluster.storage.limited_calls import LimitedCalls
from cluster.storage.limited_depot import LimitedDepot

LIMIT_S, WAIT_S = 0.05, 30.0


def hanging(answers: threading.Event, then: Callable[[], None] = lambda: None) -> Callable[[], str]:
    """Return a call that hangs until this event, and then does something."""

    def call() -> str:
        assert answers.wait(WAIT_S)
        then()
        return "late"

    return call


def test_call_returns_its_result_or_raises_its_error() -> None:
    calls = LimitedCalls(WAIT_S)
    assert calls.call(lambda: 3) == 3
    for error in (
        FileNotFoundError("gone"),
        TimeoutError("of the call itself"),
        KeyError("defect"),
    ):

        def fails(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            calls.call(fails)
        assert raised.value is error
    assert calls.call(lambda: 4) == 4


def test_nothing_is_called_until_the_call_that_was_given_up_has_ended() -> None:
    calls, answers, ended, made = LimitedCalls(LIMIT_S), *_events(2), list[str]()
    before = {*threading.enumerate()}

    def writes() -> None:
        made.append("first")
        ended.set()

    for _ in range(5):
        with pytest.raises(TimeoutError, match=r"^the storage has not answered since 2\d+-.* UTC$"):
            calls.call(hanging(answers, writes))
    new = [one for one in threading.enumerate() if one not in before and one.name == "storage"]
    assert len(new) == 1, "one thread hangs, however often it is tried"
    with pytest.raises(OSError, match="has not answered"):
        calls.call(lambda: made.append("refused"))
    answers.set()
    assert ended.wait(WAIT_S)
    while "second" not in made:  # the thread of the first one has yet to end
        try:
            calls.call(lambda: made.append("second"))
        except TimeoutError:
            continue
    assert made == ["first", "second"]


def test_other_threads_wait_no_longer_than_the_timeout() -> None:
    calls, answers = LimitedCalls(LIMIT_S), threading.Event()

    def asks(_: int) -> str:
        try:
            return calls.call(hanging(answers))
        except TimeoutError:
            return "given up"

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(asks, range(8))] == ["given up"] * 8
    answers.set()


class Hanging(Folder):
    """A folder whose files cannot be read until an event."""

    __slots__ = ()
    answers = threading.Event()

    def read(self, name: str) -> bytes:
        assert self.answers.wait(WAIT_S)
        return super().read(name)


def test_restarted_fleet_reports_a_depot_that_hangs_and_then_continues(tmp_path: Path) -> None:
    """A hang once had no limit and no alert."""
    (tmp_path / "fleet.json").write_text("{}")
    depot, alerts = Hanging(tmp_path), list[str | None]()

    def published() -> None:
        alerts.append(reads.trouble)
        depot.answers.set()

    reads, limited = DepotReads(published), LimitedDepot(depot, LIMIT_S)
    reads.endless = True
    assert reads.read(lambda: limited.read("fleet.json")) == b"{}"
    hung, over = alerts
    assert str(hung).startswith(
        "the fleet has restarted and cannot read its depot: the storage has"
    )
    assert over is None


def _events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]
