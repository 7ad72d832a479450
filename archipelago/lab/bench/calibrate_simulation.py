"""The simulated half of `bench calibrate`: a window in virtual time, with a machine's times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from archipelago.lab.bench.calibrate_tape import WindowFigures, seen
from archipelago.lab.checks.facts import Truth
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.simulation.faults import FaultInjector
from archipelago.lab.simulation.network import SimNetwork
from archipelago.lab.simulation.plan import LAYOUT, SimFault, SimPlan, Trait
from archipelago.lab.simulation.ports import SimPorts
from archipelago.lab.simulation.site import SimSite
from archipelago.lab.simulation.syncer import SyncerSlot
from cluster.config.rule import rule_for
from cluster.config.schema import Config
from coordinator.protocol import Anchor

SETTLES_S = 3.0
"""Seconds from when all islands have contributed until a window begins."""
LATENCY_S = 0.003
"""Seconds of a message, one way: `bench scale` has a report answered within some milliseconds."""
JITTER = 0.05
"""The jitter of a paced step, as a share; it is small since islands idle until the step is over."""
ENOUGH_EVENTS = 10**6
"""The limit of simulated events."""


@dataclass(frozen=True, slots=True)
class MachineTimes:
    """The times of one machine, in seconds."""

    step_s: float
    """An inner step."""
    merge_s: float
    """Seconds of a merge."""
    store_s: float
    """Storing a merged version."""
    back_s: float
    """Seconds from a kill until the next step begins."""


def simulate(
    config: Config, times: MachineTimes, for_s: float, faults: Sequence[SimFault]
) -> WindowFigures:
    """Simulate the window in virtual time, with the real rules and the faults of the real run."""
    site = SimSite(_plan(config, times))
    network = SimNetwork(site)
    judge = InvariantJudge(site.plan.rule, Truth(site.made_of.get, lambda life, from_s, to_s: True))
    seat = SyncerSlot(site, SimPorts(site, network), judge)
    injector = FaultInjector(site, network, seat)
    islands, loop = len(site.places), site.loop
    from_s = SETTLES_S + 2 * config.sync.lasting_every * times.step_s
    for machine in site.places.values():
        loop.at(machine.trait.joins_s, network.start, machine)
    for fault in faults:
        timed_fault = fault._replace(at_s=from_s + fault.at_s)
        loop.at(timed_fault.at_s, injector.strike, timed_fault)
    with site.playing():
        loop.run(from_s + for_s, lambda: site.syncer is None or site.failed())
        site.check()
    return seen(seat.tape, from_s, from_s + for_s, islands, times.step_s)


def _plan(config: Config, times: MachineTimes) -> SimPlan:
    """Return the plan of the simulation."""
    rule = rule_for(config, LAYOUT)
    traits = [
        Trait(
            island,
            joins_s=times.step_s * number / len(config.island_names),
            step_s=times.step_s,
            jitter=JITTER,
            tokens=group.batch_size * config.data.window,
            windows=group.batch_size,
            latency_s=LATENCY_S,
            group=group.group,
        )
        for group in config.islands
        for number, island in enumerate(group.names)
    ]
    return SimPlan(
        "calibrate",
        rule,
        tuple(traits),
        carry=config.sync.adopt == "carry",
        faults=(),
        healed_s=math.inf,
        stop_s=math.inf,
        merge_s=times.merge_s,
        store_s=times.store_s,
        store_every=config.durability.counted,
        anchor=Anchor(config.sync.anchor),
        lock_step=None,
        most_events=ENOUGH_EVENTS,
        unruly=False,
    )
