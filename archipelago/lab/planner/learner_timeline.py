"""One elastic learner on a trace: when it computes, on how many slices, and when it rebuilds.

Slices that fail or come back during a rebuild cause no rebuild of their own: the rebuild ends with
the slices that are sound by then. The failure of a slice that is back but not yet in use breaks
nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archipelago.lab.planner.cluster_model import Grow, Recovery
from archipelago.lab.planner.trace import Floats, Trace

NEARLY_A_STEP = 1e-9
"""The rounding error, as a share of a step, that is ignored when steps are counted."""


@dataclass(frozen=True, slots=True)
class Course:
    """The intervals in which a learner computes, in order; arrays have the shape (intervals,).

    Times are in seconds of the trace, and none lies after its end.
    """

    from_s: Floats
    """The begin of each interval, in seconds."""
    to_s: Floats
    """The end of each interval, in seconds."""
    useful_s: Floats
    """The seconds of each interval that are in completed steps."""
    share: Floats
    """The share of the learner's chips on which it computes."""

    def goodput(self, lasts_s: float) -> float:
        """Return the share of all chip-seconds that is in completed steps."""
        return float(self.useful_s @ self.share) / lasts_s


def merged_share(courses: Sequence[Course], interval_s: float) -> float:
    """Return the share of trained work that gets into the model, if each rebuild starts a new life.

    A fragment is handed in once in `interval_s` (H steps), each at its own time. Work since the
    last hand-in is lost with the life, or outstanding at the end of the trace.
    """
    trained = sum(float(c.useful_s @ c.share) for c in courses)
    kept = 0.0
    for course in courses:
        done_s = course.useful_s
        short = np.minimum(done_s, interval_s)
        lost_s = short - short**2 / (2 * interval_s)
        kept += float((done_s - lost_s) @ course.share)
    return kept / trained if trained else 0.0


def elastic(trace: Trace, recovery: Recovery, step_s: float) -> Course:
    """Play a learner that continues with the slices it has left."""
    count = len(trace.fails_s)
    at_s = np.concatenate([trace.fails_s, trace.back_s])
    order = np.argsort(at_s, kind="stable")
    at_s, fails = at_s[order], order < count
    missing_slices = np.cumsum(np.where(fails, 1, -1))
    wakes = np.ones_like(fails) if recovery.grow is Grow.EACH else fails | (missing_slices == 0)
    since_s = np.concatenate([trace.sound_since_s, np.full(count, -math.inf)])[order]
    spells = _spells(
        at_s[wakes].tolist(),
        fails[wakes].tolist(),
        since_s[wakes].tolist(),
        recovery.shrink_s,
        recovery.grow_s,
        step_s,
        trace.lasts_s,
        whole=recovery.grow is Grow.WHOLE,
    )
    begins = spells[0]
    left = np.searchsorted(at_s, begins, side="right") - 1
    missing = np.where(left >= 0, missing_slices[left] if len(missing_slices) else 0, 0)
    return Course(*spells, 1.0 - missing / trace.slices)


def rigid(trace: Trace, restart_s: float, step_s: float) -> Course:
    """Play a job that restarts at each failure with as many chips: others replace the failed."""
    count = len(trace.fails_s)
    begins, ends, useful = _spells(
        trace.fails_s.tolist(),
        [True] * count,
        [-math.inf] * count,
        restart_s,
        0.0,
        step_s,
        trace.lasts_s,
        whole=False,
    )
    return Course(begins, ends, useful, np.ones_like(begins))


def _spells(
    wakes_s: list[float],
    fails: list[bool],
    since_s: list[float],
    shrink_s: float,
    grow_s: float,
    step_s: float,
    lasts_s: float,
    *,
    whole: bool,
) -> tuple[Floats, Floats, Floats]:
    """Return the begin, end and useful seconds of each interval of computing.

    A failure breaks the step under way. A rebuild to grow waits until the current step is complete.
    Under `Grow.WHOLE` the learner gives the rebuild up if a slice fails by then.
    """
    begins, ends, useful = [0.0], list[float](), list[float]()
    up_s, k, count = 0.0, 0, len(wakes_s)
    while k < count and wakes_s[k] < lasts_s:
        at_s, fail = wakes_s[k], fails[k]
        if fail:
            if since_s[k] > up_s:  # the slice was back, but not yet in use
                k += 1
                continue
            done_s = math.floor((at_s - up_s) / step_s + NEARLY_A_STEP) * step_s
            down_s = at_s + shrink_s
        else:
            at_s = up_s + math.ceil((at_s - up_s) / step_s - NEARLY_A_STEP) * step_s
            k += 1
            while (
                not whole
                and k < count
                and wakes_s[k] <= at_s
                and not (fails[k] and since_s[k] <= up_s)
            ):
                k += 1  # in use as well, or failed again before that, at no cost
            if at_s >= lasts_s or (k < count and wakes_s[k] <= at_s):
                continue  # the next event precedes the end of the step
            k -= 1
            done_s, down_s = at_s - up_s, at_s + grow_s
        ends.append(at_s)
        useful.append(done_s)
        up_s = down_s
        k = bisect_left(wakes_s, up_s, k + 1)
        begins.append(up_s)
    if up_s < lasts_s:
        ends.append(lasts_s)
        useful.append(math.floor((lasts_s - up_s) / step_s + NEARLY_A_STEP) * step_s)
    else:
        begins.pop()
    return np.array(begins), np.array(ends), np.array(useful)
