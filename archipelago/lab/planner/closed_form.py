"""Goodput in closed form: a check of the simulation, and the model that guides the fit.

Failures come at a rate λ. If each costs d seconds, and further failures during that time cost
nothing, a learner computes for 1/λ and stands still for d: its goodput is 1 / (1 + λd). M learners
share λ.
"""

from __future__ import annotations

import numpy as np

from archipelago.lab.planner.cluster_model import Grow, Recovery
from archipelago.lab.planner.trace import Floats


def one_constant(failures_per_s: Floats, costs_s: float) -> Floats:
    """Return the goodput 1 / (1 + λd) for each failure rate λ and one cost d in seconds."""
    return 1.0 / (1.0 + failures_per_s * costs_s)


def elastic(failures_per_s: Floats, recovery: Recovery, step_s: float) -> Floats:
    """Return the goodput of one elastic learner at each failure rate.

    The learner pauses for each failure, and once more whenever it is whole again. The slices that
    are out form a queue with as many servers as slices. This queue empties λ·exp(-λr) times a
    second, whatever the distribution of the return time r (M/G/∞). Failures and returns during a
    pause are treated as lost in proportion. A failure breaks half a step on average.
    """
    rate = failures_per_s
    grow_probability = np.exp(-rate * recovery.return_s) if recovery.grow is Grow.WHOLE else 1.0
    costs_s = recovery.shrink_s + step_s / 2 + grow_probability * recovery.grow_s
    return 1.0 / (1.0 + rate * costs_s)
