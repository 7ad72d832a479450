"""The calibration reads times from a tape, and simulates fault plans with them."""

from __future__ import annotations

import pytest

from archipelago.lab.bench.calibrate import PLANS
from archipelago.lab.bench.calibrate_simulation import MachineTimes, simulate
from archipelago.lab.bench.calibrate_tape import seen, steps_by, waits_s
from archipelago.lab.bench.child_run import FOREVER, VICTIM
from archipelago.lab.bench.stats import demo
from archipelago.lab.simulation.plan import SimFault, Trouble
from cluster.config.fault_kinds import FAULTS, FaultKind
from coordinator.protocol import (
    Event,
    Fragment,
    Incarnation,
    Island,
    Lease,
    Life,
    Merged,
    Progress,
    Report,
    Stored,
    Version,
)

TIMES = MachineTimes(step_s=0.5, merge_s=0.02, store_s=0.03, back_s=6.0)
CONFIG = demo("byte-tiny", steps=FOREVER, seed=0, overrides=["islands.0.step_s=0.5"])


def reported(island: str, incarnation: int, steps: int) -> Report:
    life = Life(Island(island), Incarnation(incarnation))
    return Report(life, Progress(steps, 10 * steps, Lease(0, 0)), 0.5)


def test_steps_are_counted_per_life() -> None:
    rows: list[tuple[float, Event]] = [
        (0.0, reported("a", 1, 2)),
        (1.0, reported("a", 1, 4)),
        (2.0, Merged(Fragment(0), Version(0, 1), 1.0, (), 0)),
        (3.0, reported("a", 2, 3)),
        (3.5, Merged(Fragment(0), Version(0, 2), 1.0, (), 0)),
        (4.0, Stored(Fragment(0), Version(0, 2), durable=True)),
        (9.0, reported("a", 2, 30)),
    ]
    assert list(steps_by(rows, 3.0).values()) == [4, 3]
    found = seen(rows, 0.5, 5.5, islands=1, step_s=0.5)
    assert found.goodput == pytest.approx((2 + 3) * 0.5 / 5.0)
    assert (found.merges, found.longest_gap_s) == (2, 1.5)
    assert waits_s(rows)[1] == 0.5


def test_without_faults_all_time_is_goodput_and_every_round_is_merged() -> None:
    calm = simulate(CONFIG, TIMES, 30.0, [])
    assert calm.goodput == pytest.approx(1.0, abs=0.02)
    rounds = 30.0 / 0.5 * CONFIG.sync.fragments / CONFIG.sync.lasting_every
    assert calm.merges == pytest.approx(rounds, abs=2)
    assert calm.participants == pytest.approx(4.0, abs=0.2)


def test_kill_costs_the_time_until_the_next_step() -> None:
    fault = SimFault(8.0, Trouble.CRASH, VICTIM, TIMES.back_s)
    one = simulate(CONFIG, TIMES, 30.0, [fault])
    assert one.goodput == pytest.approx(1 - TIMES.back_s / (4 * 30), abs=0.02)
    slower = simulate(CONFIG, TIMES, 30.0, [fault._replace(lasts_s=2 * TIMES.back_s)])
    assert slower.goodput < one.goodput - 0.03


def test_every_attack_is_possible_in_a_real_run() -> None:
    for attacks in PLANS.values():
        assert [attack.at for attack in attacks] == sorted(attack.at for attack in attacks)
        for attack in attacks:
            known = FAULTS[FaultKind(attack.kind)]
            assert known.simulated == attack.trouble.value
            assert attack.island in CONFIG.island_names
            assert bool(attack.lasts) == ("for_s" in known.takes)
