"""Reports to an actor that does nothing: what Ray's calls alone allow, for `bench scale`.

The messages, the number of processes and the pace are those of the stub learners of `stub_actor`.
Only the syncer is missing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from archipelago.lab.bench import procfs
from archipelago.lab.bench.load_window import LoadWindow, climbed
from archipelago.lab.bench.stub_actor import CrewFigures, pid_of
from archipelago.lab.bench.stub_material import StubPace
from cluster.actors.call_errors import answer
from cluster.tasks import Tasks
from coordinator.protocol import (
    Adopted,
    Answer,
    Incarnation,
    Island,
    Lease,
    Life,
    Progress,
    Report,
    Vitals,
)

SETTLE_S = 2.0
"""Seconds after each change of pace before anything is counted."""
TOKENS = 2048
"""Tokens of a step, so that the numbers in a report are as long as real ones."""


class EmptyActor:
    """An actor with the syncer's method `report`, which returns the same answer at once."""

    async def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer:
        """Return an answer."""
        return Answer(t=event.progress.steps, offset=0, stopping=False)


class CallerActor:
    """The callers of one process: each sends a report at its pace, and waits for the answer."""

    def __init__(self, target: Any) -> None:
        self._target, self._tasks = target, Tasks()
        self._calls: list[asyncio.Task[None]] = []
        self._latencies_s: list[float] = []
        self._steps, self._cpu_s = 0, time.process_time()

    async def begin(self, islands: Sequence[Island], pace: StubPace) -> None:
        """Have one caller for each of these names begin."""
        self._pace = pace
        self._calls += [
            self._tasks.spawn(self._call(Life(each, Incarnation(1)))) for each in islands
        ]

    async def pace(self, pace: StubPace) -> None:
        """Change the pace of all callers."""
        self._pace.step_s = pace.step_s

    async def take(self) -> CrewFigures:
        """Return the figures since the last call.

        Errors: the error that ended one of the callers.
        """
        for call in self._calls:
            if call.done():
                call.result()
        latencies_s, self._latencies_s = self._latencies_s, []
        steps, self._steps = self._steps, 0
        cpu_s, before_s = time.process_time(), self._cpu_s
        self._cpu_s = cpu_s
        return CrewFigures(steps, latencies_s, cpu_s - before_s)

    async def _call(self, life: Life) -> None:
        """Report at even intervals, from a random offset on; late reports are not made up for."""
        due_s, steps = time.perf_counter() + self._pace.step_s * random.random(), 0
        while True:
            now_s = time.perf_counter()
            await asyncio.sleep(max(0.0, due_s - now_s))
            began_s, steps = time.perf_counter(), steps + 1
            progress = Progress(steps, steps * TOKENS, Lease(steps))
            report = Report(life, progress, self._pace.step_s)
            await self._target.report.remote(report, Vitals(0.0, computing_s=steps), ())
            self._latencies_s.append(time.perf_counter() - began_s)
            self._steps += 1
            due_s = max(due_s + self._pace.step_s, now_s)


def empty_figures(
    crews: Sequence[Sequence[Island]],
    for_s: float,
    rates: Sequence[float],
    late_ms: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Find the highest rate of reports that an empty actor sustains, and return its figures.

    Ray must be running. `crews`: the callers of each process. `rates`, in reports per second,
    rise; each is tried for `for_s` seconds, and fails if the 99th percentile of the latencies is
    not below `late_ms` milliseconds.
    """
    learners = sum(map(len, crews))
    target: Any = ray.remote(EmptyActor).options(num_cpus=0, enable_task_events=False).remote()
    pid = answer(pid_of(target))
    start: Any = ray.remote(CallerActor).options(num_cpus=0, enable_task_events=False)
    callers = [start.remote(target) for _ in crews]
    try:
        pace = StubPace(learners / rates[0])
        _all([each.begin.remote(names, pace) for each, names in zip(callers, crews, strict=True)])

        def look(rate: float) -> LoadWindow:
            _all([each.pace.remote(StubPace(learners / rate)) for each in callers])
            time.sleep(min(SETTLE_S, for_s / 2))
            _all([each.take.remote() for each in callers])
            began_s, cpu_s = time.monotonic(), procfs.cpu_s(pid)
            time.sleep(for_s)
            seconds, cpu_s = time.monotonic() - began_s, procfs.cpu_s(pid) - cpu_s
            taken: list[CrewFigures] = _all([each.take.remote() for each in callers])
            window = LoadWindow(
                seconds,
                rate,
                sum(each.steps for each in taken),
                [s for each in taken for s in each.latencies_s],
                sum(each.cpu_s for each in taken),
                cpu_s,
                0.0,
                0,
                late_ms,
            )
            say(f"{learners} learners, an actor that does nothing: {window}")
            return window

        held = climbed(rates, look)
    finally:
        for each in (*callers, target):
            ray.kill(each)
    return {
        "empty_held": held.held,
        "empty_reports_per_s": held.reports_per_s,
        "empty_p99_ms": held.percentile_ms(99),
        "empty_cpu_us_per_report": 1e6 * held.syncer_cpu_s / max(1, len(held.latencies_s)),
    }


def _all(calls: Sequence[Any]) -> list[Any]:
    return [answer(call) for call in calls]
