"""The rounds layer: the coordinator's own rules on a window of a trace, in virtual time.

The trace says when a slice fails and when it is back, and nothing else. Learners are those of the
simulator, with the real learner's state; around them are the rules, the syncer's own shell, the
shard as it runs, and the judge of invariants. When a learner computes follows from what happens:
its process is killed when it loses a slice, another one begins after the rebuild, joins, fetches
the model and steps. What is counted are steps that learners have completed, each with the slices
that took part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from archipelago.lab.checks.facts import Truth
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.planner.cluster_model import Grow, Recovery
from archipelago.lab.planner.trace import Trace
from archipelago.lab.simulation.event_loop import running
from archipelago.lab.simulation.network import NOTICED_S, SimNetwork
from archipelago.lab.simulation.plan import LAYOUT, SimPlan, Trait
from archipelago.lab.simulation.ports import SimPorts
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.site import Machine, Site
from archipelago.lab.simulation.syncer import SyncerSlot
from archipelago.lab.simulation.world import quiet
from coordinator.direction_gate import Watch
from coordinator.protocol import Anchor, Island
from coordinator.schedule import Schedule
from coordinator.state import Rule

FETCH_S = 5.0
"""Of each rebuild: until a learner that joins has the model; 10 GB at 16 Gbit/s. It is no more than
half of the shorter rebuild."""
LATENCY_S = 0.0001
"""Of a message, one way, give or take half of it; no more than a fortieth of that. It is so short
that hardly ever a slice fails after the end of a rebuild by one layer and before it by the other:
then one of them has a rebuild more."""
MESSAGES = 4
"""Until a life is granted and the model is asked for."""
MERGE_S, STORE_S = 0.05, 0.1
WARM_UP_S = 2 * (FETCH_S + MESSAGES * LATENCY_S)
"""After so long all learners are live, and a window begins."""
LOOKS = 5000
"""Times a step that a learner is looked at which shall rebuild at the end of its step."""
LEASE_WINDOWS = 4096
EVENTS_A_STEP = 40
"""No window has so many for each of its learners' steps and seconds: more turn in circles."""


@dataclass(frozen=True, slots=True)
class Sync:
    """What the rules are set to: H, P, τ and K."""

    every: int
    fragments: int
    overlap: int
    quorum: int


@dataclass(frozen=True, slots=True)
class PlayedRounds:
    """What was counted in one window.

    `goodput`: share of 1. `merged`: of all tokens trained, with the warm-up, the share that is in
    the global model when the window ends. `events`: that the rules were told.
    """

    goodput: float
    merged: float
    events: int
    merges: int
    rebuilds: int


class _Fetching(SimNetwork):
    """The simulator's network, where fetching the model takes a while."""

    def __init__(self, site: Site, fetch_s: float, rebuilt: dict[Island, _Slices]) -> None:
        super().__init__(site)
        self._fetch_s, self._slices = fetch_s, rebuilt

    def whole(self, who: SimProcess) -> None:
        self.loop.at(self.loop.now_s + self._fetch_s, who.reached, self._fetched, who)

    def _fetched(self, who: SimProcess) -> None:
        who.trait = self._slices[who.island].taken_in(who.trait)
        super().whole(who)


class _Slices:
    """The slices of one island: which are out, and which its learner computes on."""

    def __init__(self, count: int, tokens: int) -> None:
        self._count, self._tokens = count, tokens
        self.out, self.members = set[int](), set(range(count))
        self.rebuilding = True

    def taken_in(self, trait: Trait) -> Trait:
        """All that are sound take part from now on."""
        self.members = set(range(self._count)) - self.out
        self.rebuilding = False
        return replace(trait, tokens=self._tokens * len(self.members))


def play(
    traces: Sequence[Trace],
    recovery: Recovery,
    step_s: float,
    sync: Sync,
    seed: str,
    *,
    weights: Sequence[int] | None = None,
    fetching: float = 1.0,
) -> PlayedRounds:
    """Play a window that begins with all slices sound; one trace for each learner.

    `weights`: what a slice of each learner counts, in chips say; 1 by default. `fetching`: a
    learner that joins has the model after so many times as long; with another number than 1 the
    rebuilds take longer, or shorter, than the recovery says.
    """
    counted = weights or [1] * len(traces)
    return _Window(traces, counted, recovery, step_s, sync, seed, fetching).play()


class _Window:
    def __init__(
        self,
        traces: Sequence[Trace],
        weights: Sequence[int],
        recovery: Recovery,
        step_s: float,
        sync: Sync,
        seed: str,
        fetching: float,
    ) -> None:
        shortest_s = min(recovery.shrink_s, recovery.grow_s)
        fetch_s, latency_s = min(FETCH_S, shortest_s / 2), min(LATENCY_S, shortest_s / 40)
        self._join_s = fetch_s + MESSAGES * latency_s
        self._recovery, self._step_s, self._lasts_s = recovery, step_s, traces[0].lasts_s
        self._traces = {Island(f"i{m}"): trace for m, trace in enumerate(traces)}
        self._whole = {
            island: weight * trace.slices
            for (island, trace), weight in zip(self._traces.items(), weights, strict=True)
        }
        plan = _plan(self._whole, self._lasts_s, step_s, latency_s, sync, seed)
        self._site = site = Site(plan)
        self._slices = {
            island: _Slices(trace.slices, weight)
            for (island, trace), weight in zip(self._traces.items(), weights, strict=True)
        }
        self._network = network = _Fetching(site, fetching * fetch_s, self._slices)
        judge = InvariantJudge(plan.rule, Truth(site.made_of.get, lambda life, from_s, to_s: True))
        self._seat = SyncerSlot(site, SimPorts(site, network), judge)
        self._done = 0  # tokens of lives that are over, less those from before the window
        self._rebuilds = 0

    def play(self) -> PlayedRounds:
        site, loop = self._site, self._site.loop
        for island, machine in site.machines.items():
            trace = self._traces[island]
            loop.at(0.0, self._network.start, machine)
            for fails_s, back_s, which in zip(
                trace.fails_s.tolist(), trace.back_s.tolist(), trace.slice_of.tolist(), strict=True
            ):
                loop.at(WARM_UP_S + fails_s, self._fails, machine, which)
                loop.at(WARM_UP_S + back_s, self._back, machine, which)
        with running(loop), quiet():
            try:
                loop.run(WARM_UP_S, self._failed)
                warm_up = sum(map(_tokens, site.machines.values()))
                self._done = -warm_up
                loop.run(WARM_UP_S + self._lasts_s, self._failed)
                if site.syncer is not None and site.syncer.failure is not None:
                    raise site.syncer.failure
            finally:
                if site.syncer is not None:
                    site.syncer.close()
                site.shards.close()
                loop.finish()
        tokens = self._done + sum(map(_tokens, site.machines.values()))
        last = self._seat.states[-1]
        merged = sum(row.merged for row in last.ledger.rows) / len(last.ledger.rows)
        return PlayedRounds(
            goodput=tokens * self._step_s / (sum(self._whole.values()) * self._lasts_s),
            merged=merged / max(1, tokens + warm_up),
            events=len(self._seat.tape),
            merges=last.merges,
            rebuilds=self._rebuilds,
        )

    def _failed(self) -> bool:
        return self._site.syncer is not None and self._site.syncer.failure is not None

    def _fails(self, machine: Machine, which: int) -> None:
        slices = self._slices[machine.trait.island]
        slices.out.add(which)
        if not slices.rebuilding and which in slices.members:
            self._rebuild(machine, self._recovery.shrink_s)

    def _back(self, machine: Machine, which: int) -> None:
        slices = self._slices[machine.trait.island]
        slices.out.remove(which)
        if slices.out and self._recovery.grow is Grow.WHOLE:
            return
        if (process := machine.process) is not None and process.learner is not None:
            self._at_boundary(machine, process, process.learner.now.progress.steps)

    def _at_boundary(self, machine: Machine, process: SimProcess, steps: int) -> None:
        """Rebuild to grow once the step under way is complete, if nothing else happens first."""
        slices = self._slices[machine.trait.island]
        if machine.process is not process or slices.rebuilding or process.learner is None:
            return
        if slices.out and self._recovery.grow is Grow.WHOLE:
            return
        if process.learner.now.progress.steps > steps:
            self._rebuild(machine, self._recovery.grow_s)
        else:
            loop = self._site.loop
            loop.at(loop.now_s + self._step_s / LOOKS, self._at_boundary, machine, process, steps)

    def _rebuild(self, machine: Machine, takes_s: float) -> None:
        """The process ends; another one begins so late that it steps again after `takes_s`."""
        slices, loop = self._slices[machine.trait.island], self._site.loop
        self._done += _tokens(machine)
        self._rebuilds += 1
        slices.rebuilding = True
        if (process := machine.process) is not None:
            self._network.crash(machine, process, NOTICED_S)
        begins_s = loop.now_s + takes_s - self._join_s
        loop.at(begins_s, self._network.start, machine)


def _tokens(machine: Machine) -> int:
    """What the life that is lived there has trained."""
    process = machine.process
    if process is None or process.learner is None:
        return 0
    return process.learner.now.progress.tokens


def _plan(
    whole: Mapping[Island, int],
    lasts_s: float,
    step_s: float,
    latency_s: float,
    sync: Sync,
    seed: str,
) -> SimPlan:
    """A plan in which nothing breaks by itself; `whole`: each island's tokens of one step."""
    rule = Rule(
        Schedule(sync.every, sync.fragments),
        LAYOUT,
        steps=math.ceil(2 * (WARM_UP_S + lasts_s) / step_s),
        min_quorum=sync.quorum,
        grace_s=None,
        overlap=sync.overlap,
        max_staleness=8,
        lease_windows=LEASE_WINDOWS,
        watch=Watch.REPORT,
    )
    traits = tuple(
        Trait(
            island,
            joins_s=0.0,
            step_s=step_s,
            jitter=0.0,
            tokens=tokens,
            windows=1,
            latency_s=latency_s,
        )
        for island, tokens in whole.items()
    )
    return SimPlan(
        seed,
        rule,
        traits,
        carry=True,
        faults=(),
        healed_s=math.inf,
        stop_s=math.inf,
        merge_s=MERGE_S,
        store_s=STORE_S,
        store_every=1,
        anchor=Anchor.BASE,
        lock_step=None,
        most_events=math.ceil(EVENTS_A_STEP * len(whole) * (rule.steps + WARM_UP_S + lasts_s)),
        unruly=False,
    )
