"""Tests of the life of an island as syncer and fleet complete it, and of the slow islands."""

from __future__ import annotations

import math
import random
import secrets
import statistics
from typing import Any

import pytest

from cluster.status import IslandStatus
from cluster.syncer.badput import GOODPUT, OF_FIRST, OF_LATER, Badput
from cluster.syncer.island_time import IslandTime, LifeStage
from cluster.syncer.slow_islands import NOTABLE_SHARE, REASONS, slow_islands
from coordinator.protocol import Vitals
from islands.time_budget import Activity, shares


def measured(process: int, age_s: float | None = None, **seconds: float) -> Vitals:
    """Return vitals; a process has measured all its time unless it has another age."""
    named: dict[str, Any] = {f"{name}_s": each for name, each in seconds.items()}
    age_s = sum(named.values()) if age_s is None else age_s
    return Vitals(2.0, process=process, age_s=age_s, **named)


def in_use(seconds: dict[str, float]) -> dict[str, float]:
    return {str(key): round(each, 6) for key, each in seconds.items() if each}


def test_vocabulary_is_that_of_the_library() -> None:
    """The names are the enumeration of ml-goodput-measurement 0.2.3, and all time has one."""
    assert [each.value for each in Badput] == [
        "tpu_initialization", "training_prep", "program_startup", "data_loading_sync",
        "data_loading_async", "unproductive_checkpoint_save_time",
        "unproductive_checkpoint_restore_time", "wasted_progress_from_disruption",
        "infrastructure_recovery_from_disruption", "custom_badput_events", "other",
        "elastic_slice_down", "elastic_scale_up", "elastic_reinitialization",
    ]  # fmt: skip
    assert OF_FIRST.keys() == OF_LATER.keys() == {*Activity}


def test_life_with_a_kill_is_accounted_for_to_the_second() -> None:
    time = IslandTime.held(100)
    time.up_to(102)
    assert in_use(time.seconds()) == {"starting": 2}
    time.began(1, 104)  # the fleet has seen the process begin
    time.reported(measured(7, starting=3, compiling=5, restoring=1), 113)
    time.reported(measured(7, starting=3, compiling=5, restoring=1, computing=20, data=1), 134.5)
    assert time.life_s(135) == 35
    time.died()
    time.up_to(140)
    time.up_to(139)  # an older look
    assert in_use(time.seconds()) == {
        "starting": 7, "compiling": 5, "restoring": 1, "computing": 20.5, "data": 1, "dead": 5.5,
    }  # fmt: skip
    time.began(2, 141)
    time.died()  # the old loss is still in the status, and is not that of the new process
    assert time.stage is LifeStage.RUNNING
    time.reported(measured(8, starting=2, compiling=4, computing=3), 150)
    time.ends(151)
    assert time.stage is LifeStage.AWAY
    assert math.fsum(time.seconds().values()) == pytest.approx(51)
    assert in_use(time.seconds_by_type()) == {
        "tpu_initialization": 4, "training_prep": 3, "program_startup": 5,
        "unproductive_checkpoint_restore_time": 1, "data_loading_sync": 1, GOODPUT: 23,
        "wasted_progress_from_disruption": 0.5, "infrastructure_recovery_from_disruption": 6.5,
        "elastic_reinitialization": 6, "other": 1,
    }  # fmt: skip


def test_process_that_reports_before_the_fleet_has_seen_it_is_counted_once() -> None:
    """A warm spare needs no second from its take-over to its first report."""
    time = IslandTime.held(0)
    time.began(1, 0)
    time.reported(measured(1, starting=1, computing=9), 10)
    time.died()
    time.up_to(12)
    time.reported(measured(2, starting=0.2, restoring=0.3), 12.5)
    time.began(2, 12)  # the fleet's next look
    time.reported(measured(2, starting=0.2, restoring=0.3, computing=7.5), 20)
    assert time.processes == 2
    assert in_use(time.seconds()) == {
        "starting": 1.2, "computing": 16.5, "dead": 2, "restoring": 0.3,
    }  # fmt: skip


def test_time_from_the_start_to_the_process_s_own_clock_is_starting() -> None:
    """The answer to the first message of a process can take a second, and its clock is after it."""
    time = IslandTime.held(0)
    time.began(1, 2)
    time.reported(measured(1, starting=1, compiling=2), 5.5)
    time.died()
    time.up_to(7)
    time.began(2, 8)
    time.reported(measured(2, age_s=1.5, compiling=1), 10)
    assert in_use(time.seconds()) == {"starting": 4, "compiling": 3, "dead": 2.5}
    assert in_use(time.seconds_by_type()) == {
        "tpu_initialization": 2, "training_prep": 1.5, "program_startup": 2,
        "infrastructure_recovery_from_disruption": 2.5, "elastic_reinitialization": 1.5,
    }  # fmt: skip


def test_looks_and_reports_after_the_end_count_nothing() -> None:
    """The fleet looks until the final evaluation is done, and parked learners report."""
    time = IslandTime.held(0)
    time.began(1, 2)
    time.reported(measured(1, starting=1, computing=9), 12)
    time.ends(13)
    ended = time.seconds()
    for now_s in (14.0, 15.0):
        time.began(1, 2)
        time.reported(measured(1, starting=1, computing=9, idle=now_s - 12), now_s)
        time.up_to(now_s)
        assert time.stage is LifeStage.AWAY
        assert time.seconds() == ended
    assert math.fsum(ended.values()) == 13


@pytest.mark.parametrize("age_s", [-1e9, -1.0, math.nan, math.inf, 1e9])
def test_wrong_age_of_a_process_adds_no_time(age_s: float) -> None:
    time = IslandTime.held(0)
    time.began(1, 2)
    time.reported(measured(1, age_s, computing=3), 5)
    assert in_use(time.seconds()) == {"starting": 2, "computing": 3}


def test_process_out_of_reach_that_comes_back_is_not_counted_twice() -> None:
    time = IslandTime.held(0)
    time.began(1, 0)
    time.reported(measured(1, computing=10), 10)
    time.died()
    time.up_to(15)
    time.reported(measured(1, computing=18), 18)
    time.reported(measured(1, computing=20), 20)
    assert in_use(time.seconds()) == {"computing": 12, "dead": 8}


def test_replaced_and_added_islands_wait_under_their_own_names() -> None:
    added = IslandTime.away()
    added.holds(50, added_later=True)
    added.began(1, 57)
    added.reported(measured(1, computing=3), 60)
    added.ends(60)
    added.holds(70, added_later=True)
    added.up_to(75)
    assert in_use(added.seconds_by_type()) == {
        "elastic_scale_up": 7, GOODPUT: 3, "elastic_slice_down": 5,
    }  # fmt: skip
    assert added.life_s(75) == 15, "the time without devices is not of its life"


def test_any_history_adds_up_and_no_counter_falls() -> None:
    """The times of two machines differ by milliseconds, and messages are late."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(100):
        now_s = 1000.0
        time, process, start, born_s = IslandTime.held(now_s), 0, 0, now_s
        own: dict[str, float] = {}
        before: dict[str, float] = {}
        for _ in range(60):
            now_s += dice.uniform(0, 3)
            match dice.choice(["report", "report", "report", "die", "begin", "look", "leave"]):
                case "report" if process:
                    late_s = dice.uniform(0, 0.05)
                    free_s = now_s - late_s - born_s - math.fsum(own.values())
                    name = dice.choice(["computing", "data", "starting", "idle"])
                    own[name] = own.get(name, 0.0) + max(0.0, free_s * dice.random())
                    time.reported(measured(process, now_s - late_s - born_s, **own), now_s)
                case "die":
                    time.died()
                case "begin":
                    start, process = start + 1, process + 1
                    born_s, own = now_s + dice.uniform(-0.005, 0.005), {}
                    if dice.random() < 0.8:
                        time.began(start, now_s)
                case "leave" if dice.random() < 0.2:
                    time.ends(now_s)
                    time.holds(now_s, added_later=True)
                    process = 0
                case _:
                    time.up_to(now_s)
            after = time.seconds()
            for key, seconds in before.items():
                assert after.get(key, 0.0) >= seconds - 1e-9, f"{key} has fallen"
            before = after
            spent_s = math.fsum(after.values())
            assert spent_s <= time.life_s(now_s) + 0.1
            types_s = math.fsum(time.seconds_by_type().values())
            assert types_s == pytest.approx(spent_s, abs=1e-6)
        time.ends(now_s)
        assert math.fsum(time.seconds().values()) == pytest.approx(now_s - 1000.0, abs=0.2)


# --- slow islands ---------------------------------------------------------------------------------


def an_island(name: str, tokens_per_s: float, **recent: float) -> IslandStatus:
    shown: Any = {
        "island": name, "group": name.partition("-")[0], "state": "live",
        "tokens_per_s": tokens_per_s, "why": "steps",
        "recent_s": {each.value: recent.get(each.value, 0.0) for each in Activity},
    }  # fmt: skip
    return shown


def test_slow_island_is_named_with_its_reason() -> None:
    others = [an_island(f"eu-{n}", 100.0, computing=57, copying=3) for n in range(3)]
    starved = an_island("eu-3", 50.0, computing=28, copying=2, data=30)
    weak = an_island("eu-4", 40.0, computing=57, copying=3)
    found = slow_islands([*others, starved, weak])
    assert found == {
        "eu-3": "slow, 2.0 times slower than its group: it waits for data (50% of its time)",
        "eu-4": "slow, 2.5 times slower than its group: its devices compute slower (95% of its "
        "time)",
    }


class Counted(dict[str, Any]):
    """The status of an island, which counts how often its time is read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.reads += 1
        return super().get(key, default)


def test_many_slow_islands_take_no_quadratic_time() -> None:
    """Half of 1,000 islands once took 500,000 shares of time, twice a second."""
    rates = [100.0] * 101 + [50.0] * 100
    group: Any = [
        Counted(an_island(f"eu-{n}", rate, computing=50, data=n % 7))
        for n, rate in enumerate(rates)
    ]
    assert len(slow_islands(group)) == 100
    assert Counted.reads <= 3 * len(group)


@pytest.mark.parametrize("seed", range(20))
def test_reason_of_a_slow_island_is_that_beside_all_others(seed: int) -> None:
    chance = random.Random(seed)
    group = [
        an_island(
            f"eu-{n}",
            100.0 if n else 50.0,
            computing=20,
            **{each: chance.choice((0, 1, 5, 20)) for each in ("data", "copying", "waiting")},
        )
        for n in range(chance.randrange(2, 7))
    ]
    own, *others = [shares(each.get("recent_s", {})) for each in group]
    excess = {
        name: own.get(name, 0.0) - statistics.median(each.get(name, 0.0) for each in others)
        for name in Activity
        if name is not Activity.COMPUTING
    }
    name = max(excess, key=lambda each: excess[each])
    wanted = REASONS[name if excess[name] >= NOTABLE_SHARE else Activity.COMPUTING]
    assert f": {wanted} (" in slow_islands(group)["eu-0"]


def test_islands_without_peers_or_without_figures_are_not_slow() -> None:
    alone = an_island("us-0", 1.0, computing=60)
    fast = [an_island(f"eu-{n}", 100.0, computing=60) for n in range(2)]
    fresh = an_island("eu-2", 1.0, computing=2)
    lost = an_island("eu-3", 1.0, computing=60)
    lost["state"] = "lost"
    assert slow_islands([alone, *fast, fresh, lost]) == {}
