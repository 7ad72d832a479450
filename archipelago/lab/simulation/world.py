"""A cluster without machines: the syncer's own shell and rules, in virtual time, under faults.

`cluster.syncer.Syncer` runs unchanged on a `VirtualLoop`. Around it are learners, a shard, a disk
and a network that are made of integers. A `SimPlan` lists the faults and their times. After every
event the `InvariantJudge` checks what the rules have done.
"""

from __future__ import annotations

import math

from archipelago.lab.checks.facts import Truth, Violation
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.simulation.faults import FaultInjector
from archipelago.lab.simulation.network import BACK_S, SimNetwork
from archipelago.lab.simulation.plan import (
    EVENTS_WANTED,
    FAULTS_WANTED,
    ROUNDS_WANTED,
    SimPlan,
    Trouble,
)
from archipelago.lab.simulation.ports import SimPorts
from archipelago.lab.simulation.site import SimSite
from archipelago.lab.simulation.syncer import SyncerSlot
from archipelago.lab.virtual.site import progress_text
from coordinator.protocol import Life
from coordinator.state import Phase

AFTERMATH_S = 3.0
"""Seconds after its end during which a run is watched."""


class SimWorld:
    """Everything around the rules; `run` plays a plan to its end."""

    def __init__(self, plan: SimPlan) -> None:
        self.plan, self.site = plan, SimSite(plan)
        self.network = SimNetwork(self.site)
        self.judge = InvariantJudge(plan.rule, self._truth())
        self.seat = SyncerSlot(self.site, SimPorts(self.site, self.network), self.judge)
        self.faults = FaultInjector(self.site, self.network, self.seat)

    def _truth(self) -> Truth:
        site = self.site
        fastest = {trait.island: trait.step_s * (1 - trait.jitter) for trait in self.plan.traits}
        return Truth(
            site.made_of.get,
            self._excused,
            lambda life: life in site.lied,
            lambda life: fastest.get(life.island, 0.0),
        )

    def run(self) -> None:
        """Play the plan to its end.

        Errors: `Violation` if an invariant is broken; defects of the rules or the shell come
        through.
        """
        plan, loop = self.plan, self.site.loop
        for machine in self.site.places.values():
            loop.at(machine.trait.joins_s, self.network.start, machine)
        for fault in plan.faults:
            loop.at(fault.at_s, self.faults.strike, fault)
        if plan.unruly:
            loop.at(plan.healed_s, self.faults.heal)
            loop.at(plan.healed_s + plan.patience_s, self._look)
        if math.isfinite(plan.stop_s):
            loop.at(plan.stop_s, self._stop)
        with self.site.playing():
            loop.run(plan.limit_s, self._ending)
            self._disturb(self.site.rng.random() * BACK_S / 2)
            self._run_to_the_end()
            self._disturb(AFTERMATH_S / 2)
            loop.run(loop.now_s + AFTERMATH_S, self.site.failed)
            if not self._over():  # the syncer died, and has forgotten that it had finished
                self._run_to_the_end()
                loop.run(loop.now_s + AFTERMATH_S, self.site.failed)
            self._run_to_the_end()
            self._check_leftovers()

    @property
    def enough(self) -> bool:
        """Whether the schedule had enough events, faults and rounds."""
        return (
            len(self.seat.tape) >= EVENTS_WANTED
            and self.faults.struck >= FAULTS_WANTED
            and min(self.judge.memory.rounds_of) >= ROUNDS_WANTED
        )

    def _disturb(self, after_s: float) -> None:
        if self.plan.unruly:
            self.site.loop.at(self.site.loop.now_s + after_s, self.faults.disturb)

    def _ending(self) -> bool:
        syncer = self.site.syncer
        return syncer is not None and (
            syncer.state.phase is not Phase.RUNNING or syncer.failure is not None
        )

    def _over(self) -> bool:
        return self.site.syncer is not None and self.site.syncer.finished.is_set()

    def _run_to_the_end(self) -> None:
        self.site.loop.run(self.plan.limit_s, self._over)
        self.site.check()
        if self.seat.states[-1].phase is not Phase.FINISHED:
            text = progress_text(self.seat.states[-1], self.plan.rule.steps)
            raise Violation("the run ends", f"not by {self.plan.limit_s:.0f} s, {text}")

    def _look(self) -> None:
        """Check at intervals, once all faults are repaired, that no round is open for too long."""
        if (syncer := self.site.syncer) is not None:
            self.judge.no_round_is_stuck(
                syncer.state, self.site.now_s(), self.faults.healed_now_s, self.plan.patience_s
            )
        self.site.loop.at(self.site.loop.now_s + self.plan.patience_s / 4, self._look)

    def _stop(self) -> None:
        """End the run by request, as soon as enough has happened."""
        if self.site.syncer is None or not self.enough:
            self.site.loop.at(self.site.loop.now_s + 1, self._stop)
        else:
            self.site.syncer.stop("asked to")

    def _check_leftovers(self) -> None:
        """Check that the shards hold only contributions of the state, and check the ledger."""
        state, shards = self.seat.states[-1], self.site.shards
        held = {c.reference for fragment in state.fragments for c in fragment.inbox}
        if leftovers := shards.held - held:
            raise Violation("bytes are freed", f"the shard still holds {sorted(leftovers)}")
        undurable = Trouble.DISK in self.faults.met or self.plan.store_every > 1
        if self.seat.died and undurable:
            return  # published versions that were not durable may be gone
        for p, (row, (_, value)) in enumerate(zip(state.ledger.rows, shards.whole(), strict=True)):
            if row.merged != value:
                text = f"f{p}: {value} tokens are merged, the ledger has {row.merged}"
                raise Violation("the ledger is true", text)

    def _excused(self, life: Life, from_s: float, to_s: float) -> bool:
        """Return whether this learner had a reason to miss a request between these times."""
        machine, plan = self.site.places[life.island], self.plan
        count, trait = plan.rule.schedule.fragments, machine.trait
        messages_s = 3 * (count + 4) * trait.latency_s
        shard_s = count * (len(plan.traits) + 2) * plan.merge_s + plan.store_s
        if to_s - from_s < 3 * trait.slowest_s + messages_s + shard_s:
            return True
        spans = (*machine.troubles, *self.site.everywhere)
        return any(start < to_s and from_s < stop for start, stop in spans)
