"""`archipelago simulate --fuzz N --seed S`: many simulated runs, each different, all judged.

A failure is reported by the seed of its schedule, which repeats that schedule alone. If its events
alone show it, the report includes the shortest tape that does. The failure is kept in a file.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from multiprocessing import get_context

from archipelago.lab.checks.coverage import EFFECTS, NEVER, PAIRS, Pair
from archipelago.lab.simulation.fuzz_failures import FuzzFailure
from archipelago.lab.simulation.fuzz_schedule import FAILURES_TOLD, Sum, one_schedule

Seeds = tuple[int, int, int]
"""A seed, its first schedule, and the one after its last."""

ROUND = 25
"""The number of schedules between two garbage collections."""
SEEDS = 10**9
"""The number of possible new seeds."""


@dataclass(slots=True)
class FuzzResult:
    """The result that `simulate --fuzz` prints.

    Pairs and effects that are unreachable are not counted.
    """

    seed: int | None = None
    """The seed of all schedules; None if a single schedule was repeated."""
    schedules: int = 0
    events: int = 0
    faults: int = 0
    violations: int = 0
    pairs_covered: int = 0
    """The pairs of a state and an event that were met."""
    pairs: int = 0
    effects_covered: int = 0
    effects: int = 0
    events_per_s: float = 0.0
    """Events per second of one core's time."""
    judged: int = 0
    """The number of pairs of merges that were checked for a learner that keeps pace."""
    uncovered_pairs: list[str] = field(default_factory=list[str])
    uncovered_effects: list[str] = field(default_factory=list[str])
    unreachable_pairs: dict[str, str] = field(default_factory=dict[str, str])
    failures: list[FuzzFailure] = field(default_factory=list[FuzzFailure])


def fuzz(
    schedules: int | None,
    seed: int,
    *,
    jobs: int = 1,
    for_s: float = math.inf,
    now_s: Callable[[], float] = time.monotonic,
    found: Callable[[FuzzFailure], None] = lambda failure: None,
) -> FuzzResult:
    """Run many schedules on `jobs` cores; the same seed gives the same schedules.

    No schedule begins after `for_s` seconds. With `schedules` = None there is no other end. `found`
    is called with each failure.
    """
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


def repeated(schedule: str) -> FuzzResult:
    """Repeat one schedule alone, by the seed that a failure reports."""
    total, began_s = Sum(), time.process_time()
    one_schedule(schedule, total)
    total.cpu_s = time.process_time() - began_s
    return _result(total, None)


def new_seed() -> int:
    """Return a random seed, different on each call."""
    return random.SystemRandom().randrange(SEEDS)


def _spread(batches: Iterable[Seeds], jobs: int) -> Iterator[Sum]:
    """Yield sums as they are completed; a batch is drawn when a process is free for it."""
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
        uncovered_pairs=sorted(map(_pair_text, reachable - total.pairs)),
        uncovered_effects=sorted(EFFECTS - total.effects),
        unreachable_pairs={_pair_text(pair): reason for pair, reason in sorted(NEVER.items())},
        failures=total.failures[:FAILURES_TOLD],
    )


def _pair_text(pair: Pair) -> str:
    state, event = pair
    return f"{event} while {state}"


def _some(batch: Seeds) -> Sum:
    """Run the schedules of a batch; garbage is collected after them, not within."""
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
