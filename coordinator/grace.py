"""How long a round with its quorum still waits for the others.

grace <= share * slack, slack = overlap * step - (time to quorum + time to merge, publish and reach
the learners), all moving averages (arXiv:2604.21428). The default is long enough to meet every
learner that keeps pace at its next step boundary, if the slack allows it, and never longer than one
such step.

An overlap that follows is as long as a round takes with one such step of grace: then the slack
allows it always, and who keeps pace is met whatever the links are.

When the run ends nobody steps on, so there is no slack to keep: who keeps pace is waited for.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.frozen import replace
from coordinator.membership import SILENCE_FLOOR_S, SILENCE_JOINING_S

SHARE_OF_SLACK = 0.9
"""gamma < 1. Its value is not public; re-implementations use 0.2 to 0.5, which meets a third to a
half of free-running learners (docs/protocol.md), so we spend nearly all of the slack."""
KEEPS_PACE = 2.0
"""A learner keeps pace while its step takes at most this many times the (lower) median one."""
SMOOTHING = 0.2
"""Weight of the newest sample in a moving average."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Moving averages in seconds: opening to quorum, closing to publication, and from there until
    it is with the last learner that keeps pace; None = unseen."""

    quorum_s: float | None = None
    sync_s: float | None = None
    down_s: float | None = None

    def saw_quorum(self, after_s: float) -> Pace:
        return replace(self, quorum_s=smooth(self.quorum_s, after_s))

    def saw_sync(self, after_s: float) -> Pace:
        return replace(self, sync_s=smooth(self.sync_s, after_s))

    def saw_down(self, after_s: float) -> Pace:
        return replace(self, down_s=smooth(self.down_s, after_s))

    @property
    def spent_s(self) -> float:
        """What a round takes of the overlap without any grace."""
        return sum(each or 0.0 for each in (self.quorum_s, self.sync_s, self.down_s))


def smooth(average: float | None, sample: float) -> float:
    return sample if average is None else (1 - SMOOTHING) * average + SMOOTHING * sample


def slowest_in_pace(step_s: Sequence[float], *, lower: bool = True) -> float:
    """Seconds a step takes the slowest learner that keeps pace; 0 when none has stepped yet.

    `step_s`: ascending. `lower`: of an even number of learners the lower one of the two in the
    middle is the median (edition 1). Their mean would let the slower one of two always keep pace.
    """
    if not step_s:
        return 0.0
    middle = statistics.median_low(step_s) if lower else statistics.median(step_s)
    limit = KEEPS_PACE * middle
    return step_s[bisect_right(step_s, limit) - 1]


def window_s(
    *,
    fixed_s: float | None,
    overlap: int,
    follows: bool,
    step_s: Sequence[float],
    pace: Pace,
    lower: bool = True,
) -> float:
    """Length of the grace window in seconds, counted from the quorum; `fixed_s` overrules.

    `overlap`: in steps; if it `follows`, as many as that takes. `step_s`: of the live learners,
    ascending. `lower`: as in `slowest_in_pace`.
    """
    if fixed_s is not None:
        return fixed_s
    step = slowest_in_pace(step_s, lower=lower)
    if follows:
        return step
    slack = overlap * step - pace.spent_s
    return min(step, max(0.0, SHARE_OF_SLACK * slack))


def last_window_s(
    *, fragments: int, step_s: Sequence[float], pace: Pace, lower: bool = True
) -> float:
    """How long a round of a run that ends waits at most, counted from when it could begin.

    Until a learner that keeps pace has reached its next step boundary, be it hindered for as long
    as one may be silent, and has handed in all of its `fragments`, of which one takes the usual
    time to quorum; as long as the whole model takes in a join, if that is not known.
    """
    boundary_s = max(SILENCE_FLOOR_S, KEEPS_PACE * slowest_in_pace(step_s, lower=lower))
    if pace.quorum_s is None:
        return boundary_s + SILENCE_JOINING_S
    return boundary_s + fragments * pace.quorum_s
