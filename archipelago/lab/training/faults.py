"""A fault plan in virtual time, for the faults that have a counterpart there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archipelago.lab.training.network import TrainingNetwork
from archipelago.lab.training.timing import Timing
from cluster.config.fault_kinds import FaultKind
from cluster.config.schema import PlannedFault
from cluster.fleet.fault_plan import FaultPlan
from cluster.syncer.measures import Measures
from cluster.syncer.shell import Syncer
from coordinator.membership import live
from coordinator.protocol import Island
from coordinator.state import Phase


class Faults:
    """The planned faults; each strikes as soon as the syncer's clock reaches its step."""

    def __init__(
        self,
        plan: Sequence[PlannedFault],
        network: TrainingNetwork,
        measures: Measures,
        timing: Timing,
    ) -> None:
        """Prepare a plan for the processes and links of a network."""
        self._plan, self._left = FaultPlan(plan), len(plan)
        self._network, self._measures, self._timing = network, measures, timing

    def look(self, syncer: Syncer) -> None:
        """Strike the faults that are due."""
        if not self._left or syncer.state.phase is not Phase.RUNNING:
            return
        live_islands = live(syncer.state.members).keys()
        for number, fault in self._plan.due_at(syncer.state.t, live_islands).items():
            self._plan.struck(number)
            self._left -= 1
            self._network.loop.call_soon(self._strike, fault, syncer)

    def _strike(self, fault: PlannedFault, syncer: Syncer) -> None:
        loop = self._network.loop
        island, now_s = Island(fault.island), loop.now_s
        place = self._network.places[island]
        self._measures.fault(island, now_s)
        if fault.kind is FaultKind.DRAIN:
            syncer.drain(island, "the fault plan has it leave")
            return
        if fault.kind is FaultKind.PREEMPT:
            self._network.preempt(place, fault.for_s)
            syncer.drain(island, "preempted: on purpose")
            return
        if fault.kind is FaultKind.CUT:
            place.up_cut_s = place.down_cut_s = now_s + fault.for_s
            return
        if (process := place.process) is None:
            return
        match fault.kind:
            case FaultKind.KILL | FaultKind.NODE:
                self._network.crash(place, process)
                loop.at(now_s + self._timing.back_s, self._network.start, place)
            case FaultKind.STOP:
                process.frozen_s = now_s + fault.for_s
            case FaultKind.SLOW:
                process.drag, process.dragged_s = fault.factor, now_s + fault.for_s
            case FaultKind.NAN:
                process.spoil = math.nan
            case FaultKind.SCALE:
                process.spoil = fault.factor
            case _:
                raise AssertionError(f"{fault.kind} is no fault of an island")
