"""Goodput in closed form: what the simulation is held against, and where a fit begins.

Failures come at a rate λ. If each costs d seconds, and those that come meanwhile cost nothing, a
learner computes for 1/λ and stands for d: its goodput is 1 / (1 + λd). M learners share λ.
"""

from __future__ import annotations

import numpy as np

from archipelago.lab.planner.cluster_model import Grow, Recovery
from archipelago.lab.planner.trace import Floats


def one_constant(failures_per_s: Floats, costs_s: float) -> Floats:
    """1 / (1 + λd)."""
    return 1.0 / (1.0 + failures_per_s * costs_s)


def elastic(failures_per_s: Floats, recovery: Recovery, step_s: float) -> Floats:
    """Of one elastic learner: a pause for each failure, and one whenever it is whole again.

    Slices that are out are the customers of a queue with as many servers as there are slices, so
    that it empties λ·exp(-λr) times a second, whatever the distribution of the return time r
    (M/G/∞). Failures and returns in a pause are taken as lost in proportion; half a step breaks.
    """
    rate = failures_per_s
    grows = np.exp(-rate * recovery.return_s) if recovery.grow is Grow.WHOLE else 1.0
    costs_s = recovery.shrink_s + step_s / 2 + grows * recovery.grow_s
    return 1.0 / (1.0 + rate * costs_s)
