"""`archipelago simulate --fuzz N --seed S`: many simulated runs, each different, all judged.

A failure is told by the seed of its schedule, which repeats that one alone, and by the shortest
tape that shows it where the events alone do; it is kept in a file.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import count, islice, takewhile
from multiprocessing import get_context
from pathlib import Path

from archipelago.lab.checks.coverage import EFFECTS, NEVER, PAIRS, Pair
from archipelago.lab.checks.facts import Truth, Violation
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.simulation.plan import EVENTS_WANTED, draw
from archipelago.lab.simulation.world import SimWorld
from cluster.storage.files import write_json
from coordinator.advance import advance
from coordinator.errors import ArchipelagoError
from coordinator.protocol import Event
from coordinator.state import initial

Events = list[tuple[float, Event]]
Seeds = tuple[int, int, int]
"""A seed, and the schedules of it from the one number to the other."""

BREAKAGES = (
    ArchipelagoError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError,
    ValueError,
)  # fmt: skip
"""What a defect of the rules or of the shell looks like."""
STRETCHES, MORE = 8, 1.25
"""A run that was too short is drawn anew, longer by at least this factor, at most so often."""
TRIALS = 1500
"""Tapes tried out in search of the shortest."""
FAILURES_TOLD, ROUND = 5, 25
"""So many failures are shrunk and told; garbage is swept up after so many schedules."""
KEPT = Path("runs", "fuzz")
"""Where failures are kept."""
SEEDS = 10**9
"""A new seed is one of so many."""


@dataclass(slots=True)
class FuzzFailure:
    """One violation; `simulate --schedule SEED` repeats it, which draws `draw(seed,
    stretch=stretch)`.

    `events`: heard until then. `tape`: the shortest list of (time, event) found that violates the
    same invariant of the rules; empty if the world's part is needed to see it.
    """

    seed: str
    stretch: float
    invariant: str
    words: str
    events: int
    tape: list[str]


@dataclass(slots=True)
class FuzzResult:
    """What `simulate --fuzz` prints. Pairs and effects that cannot be met are not counted.

    `seed`: of all schedules, unless it was one alone. `events_per_s`: per second of one core's
    time. `judged`: how often a learner that keeps pace was looked for in two merges of a fragment.
    """

    seed: int | None = None
    schedules: int = 0
    events: int = 0
    faults: int = 0
    violations: int = 0
    pairs_covered: int = 0
    pairs: int = 0
    effects_covered: int = 0
    effects: int = 0
    events_per_s: float = 0.0
    judged: int = 0
    uncovered_pairs: list[str] = field(default_factory=list[str])
    uncovered_effects: list[str] = field(default_factory=list[str])
    unreachable_pairs: dict[str, str] = field(default_factory=dict[str, str])
    failures: list[FuzzFailure] = field(default_factory=list[FuzzFailure])


@dataclass(slots=True)
class Sum:
    """Of some schedules."""

    schedules: int = 0
    events: int = 0
    faults: int = 0
    violations: int = 0
    judged: int = 0
    cpu_s: float = 0.0
    pairs: set[Pair] = field(default_factory=set[Pair])
    effects: set[str] = field(default_factory=set[str])
    failures: list[FuzzFailure] = field(default_factory=list[FuzzFailure])

    def add(self, other: Sum) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.faults += other.faults
        self.violations += other.violations
        self.judged += other.judged
        self.cpu_s += other.cpu_s
        self.pairs |= other.pairs
        self.effects |= other.effects
        self.failures += other.failures


def fuzz(
    schedules: int | None,
    seed: int,
    *,
    jobs: int = 1,
    for_s: float = math.inf,
    now_s: Callable[[], float] = time.monotonic,
    found: Callable[[FuzzFailure], None] = lambda failure: None,
) -> FuzzResult:
    """Run that many schedules (None: no end of them), on `jobs` cores, and begin none when `for_s`
    seconds are over; the same seed gives the same schedules. Each failure is told when it is
    `found`."""
    total, until_s = Sum(), now_s() + for_s
    numbers = count(0, ROUND) if schedules is None else range(0, schedules, ROUND)
    last = math.inf if schedules is None else schedules
    batches = takewhile(
        lambda batch: now_s() < until_s,
        ((seed, first, int(min(first + ROUND, last))) for first in numbers),
    )
    for part in map(_some, batches) if jobs == 1 else _spread(batches, jobs):
        total.add(part)
        for failure in part.failures:
            found(failure)
    total.failures.sort(key=lambda failure: int(failure.seed.rpartition("/")[2]))
    return _result(total, seed)


def again(schedule: str) -> FuzzResult:
    """One schedule alone, by the seed that a failure tells."""
    total, began_s = Sum(), time.process_time()
    one_schedule(schedule, total)
    total.cpu_s = time.process_time() - began_s
    return _result(total, None)


def new_seed() -> int:
    """Another one each time."""
    return random.SystemRandom().randrange(SEEDS)


def keep(failure: FuzzFailure, folder: Path = KEPT) -> str:
    """Write down a failure; how to repeat it, in words."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.seed.replace('/', '-')}.json"
    write_json(path, asdict(failure))
    return f"repeat it: archipelago simulate --schedule {failure.seed} (kept in {path})"


def _spread(batches: Iterable[Seeds], jobs: int) -> Iterator[Sum]:
    """The sums as they come; a batch is drawn when a process is free for it."""
    batches = iter(batches)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        under_way = {pool.submit(_some, batch) for batch in islice(batches, jobs)}
        while under_way:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            under_way |= {pool.submit(_some, batch) for batch in islice(batches, len(done))}
            for part in done:
                yield part.result()


def _result(total: Sum, seed: int | None) -> FuzzResult:
    reachable = PAIRS - NEVER.keys()
    return FuzzResult(
        seed=seed,
        schedules=total.schedules,
        events=total.events,
        faults=total.faults,
        violations=total.violations,
        pairs_covered=len(total.pairs & reachable),
        pairs=len(reachable),
        effects_covered=len(total.effects & EFFECTS),
        effects=len(EFFECTS),
        events_per_s=total.events / total.cpu_s if total.cpu_s else 0.0,
        judged=total.judged,
        uncovered_pairs=sorted(map(_told, reachable - total.pairs)),
        uncovered_effects=sorted(EFFECTS - total.effects),
        unreachable_pairs={_told(pair): why for pair, why in sorted(NEVER.items())},
        failures=total.failures[:FAILURES_TOLD],
    )


def _told(pair: Pair) -> str:
    state, event = pair
    return f"{event} while {state}"


def _some(batch: Seeds) -> Sum:
    """Schedules `first` to `last`; garbage is swept up between, not within, them."""
    seed, first, last = batch
    total = Sum()
    began_s = time.process_time()
    was_on = gc.isenabled()
    gc.disable()
    try:
        for number in range(first, last):
            one_schedule(f"{seed}/{number}", total)
        gc.collect()
    finally:
        if was_on:
            gc.enable()
    total.cpu_s = time.process_time() - began_s
    return total


def one_schedule(seed: str, total: Sum, *, shrink: bool = True) -> None:
    """One schedule with events, faults and rounds enough: drawn longer if it was too short."""
    stretch = 1.0
    for attempt in range(STRETCHES):
        world = SimWorld(draw(seed, stretch=stretch))
        failure: FuzzFailure | None = None
        try:
            world.run()
            if attempt == STRETCHES - 1 and not world.enough:
                words = f"{len(world.seat.tape)} events, rounds {world.judge.memory.rounds_of}"
                raise Violation(
                    "enough happens", f"{words}, though T is {stretch:.1f} times larger"
                )
            if met := sorted(world.judge.memory.coverage.pairs & NEVER.keys()):
                raise Violation("what cannot be", f"{met} are said to be out of reach")
        except BREAKAGES as error:
            failure = _failure(world, seed, stretch, error)
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


def _failure(world: SimWorld, seed: str, stretch: float, error: Exception) -> FuzzFailure:
    return FuzzFailure(seed, stretch, _invariant(error), str(error), len(world.seat.tape), [])


def _invariant(error: Exception) -> str:
    return error.name if isinstance(error, Violation) else type(error).__name__


def shortest(world: SimWorld, failure: FuzzFailure) -> Events:
    """The shortest tape found that violates the same invariant, by leaving out ever smaller parts
    of it (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002); empty
    if the events alone do not show it."""
    tape = list(world.seat.tape)
    event = world.seat.hearing
    if event is not None and (not tape or tape[-1][1] is not event):
        tape.append((world.site.now_s(), event))  # the rules broke of it
    trials = 0

    def fails(candidate: Sequence[tuple[float, Event]]) -> bool:
        nonlocal trials
        trials += 1
        return violated(world, candidate) == failure.invariant

    if not fails(tape):
        return []
    parts = 2
    while len(tape) > 1 and trials < TRIALS:
        size = -(-len(tape) // parts)
        for start in range(0, len(tape), size):
            rest = tape[:start] + tape[start + size :]
            if rest and fails(rest):
                tape, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(tape), 2 * parts)
    return tape


def violated(world: SimWorld, tape: Sequence[tuple[float, Event]]) -> str | None:
    """Which invariant the rules violate when they hear these events, and nothing else."""
    rule = world.plan.rule
    judge = InvariantJudge(rule, Truth(world.site.made_of.get))
    state = initial(rule)
    try:
        for now_s, event in tape:
            before, (state, effects) = state, advance(rule, state, event, now_s)
            judge.saw(before, event, state, effects, now_s)
    except BREAKAGES as error:
        return _invariant(error)
    return None
