"""The configurations that are compared, each played on the same trace.

- `not-elastic`: one data-parallel job that restarts at every failure.
- `elastic`: one job that continues with fewer slices; all of it pauses to rebuild.
- `decoupled`: `learners` elastic learners; only the one that was hit pauses (arXiv:2604.21428).
- `diloco`: the same learners, all of which wait for the last one every H steps (arXiv:2311.08105).
- `streaming`: learners wait for each other fragment by fragment, and only if a merge takes longer
  than the overlap hides (arXiv:2501.18512).

All communication is assumed to be hidden behind the steps; `bandwidth` computes when it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from archipelago.lab.planner.cluster_model import Recovery, TraceOutcome
from archipelago.lab.planner.learner_timeline import Course, elastic, rigid
from archipelago.lab.planner.trace import Floats, Trace


class Configuration(StrEnum):
    """A way to train on a cluster."""

    NOT_ELASTIC = "not-elastic"
    """One data-parallel job that restarts at every failure."""
    ELASTIC = "elastic"
    """One data-parallel job that shrinks and grows."""
    DECOUPLED = "decoupled"
    """Learners that never wait for each other (arXiv:2604.21428)."""
    DILOCO = "diloco"
    """Learners that all wait every H steps (arXiv:2311.08105)."""
    STREAMING = "streaming"
    """Learners that wait for each other fragment by fragment (arXiv:2501.18512)."""


@dataclass(frozen=True, slots=True)
class Lockstep:
    """The settings of lock-step training: how learners wait for each other."""

    every: int
    """Steps between two merges of the same fragment, H."""
    fragments: int
    """The number of fragments, each with a meeting of its own within `every` steps."""
    overlap: int
    """Steps that are trained while a merge is under way; 0 means that all learners stand still."""

    @property
    def gap(self) -> int:
        """Steps between two meetings."""
        return max(1, self.every // self.fragments)


def play(
    configuration: Configuration,
    learners: int,
    trace: Trace,
    recovery: Recovery,
    step_s: float,
    lockstep: Lockstep,
) -> TraceOutcome:
    """Play one configuration on a trace; only diloco and streaming read `lockstep`."""
    if configuration is Configuration.NOT_ELASTIC:
        return together([rigid(trace, recovery.restart_s, step_s)], trace.lasts_s)
    count = 1 if configuration is Configuration.ELASTIC else learners
    timelines = [elastic(trace.of_learner(m, count), recovery, step_s) for m in range(count)]
    match configuration:
        case Configuration.DILOCO:
            return meeting(timelines, trace.lasts_s, step_s, Lockstep(lockstep.every, 1, 0))
        case Configuration.STREAMING:
            return meeting(timelines, trace.lasts_s, step_s, lockstep)
        case _:
            return together(timelines, trace.lasts_s)


def together(courses: list[Course], lasts_s: float) -> TraceOutcome:
    """Return the outcome of learners that never wait: mean goodput, and the union of uptimes."""
    goodput = float(np.mean([course.goodput(lasts_s) for course in courses]))
    begins = np.concatenate([course.from_s[course.share > 0] for course in courses])
    ends = np.concatenate([course.to_s[course.share > 0] for course in courses])
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    first = float(begins[0]) if len(begins) else lasts_s
    last = float(ends[-1]) if len(ends) else lasts_s
    gaps_s = np.maximum(begins[1:] - ends[:-1], 0.0).sum() + first + (lasts_s - last)
    return TraceOutcome(goodput, 1.0 - float(gaps_s) / lasts_s)


def meeting(
    courses: list[Course], lasts_s: float, step_s: float, lockstep: Lockstep
) -> TraceOutcome:
    """Return the outcome of learners that wait for the last one at every meeting.

    No learner begins the step that is `overlap` steps past a meeting before all learners have
    reached that meeting. Uptime is not computed: it is NaN.
    """
    shares = [float(np.average(c.share, weights=c.to_s - c.from_s + TINY_S)) for c in courses]
    count = 0
    for _, reached_s in meetings(courses, step_s, lockstep):
        if max(reached_s) >= lasts_s:
            break
        count += lockstep.gap
    return TraceOutcome(count * step_s / lasts_s * float(np.mean(shares)), float("nan"))


def meetings(
    courses: list[Course], step_s: float, lockstep: Lockstep
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield, meeting after meeting, when each learner continued and when it reached the meeting.

    The iterator never ends.
    """
    clocks = [_Clock(course) for course in courses]
    lag, rest = divmod(lockstep.overlap, lockstep.gap)
    met_s = deque([0.0] * (lag + 1), maxlen=lag + 1)  # times of the last meetings, oldest first
    now_s = [0.0] * len(clocks)
    while True:
        ahead_s = [c.after(t, rest * step_s) for c, t in zip(clocks, now_s, strict=True)]
        held_s = [max(t, met_s[0]) for t in ahead_s]
        left_s = (lockstep.gap - rest) * step_s
        now_s = [c.after(t, left_s) for c, t in zip(clocks, held_s, strict=True)]
        met_s.append(max(now_s))
        yield held_s, now_s


TINY_S = 1e-9
"""A weight, in seconds, for learners that never compute."""


class _Clock:
    """The useful seconds of a learner as a function of time; queries come in the order of time."""

    def __init__(self, course: Course) -> None:
        self._from_s: list[float] = course.from_s.tolist()
        self._until_s: list[float] = (course.from_s + course.useful_s).tolist()
        self._at = 0

    def after(self, from_s: float, needs_s: float) -> float:
        """Return when `needs_s` useful seconds after `from_s` are done; infinite if never."""
        index, starts_s, stops_s = self._at, self._from_s, self._until_s
        while index < len(starts_s):
            start_s = max(from_s, starts_s[index])
            if needs_s <= stops_s[index] - start_s:
                self._at = index
                return start_s + needs_s
            needs_s -= max(0.0, stops_s[index] - start_s)
            index += 1
        self._at = index
        return float("inf")


def mean_and_interval(samples: Floats) -> tuple[float, float]:
    """Return the mean, and half of its 95 % interval by Student's t (NaN for one sample)."""
    count = len(samples)
    if count < 2:
        return float(samples.mean()), float("nan")
    spread = float(samples.std(ddof=1)) / count**0.5
    return float(samples.mean()), _student(count - 1) * spread


STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
"""The 97.5 % quantile of Student's t for 1 to 12 degrees of freedom."""
STUDENT_LATER = 2.179
"""The quantile used for more degrees of freedom, on the safe side."""


def _student(freedom: int) -> float:
    return STUDENT[freedom - 1] if freedom <= len(STUDENT) else STUDENT_LATER
