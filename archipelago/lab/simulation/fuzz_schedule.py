"""One schedule of a fuzz, played and judged, and the totals over many."""

from __future__ import annotations

from dataclasses import dataclass, field

from archipelago.lab.checks.coverage import NEVER, Pair
from archipelago.lab.checks.facts import Violation
from archipelago.lab.simulation.fuzz_failures import BREAKAGES, FuzzFailure, failure_of, shortest
from archipelago.lab.simulation.plan import EVENTS_WANTED, draw
from archipelago.lab.simulation.world import SimWorld

STRETCHES, MORE = 8, 1.25
"""The most attempts for one schedule, and the least factor to lengthen a too short run by."""
FAILURES_TOLD = 5
"""The number of failures that are shrunk and reported."""


@dataclass(slots=True)
class Sum:
    """The totals of some schedules."""

    schedules: int = 0
    events: int = 0
    faults: int = 0
    violations: int = 0
    judged: int = 0
    """The number of pairs of merges that were checked for a learner that keeps pace."""
    cpu_s: float = 0.0
    """Seconds of processor time."""
    pairs: set[Pair] = field(default_factory=set[Pair])
    effects: set[str] = field(default_factory=set[str])
    failures: list[FuzzFailure] = field(default_factory=list[FuzzFailure])

    def add(self, other: Sum) -> None:
        """Add the totals of other schedules."""
        self.schedules += other.schedules
        self.events += other.events
        self.faults += other.faults
        self.violations += other.violations
        self.judged += other.judged
        self.cpu_s += other.cpu_s
        self.pairs |= other.pairs
        self.effects |= other.effects
        self.failures += other.failures


def one_schedule(seed: str, total: Sum, *, shrink: bool = True) -> None:
    """Play one schedule and add it to `total`; a too short one is drawn again with more steps."""
    stretch = 1.0
    for attempt in range(STRETCHES):
        world = SimWorld(draw(seed, stretch=stretch))
        failure: FuzzFailure | None = None
        try:
            world.run()
            if attempt == STRETCHES - 1 and not world.enough:
                text = f"{len(world.seat.tape)} events, rounds {world.judge.memory.rounds_of}"
                raise Violation(
                    "a run has enough rounds", f"{text}, though T is {stretch:.1f} times larger"
                )
            if impossible_pairs := sorted(world.judge.memory.coverage.pairs & NEVER.keys()):
                raise Violation("impossible pairs", f"{impossible_pairs} are listed as impossible")
        except BREAKAGES as error:
            failure = failure_of(world, seed, stretch, error)
        total.events += len(world.seat.tape)
        total.faults += world.faults.struck
        total.judged += world.judge.memory.pace_judged
        total.pairs |= world.judge.memory.coverage.pairs
        total.effects |= world.judge.memory.coverage.effects
        if failure is not None:
            total.violations += 1
            if len(total.failures) < FAILURES_TOLD:
                tape = shortest(world, failure) if shrink else []
                failure.tape = [f"{now_s:.3f} {event}" for now_s, event in tape]
                total.failures.append(failure)
        if failure is not None or world.enough:
            total.schedules += 1
            return
        stretch *= max(MORE, MORE * EVENTS_WANTED / len(world.seat.tape))
