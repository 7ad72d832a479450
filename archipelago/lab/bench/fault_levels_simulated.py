"""The simulated half of `bench faults --levels`: the goodput that the same kills leave in a model.

Decoupled and elastic training are those of the chips layer (`planner.learner_timeline`), with one
slice for each island. Its job that is not elastic has spare chips and no snapshots; here a job
waits for the killed island, which a kill during the restart delays again, and goes back to a
snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from archipelago.lab.bench.fault_levels_plan import Kill
from archipelago.lab.planner.cluster_model import Grow, Recovery, Returns
from archipelago.lab.planner.learner_timeline import Course, elastic
from archipelago.lab.planner.trace import Trace
from cluster.config.values import Mode

NEARLY_S = 1e-6
"""The difference of two times, in seconds, that is rounding."""


@dataclass(frozen=True, slots=True)
class Recoveries:
    """The times of a recovery in one mode, in seconds."""

    back_s: float
    """Seconds from a kill until the island trains again; for a rigid job, until the job does."""
    shrink_s: float
    """Seconds that the others of an elastic job stop without it; 0 in other modes."""
    grow_s: float
    """Seconds that they stop for its return; 0 in other modes."""


@dataclass(frozen=True, slots=True)
class SimulatedWindow:
    """A window of a run, and the kills of its plan."""

    kills: Sequence[Kill]
    """The kills, in seconds from the start of the plan."""
    islands: Sequence[str]
    """The names of all islands."""
    from_s: float
    """The start of the window, in seconds from the start of the plan."""
    to_s: float
    """The end of the window and of the plan."""
    step_s: float
    """The time of a step, in seconds."""
    every: int
    """Steps between two hand-ins of the same fragment, H."""
    snapshot_steps: int
    """Steps between two snapshots of a data-parallel job."""


def simulated(mode: Mode, window: SimulatedWindow, times: Recoveries) -> float:
    """Return the goodput of a window in this mode, as a share of all islands at full pace."""
    match mode:
        case Mode.DECOUPLED:
            return _decoupled(window, times)
        case Mode.ELASTIC:
            recovery = _recovery(times.shrink_s, times.grow_s, times.back_s)
            course = elastic(_trace(window, window.islands, times.back_s), recovery, window.step_s)
            return _goodput(course, window)
        case Mode.DATA_PARALLEL:
            return _rigid(window, times.back_s)
        case _:
            raise AssertionError(f"{mode} is not compared")


def _decoupled(window: SimulatedWindow, times: Recoveries) -> float:
    """Return the mean of the islands, each without the work that died before its hand-in.

    Hand-ins come once in H steps and kills at any time between, so a kill costs half of the work of
    H steps, or less if the island has trained for less.
    """
    interval_s = window.every * window.step_s
    total = 0.0
    for island in window.islands:
        trace = _trace(window, [island], times.back_s)
        course = elastic(trace, _recovery(0.0, 0.0, times.back_s), window.step_s)
        lost_s = 0.0
        for stop_s, useful_s, share in zip(course.to_s, course.useful_s, course.share, strict=True):
            if share > 0 and window.from_s <= stop_s < window.to_s - NEARLY_S:
                short_s = min(float(useful_s), interval_s)
                lost_s += short_s - short_s**2 / (2 * interval_s)
        total += _goodput(course, window) - lost_s / (window.to_s - window.from_s)
    return max(0.0, total / len(window.islands))


def _rigid(window: SimulatedWindow, restart_s: float) -> float:
    """Return the goodput of a job that waits for each killed island and goes back to a snapshot."""
    snapshot_s = window.snapshot_steps * window.step_s
    useful_s = up_s = 0.0
    for down_s, back_s in [*_outages(window.kills, restart_s), (window.to_s, math.inf)]:
        trained_s = max(0.0, min(down_s, window.to_s) - up_s)
        kept_s = trained_s
        if down_s < window.to_s:
            kept_s = math.floor(trained_s / snapshot_s + NEARLY_S) * snapshot_s
        useful_s += _overlap(up_s, up_s + kept_s, window)
        up_s = back_s
        if up_s >= window.to_s:
            break
    return useful_s / (window.to_s - window.from_s)


def _recovery(shrink_s: float, grow_s: float, return_s: float) -> Recovery:
    return Recovery(shrink_s, grow_s, return_s, 0.0, Returns.LOG_NORMAL, 0.0, Grow.EACH)


def _trace(window: SimulatedWindow, islands: Sequence[str], back_s: float) -> Trace:
    """Return the failures of these islands; a kill of an island that is out delays its return."""
    failures = list[tuple[float, float, float, int]]()
    for number, island in enumerate(islands):
        sound_since_s = -math.inf
        own = [kill for kill in window.kills if kill.island == island]
        for fails_s, returns_s in _outages(own, back_s):
            failures.append((fails_s, returns_s, sound_since_s, number))
            sound_since_s = returns_s
    failures.sort()
    fails_s, returns_s, since_s, numbers = zip(*failures, strict=True) if failures else ((),) * 4
    return Trace(
        len(islands),
        window.to_s,
        np.array(fails_s, np.float64),
        np.array(returns_s, np.float64),
        np.array(since_s, np.float64),
        np.array(numbers, np.int64),
    )


def _outages(kills: Iterable[Kill], back_s: float) -> list[tuple[float, float]]:
    """Return the spans from a kill to the return; a kill within one begins the wait again."""
    found = list[tuple[float, float]]()
    for at_s in sorted(kill.at_s for kill in kills):
        if found and at_s < found[-1][1]:
            found[-1] = found[-1][0], at_s + back_s
        else:
            found.append((at_s, at_s + back_s))
    return found


def _goodput(course: Course, window: SimulatedWindow) -> float:
    """Return the share of the window's island-seconds that is in completed steps."""
    useful_s = sum(
        float(share) * _overlap(float(start_s), float(start_s + done_s), window)
        for start_s, done_s, share in zip(course.from_s, course.useful_s, course.share, strict=True)
    )
    return useful_s / (window.to_s - window.from_s)


def _overlap(from_s: float, to_s: float, window: SimulatedWindow) -> float:
    """Return the seconds of a span that are in the window."""
    return max(0.0, min(to_s, window.to_s) - max(from_s, window.from_s))
