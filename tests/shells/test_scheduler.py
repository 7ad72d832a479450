"""Tests of the scheduler: a seed repeats its schedule, and defects are found."""

from __future__ import annotations

import threading
import time
from types import ModuleType

import pytest

from tests.shells.__main__ import main
from tests.shells.explore import explore
from tests.shells.scheduler import Deadlock, Late, Scheduler

SEEDS = 60


def a_module() -> ModuleType:
    """Return a module under test, which imports the standard library's names."""
    module = ModuleType("under_test")
    vars(module).update(threading=threading, time=time)
    return module


def ping(seed: int, *, notify: bool) -> tuple[list[int], float, list[tuple[str, str]]]:
    """Give five numbers from one thread to another, over a condition without a timeout."""
    scheduler, module = Scheduler(seed), a_module()
    with scheduler.controls(module):
        condition, box, got = module.threading.Condition(), list[int](), list[int]()

        def gives() -> None:
            for number in range(5):
                with condition:
                    box.append(number)
                    if notify:
                        condition.notify_all()
                scheduler.nap("gives", 0.1)

        def takes() -> None:
            with scheduler.within(5.0, "five numbers"):
                while len(got) < 5:
                    with condition:
                        condition.wait_for(lambda: box)
                        got.append(box.pop(0))

        scheduler.spawn(gives, "gives")
        scheduler.spawn(takes, "takes")
        scheduler.run()
    return got, scheduler.now_s, [*scheduler.trace]


def test_seed_repeats_its_schedule_and_other_seeds_differ() -> None:
    schedules = [ping(seed, notify=True) for seed in range(SEEDS)]
    assert schedules == [ping(seed, notify=True) for seed in range(SEEDS)]
    assert all(got == [0, 1, 2, 3, 4] for got, _, _ in schedules)
    assert len({tuple(trace) for _, _, trace in schedules}) > SEEDS / 2


@pytest.mark.parametrize("count", [0, 3])
def test_search_plays_the_given_number_of_schedules(count: int) -> None:
    played: list[int] = []
    explored = explore("any", lambda s: played.append(s.seed), first=7, for_s=0.0, count=count)
    assert (explored.schedules, played) == (count, [7, 8, 9][:count])


def test_count_of_no_schedule_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--count", "0"])
    assert "--count must be 1 or more" in capsys.readouterr().err


def test_lost_wake_up_is_a_deadlock() -> None:
    said = list[str]()
    for seed in range(SEEDS):
        try:
            ping(seed, notify=False)
        except Deadlock as error:
            said.append(str(error))
    assert said
    assert all("takes waits: condition" in each for each in said)


def test_opposite_lock_orders_deadlock_for_some_seeds() -> None:
    def play(seed: int) -> bool:
        scheduler, module = Scheduler(seed), a_module()
        with scheduler.controls(module):
            one, other = module.threading.Lock(), module.threading.Lock()

            def takes(first: threading.Lock, second: threading.Lock) -> None:
                with first, second:
                    pass

            scheduler.spawn(lambda: takes(one, other), "a")
            scheduler.spawn(lambda: takes(other, one), "b")
            try:
                scheduler.run()
            except Deadlock:
                return True
        return False

    assert {play(seed) for seed in range(SEEDS)} == {True, False}


def test_answer_that_only_a_timeout_brings_is_late() -> None:
    scheduler, module = Scheduler(0), a_module()
    with scheduler.controls(module):
        condition = module.threading.Condition()

        def waits() -> None:
            with scheduler.within(1.0, "an answer"), condition:
                condition.wait_for(lambda: False, 30.0)

        scheduler.spawn(waits, "waits")
        with pytest.raises(Late, match="an answer within 1 s"):
            scheduler.run()


def test_exception_of_a_thread_ends_the_schedule_and_every_thread() -> None:
    scheduler, module = Scheduler(0), a_module()
    left = list[str]()
    with scheduler.controls(module):
        event = module.threading.Event()

        def waits() -> None:
            try:
                event.wait()
            finally:
                left.append("waits")

        def breaks() -> None:
            module.time.sleep(1.0)
            raise ValueError("broken")

        scheduler.spawn(waits, "waits")
        module.threading.Thread(target=breaks, name="breaks").start()
        with pytest.raises(ValueError, match="broken"):
            scheduler.run()
    assert left == ["waits"]
    assert module.threading is threading


def test_timeout_of_one_waiter_leaves_the_others_waiting() -> None:
    for seed in range(SEEDS):
        scheduler, module = Scheduler(seed), a_module()
        with scheduler.controls(module):
            condition, box = module.threading.Condition(), list[int]()

            def waits(
                for_s: float | None, condition=condition, scheduler=scheduler, box=box
            ) -> None:
                with scheduler.within(5.0, "a number"), condition:
                    condition.wait_for(lambda: box, for_s)

            def gives(condition=condition, scheduler=scheduler, box=box) -> None:
                scheduler.sleep(1.0)
                with condition:
                    box.append(1)
                    condition.notify_all()

            scheduler.spawn(lambda waits=waits: waits(None), "waits")
            scheduler.spawn(lambda waits=waits: waits(0.5), "waits for a while")
            scheduler.spawn(gives, "gives")
            scheduler.run()
