"""Tests of the watchdog over syncer, shards and evaluator: which process hangs, what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from cluster.fleet.evaluation import Pending
from cluster.fleet.watchdog import OFTEN, STARTING_S, STUCK, Watchdog
from coordinator.errors import RunFailed

HANG_S = 8.0
EVERY_S = 0.5


@dataclass
class Process:
    """A process that answers with a sign, or not, and counts its restarts."""

    answers: bool = True
    sign: object = None
    away: bool = False
    restarts: int = 0
    asked: int = 0

    def begin(self) -> Pending:
        self.asked += 1
        return self._pending

    def _pending(self, wait_s: float) -> object:
        if self.away:
            raise ActorUnavailableError("it is being restarted", None)
        if not self.answers:
            raise GetTimeoutError
        return self.sign

    def restart(self) -> None:
        self.restarts += 1


@dataclass
class Clock:
    now_s: float = 0.0
    watch: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watchdog(HANG_S, 3, lambda: self.now_s)

    def look_for(self, for_s: float, waiting_for: str | None = None) -> None:
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self.now_s += EVERY_S
            self.watch.look(waiting_for)


def watched(*, vital: bool = True) -> tuple[Clock, Process]:
    clock, process = Clock(), Process()
    clock.watch.add("shard-0", process.begin, process.restart, vital=vital)
    return clock, process


def test_process_that_gives_signs_is_left_alone() -> None:
    clock, process = watched()
    clock.look_for(100 * HANG_S)
    assert process.restarts == 0
    assert 90 * OFTEN < process.asked < 110 * OFTEN, "asked now and then, not at every look"


def test_process_without_signs_is_restarted_in_time() -> None:
    clock, process = watched()
    clock.look_for(HANG_S)
    process.answers = False
    clock.look_for(HANG_S - 2 * EVERY_S)
    assert process.restarts == 0
    clock.look_for(HANG_S)
    assert process.restarts == 1
    assert clock.watch.restarts == 1


def test_starting_process_gets_more_time() -> None:
    clock, process = watched()
    process.answers = False
    clock.look_for(STARTING_S - HANG_S)
    assert process.restarts == 0
    clock.look_for(2 * HANG_S)
    assert process.restarts == 1


def test_process_that_is_coming_back_is_not_restarted_again() -> None:
    clock, process = watched()
    clock.look_for(HANG_S)
    process.away = True
    clock.look_for(3 * HANG_S)
    process.away, process.answers = False, False
    clock.look_for(STARTING_S - 4 * HANG_S)
    assert process.restarts == 0, "it imports and compiles"


def test_time_in_which_the_fleet_stood_still_does_not_count() -> None:
    clock, process = watched()
    clock.look_for(HANG_S)
    process.answers = False
    clock.now_s += 150.0  # SIGSTOP, or a suspended machine
    clock.watch.look()
    clock.now_s += 150.0
    clock.watch.look()
    assert process.restarts == 0
    process.answers = True
    clock.look_for(HANG_S)
    assert process.restarts == 0


@pytest.mark.parametrize(("moves", "restarts"), [(False, 1), (True, 0)])
def test_process_that_owes_an_answer_is_restarted_if_its_sign_is_the_same(
    moves: bool, restarts: int
) -> None:
    clock, process = watched()
    clock.look_for(HANG_S)
    clock.watch.waits_for("shard-0")
    for _ in range(STUCK + 1):
        process.sign = process.asked if moves else 0
        clock.look_for(HANG_S, "shard-0")
    assert process.restarts == restarts


def hangs_again_and_again(clock: Clock, process: Process, between: Callable[[], None]) -> None:
    for _ in range(6):
        process.answers = True
        clock.look_for(HANG_S)
        between()
        process.answers = False
        clock.look_for(HANG_S + 2 * EVERY_S)


def test_run_ends_after_several_restarts_without_progress() -> None:
    clock, process = watched()
    with pytest.raises(RunFailed, match=r"shard-0 hangs .* and was restarted 3 times"):
        hangs_again_and_again(clock, process, lambda: None)
    assert process.restarts == 3


def test_progress_resets_the_count_of_restarts() -> None:
    clock, process = watched()
    hangs_again_and_again(clock, process, clock.watch.progressed)
    assert process.restarts == 6


def test_evaluator_that_hangs_never_ends_the_run() -> None:
    clock, process = watched(vital=False)
    hangs_again_and_again(clock, process, lambda: None)
    assert process.restarts == 6
