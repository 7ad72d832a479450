"""Tests of the conductor's shell in virtual time, with deaths at any point.

Every ring must form or fail within a bound, and the run must end.
"""

from __future__ import annotations

import time

import pytest

from archipelago.lab.virtual.event_loop import running
from cluster.allreduce.ring import RingStage
from cluster.allreduce.ring_messages import RingStop
from tests.cluster.rings import World

SEED = time.time_ns()
SCHEDULES = 60
END_S = 3600.0


def played(seed: str, world: World, *, stop_s: float | None = None) -> None:
    """Play the run to its end, and raise any exception of it."""
    loop = world.loop
    with running(loop):
        try:
            world.begin()
            if stop_s is not None:
                loop.run(stop_s, lambda: world.over or bool(world.broken))
                loop.run(END_S, lambda: world.shell is not None or bool(world.broken))
                assert world.shell is not None
                world.shell.feed(RingStop("asked"))
            loop.run(END_S, lambda: world.over or bool(world.broken))
            judge(seed, world, stopped=stop_s is not None)
        finally:
            world.end()


def judge(seed: str, world: World, *, stopped: bool) -> None:
    """Fail if the run broke or has not ended, or if its result is not the state that it names."""
    for error in world.broken:
        raise AssertionError(f"seed {seed}") from error
    shell = world.shell
    assert shell is not None
    assert world.over, f"seed {seed}: {shell.ring} at {world.loop.now_s:.0f} s"
    assert shell.ring.stage is RingStage.OVER
    assert shell.snapshot.held == shell.ring.held
    assert shell.snapshot.params[0][0] == shell.snapshot.held.step, "the version that it reports"
    if not stopped:
        assert shell.ring.held.step == world.rules.steps


@pytest.mark.parametrize("elastic", [False, True])
def test_run_ends_and_every_ring_forms_or_fails_under_any_deaths(elastic: bool) -> None:
    for number in range(SCHEDULES):
        seed = f"{SEED}/{number}"
        print(f"seed {seed}")
        faults = number % 12
        played(seed, World(seed, elastic=elastic, islands=3, faults=faults, steps=25))


@pytest.mark.parametrize("elastic", [False, True])
def test_stop_at_any_moment_ends_the_run(elastic: bool) -> None:
    for number in range(SCHEDULES // 2):
        seed = f"{SEED}/stop/{number}"
        print(f"seed {seed}")
        world = World(seed, elastic=elastic, islands=3, faults=number % 8, steps=200)
        played(seed, world, stop_s=world.rng.uniform(0.0, 90.0))
