"""Lock-step with an overlap (`run.mode = "streaming"`) under the simulator's faults."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from archipelago.lab.simulation.plan import LOSSY, draw
from archipelago.lab.simulation.ports import SimPorts
from archipelago.lab.simulation.world import SimWorld
from cluster.syncer.collect import Handed
from coordinator.protocol import Contribution, Fragment, Life

SEED = random.randrange(2**32)
SCHEDULES, LOST = 8, 12


@pytest.mark.long
def test_lock_step_with_overlap_ends_despite_faults() -> None:
    """Every invariant is checked after every event; each merge needs all islands."""
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
def test_lost_hand_in_does_not_block_lock_step(
    overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner has nothing more to hand in, and all wait for it, so its life must end."""
    ask, lost, rng = SimPorts.ask, list[object](), random.Random(SEED)

    async def unlucky(self: SimPorts, life: Life, p: Fragment) -> Handed:
        handed, place = await ask(self, life, p), self.shards.of(p)
        if isinstance(handed, Contribution) and len(lost) < LOST and rng.random() < 0.3:
            lost.append(handed.id)
            assert place.process is not None
            place.process.drop(handed.reference)
            place.fates.freed(handed.id)
            return "the object store had no room"
        return handed

    monkeypatch.setattr(SimPorts, "ask", unlucky)
    for number in range(SCHEDULES):
        plan = draw(name := f"{SEED}/{number}")
        rule = replace(plan.rule, min_quorum=len(plan.traits), overlap=0)
        faults = tuple(each for each in plan.faults if each.trouble not in LOSSY)
        print(f"seed {name}")
        most = plan.rule.schedule.every - 1
        waits = replace(plan, rule=rule, carry=False, lock_step=min(overlap, most), faults=faults)
        SimWorld(waits).run()
    assert lost
