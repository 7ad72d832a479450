"""The rounds layer: the coordinator's own rules on a window of a trace, in virtual time.

The trace only has the times of failures and repairs of slices. The learners are those of the
simulator, with the real learner's state. Around them run the rules, the syncer's own shell, the
real shard, and the judge of invariants. When a learner computes follows from the events: its
process is killed when it loses a slice; after the rebuild another one starts, joins, fetches the
model and steps. Completed steps are counted, each with the slices that took part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from archipelago.lab.checks.facts import Truth
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.planner.cluster_model import Grow, Recovery
from archipelago.lab.planner.trace import Trace
from archipelago.lab.simulation.network import SimNetwork
from archipelago.lab.simulation.plan import LAYOUT, SimPlan, Trait
from archipelago.lab.simulation.ports import SimPorts
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.site import Machine, SimSite
from archipelago.lab.simulation.syncer import SyncerSlot
from coordinator.direction_gate import Watch
from coordinator.protocol import Anchor, Island
from coordinator.schedule import Schedule
from coordinator.state import Rule

FETCH_S = 5.0
"""Seconds of each rebuild until a joining learner has the model: 10 GB at 16 Gbit/s.

It is at most half of the shorter rebuild.
"""
LATENCY_S = 0.0001
"""One-way latency of a message in seconds, ± 50 %, at most 1/40 of the shorter rebuild.

It is so short that a slice hardly ever fails after the end of a rebuild in one layer and before it
in the other. One layer would then count one rebuild more.
"""
MESSAGES = 4
"""The messages until a life is granted and the model is requested."""
MERGE_S, STORE_S = 0.05, 0.1
WARM_UP_S = 2 * (FETCH_S + MESSAGES * LATENCY_S)
"""Seconds until all learners are live and the window begins."""
LOOKS = 5000
"""Polls per step of a learner that will rebuild at the end of its step."""
LEASE_WINDOWS = 4096
EVENTS_A_STEP = 40
"""Events for each learner's step and second above which a window is in a livelock."""


@dataclass(frozen=True, slots=True)
class Sync:
    """The settings of the rules: H, P, τ and K."""

    every: int
    fragments: int
    overlap: int
    quorum: int


@dataclass(frozen=True, slots=True)
class PlayedRounds:
    """The counts of one window."""

    goodput: float
    """A share of 1."""
    merged: float
    """The share of all tokens, including the warm-up's, in the global model at the end."""
    events: int
    """The events that the rules handled."""
    merges: int
    rebuilds: int


class _Fetching(SimNetwork):
    """The simulator's network, with a delay for fetching the model."""

    def __init__(self, site: SimSite, fetch_s: float, rebuilt: dict[Island, _Slices]) -> None:
        super().__init__(site)
        self._fetch_s, self._slices = fetch_s, rebuilt

    def whole(self, process: SimProcess) -> None:
        self.loop.at(self.loop.now_s + self._fetch_s, process.reached, self._fetched, process)

    def _fetched(self, process: SimProcess) -> None:
        process.trait = self._slices[process.island].taken_in(process.trait)
        super().whole(process)


class _Slices:
    """The slices of one island: those that are out, and those that its learner computes on."""

    def __init__(self, count: int, tokens: int) -> None:
        self._count, self._tokens = count, tokens
        self.out, self.members = set[int](), set(range(count))
        self.rebuilding = True

    def taken_in(self, trait: Trait) -> Trait:
        """Add all sound slices, and return the trait with the tokens of their steps."""
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

    `weights` gives the weight of each learner's slices, such as their chips; the default is 1.
    `fetching` scales the time to fetch the model: if it is not 1, rebuilds take longer or shorter
    than `recovery` specifies.
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
        self._site = site = SimSite(plan)
        self._slices = {
            island: _Slices(trace.slices, weight)
            for (island, trace), weight in zip(self._traces.items(), weights, strict=True)
        }
        self._network = network = _Fetching(site, fetching * fetch_s, self._slices)
        judge = InvariantJudge(plan.rule, Truth(site.made_of.get, lambda life, from_s, to_s: True))
        self._seat = SyncerSlot(site, SimPorts(site, network), judge)
        self._done = 0  # tokens of ended lives, less those from before the window
        self._rebuilds = 0

    def play(self) -> PlayedRounds:
        site, loop = self._site, self._site.loop
        for island, machine in site.places.items():
            trace = self._traces[island]
            loop.at(0.0, self._network.start, machine)
            for fails_s, back_s, slice_number in zip(
                trace.fails_s.tolist(), trace.back_s.tolist(), trace.slice_of.tolist(), strict=True
            ):
                loop.at(WARM_UP_S + fails_s, self._fails, machine, slice_number)
                loop.at(WARM_UP_S + back_s, self._back, machine, slice_number)
        with site.playing():
            loop.run(WARM_UP_S, site.failed)
            warm_up = sum(map(_tokens, site.places.values()))
            self._done = -warm_up
            loop.run(WARM_UP_S + self._lasts_s, site.failed)
            site.check()
        tokens = self._done + sum(map(_tokens, site.places.values()))
        last = self._seat.states[-1]
        merged = sum(row.merged for row in last.ledger.rows) / len(last.ledger.rows)
        return PlayedRounds(
            goodput=tokens * self._step_s / (sum(self._whole.values()) * self._lasts_s),
            merged=merged / max(1, tokens + warm_up),
            events=len(self._seat.tape),
            merges=last.merges,
            rebuilds=self._rebuilds,
        )

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
        """End the process, and start another one in time to step again after `takes_s`."""
        slices, loop = self._slices[machine.trait.island], self._site.loop
        self._done += _tokens(machine)
        self._rebuilds += 1
        slices.rebuilding = True
        if (process := machine.process) is not None:
            self._network.crash(machine, process)
        begins_s = loop.now_s + takes_s - self._join_s
        loop.at(begins_s, self._network.start, machine)


def _tokens(machine: Machine) -> int:
    """Return the tokens that the machine's current life has trained."""
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
    """Return a plan without faults; `whole` holds each island's tokens of one step."""
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
