"""Lock-step with an overlap, as `run.mode = "streaming"` has it, under the simulator's faults."""

from __future__ import annotations

import random
from dataclasses import replace

from cluster.sim.plan import draw
from cluster.sim.world import World

SEED = random.randrange(2**32)
SCHEDULES = 8


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
        World(plan).run()
        played += 1
