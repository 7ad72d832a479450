"""Lock-step with an overlap, as `run.mode = "streaming"` has it, under the simulator's faults."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from archipelago.lab.simulation.plan import LOSSY, draw
from archipelago.lab.simulation.ports import SimPorts
from archipelago.lab.simulation.shards import ShardPlace
from archipelago.lab.simulation.world import SimWorld
from cluster.syncer.collect import Handed
from coordinator.protocol import Contribution, Fragment, Life

SEED = random.randrange(2**32)
SCHEDULES, LOST = 8, 12


def test_whatever_breaks_lock_step_with_an_overlap_comes_to_its_end() -> None:
    """Every invariant is judged after every event; all islands are needed for each merge."""
    played, number = 0, 0
    while played < SCHEDULES:
        number += 1
        plan = draw(name := f"{SEED}/{number}")
        most = plan.rule.schedule.every - 1
        if plan.rule.overlap > 0 or most < 1:
            continue
        overlap = random.Random(name).randint(1, min(3, most))
        rule = replace(plan.rule, min_quorum=len(plan.traits))
        plan = replace(plan, rule=rule, lock_step=overlap)
        print(f"seed {name}, overlap {overlap}")
        SimWorld(plan).run()
        played += 1


@pytest.mark.parametrize("overlap", [0, 1])
def test_what_is_handed_in_and_lost_on_its_way_holds_nobody_up(
    overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its learner has nothing more to hand in, and all wait for it: its life is over."""
    collect, lost, rng = SimPorts._collect, list[object](), random.Random(SEED)  # pyright: ignore[reportPrivateUsage]

    async def unlucky(self: SimPorts, life: Life, p: Fragment, place: ShardPlace) -> Handed:
        handed = await collect(self, life, p, place)
        if isinstance(handed, Contribution) and len(lost) < LOST and rng.random() < 0.3:
            lost.append(handed.id)
            assert place.process is not None
            place.process.drop(handed.reference)
            place.fates.freed(handed.id)
            return "the object store had no room"
        return handed

    monkeypatch.setattr(SimPorts, "_collect", unlucky)
    for number in range(SCHEDULES):
        plan = draw(name := f"{SEED}/{number}")
        rule = replace(plan.rule, min_quorum=len(plan.traits), overlap=0)
        faults = tuple(each for each in plan.faults if each.trouble not in LOSSY)
        print(f"seed {name}")
        most = plan.rule.schedule.every - 1
        waits = replace(plan, rule=rule, carry=False, lock_step=min(overlap, most), faults=faults)
        SimWorld(waits).run()
    assert lost
