"""The grace window: how long a round with its quorum still waits for the other learners.

grace <= share * slack, slack = overlap * step - (time to quorum + time to merge, publish and reach
the learners), all moving averages (arXiv:2604.21428). The default is long enough to meet every
learner that keeps pace at its next step boundary, if the slack allows it. It is never longer than
one such step.

An overlap that follows is as long as a round takes with one such step of grace. Then the slack
always allows it, and learners that keep pace are met whatever the links are.

When the run ends no learner steps on, so there is no slack to keep: the round waits for every
learner that keeps pace.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.frozen import replace
from coordinator.membership import SILENCE_FLOOR_S, SILENCE_JOINING_S
from coordinator.plain_sums import plain_sum

SHARE_OF_SLACK = 0.9
"""The share of the slack that the grace window may use: gamma < 1.

The paper does not publish its value. Re-implementations use 0.2 to 0.5, which meets a third to a
half of free-running learners (docs/explanation/protocol.md), so we spend nearly all of the slack.
"""
KEEPS_PACE = 2.0
"""The straggler limit: a learner keeps pace up to this many times the (lower) median step."""
SMOOTHING = 0.2
"""The weight of the newest sample in a moving average."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Moving averages of the times in a round, in seconds; None before the first sample."""

    quorum_s: float | None = None
    """Seconds from opening to quorum."""
    sync_s: float | None = None
    """Seconds from closing to publication."""
    down_s: float | None = None
    """Seconds from publication until the last learner that keeps pace has the version."""

    def saw_quorum(self, after_s: float) -> Pace:
        """Return the averages with one more time to quorum."""
        return replace(self, quorum_s=smooth(self.quorum_s, after_s))

    def saw_sync(self, after_s: float) -> Pace:
        """Return the averages with one more time from closing to publication."""
        return replace(self, sync_s=smooth(self.sync_s, after_s))

    def saw_down(self, after_s: float) -> Pace:
        """Return the averages with one more time from publication to the last learner in pace."""
        return replace(self, down_s=smooth(self.down_s, after_s))

    @property
    def spent_s(self) -> float:
        """Seconds of the overlap that a round takes without any grace."""
        return plain_sum(seconds or 0.0 for seconds in (self.quorum_s, self.sync_s, self.down_s))


def smooth(average: float | None, sample: float) -> float:
    """Return the moving average with one more sample; the first sample is the average."""
    return sample if average is None else (1 - SMOOTHING) * average + SMOOTHING * sample


def slowest_in_pace(step_s: Sequence[float], *, lower: bool = True) -> float:
    """Return the seconds per step of the slowest learner that keeps pace; 0 if none has stepped.

    `step_s`: ascending. `lower`: with an even number of learners, take the lower one of the two in
    the middle as the median (edition 1). With the mean of the two, the slower one of two learners
    would always keep pace.
    """
    if not step_s:
        return 0.0
    median = statistics.median_low(step_s) if lower else statistics.median(step_s)
    limit = KEEPS_PACE * median
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
    """Return the length of the grace window in seconds, counted from the quorum.

    `fixed_s`: overrides the adaptive window. `overlap`: in steps. `follows`: whether the overlap is
    instead as long as a round takes. `step_s`: of the live learners, ascending. `lower`: as in
    `slowest_in_pace`.
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
    """Return how long a round of an ending run waits at most, in seconds from when it could begin.

    The window lets a learner that keeps pace reach its next step boundary, even after the longest
    silence that is allowed, and hand in all of its `fragments`. One fragment takes the usual time
    to quorum. If that is unknown, all of them take as long as loading the whole model in a join.
    """
    boundary_s = max(SILENCE_FLOOR_S, KEEPS_PACE * slowest_in_pace(step_s, lower=lower))
    if pace.quorum_s is None:
        return boundary_s + SILENCE_JOINING_S
    return boundary_s + fragments * pace.quorum_s
