"""What a cluster of chips is like, how it fails and recovers: the chips layer's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

YEAR_S = 365.25 * 86400.0
DAY_S = 86400.0


class Returns(StrEnum):
    """How the return time of a failed slice is distributed, about its mean."""

    LOG_NORMAL = "log-normal"
    EXPONENTIATED_WEIBULL = "exponentiated-weibull"


class Grow(StrEnum):
    """When a learner takes in slices that are back.

    Each rebuild takes in what is there when it ends, whatever caused it. `WHOLE`: a learner pauses
    to grow once none of its slices is out any more, so that one pause serves all that are back.
    `EACH`: it pauses for every slice that comes back while it computes.
    """

    WHOLE = "whole"
    EACH = "each"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Chips in slices of equal size, and how often a chip is interrupted.

    `slices`: of all learners together. `weibull_shape`: of the time between two interruptions of a
    chip; 1 is exponential, below 1 interruptions come in bursts.
    """

    chips: int
    slices: int
    mtbi_s: float
    weibull_shape: float = 1.0

    @property
    def failures_per_s(self) -> float:
        return self.chips / self.mtbi_s


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a failure costs, in seconds.

    `shrink_s`: a learner that lost a slice rebuilds without it. `grow_s`: it rebuilds with slices
    that are back. `return_s`: mean time until a failed slice is back. `restart_s`: of a job that
    cannot do with fewer chips. `spread`: of the return time; sigma of the logarithm if log-normal,
    the inner shape of the exponentiated Weibull otherwise.
    """

    shrink_s: float
    grow_s: float
    return_s: float
    restart_s: float
    returns: Returns
    spread: float
    grow: Grow

    def scaled(self, factor: float) -> Recovery:
        """The same with another unit of time: so many of it to a second."""
        return replace(
            self,
            shrink_s=self.shrink_s * factor,
            grow_s=self.grow_s * factor,
            return_s=self.return_s * factor,
            restart_s=self.restart_s * factor,
        )


@dataclass(frozen=True, slots=True)
class TraceOutcome:
    """What a configuration made of a trace, as shares of 1.

    `goodput`: chip-seconds in steps that were completed, over all chip-seconds. `uptime`: share of
    the time in which at least one learner advanced; NaN where it is not computed.
    """

    goodput: float
    uptime: float


def whole_slices(chips: int, slice_chips: int, learners: int) -> int:
    """The number of slices nearest to `chips / slice_chips` that `learners` can share evenly.

    The paper's 150,000 chips are no whole number of slices of 256, nor of anything else that 16
    learners could share: slices are then a little larger or smaller than `slice_chips`.
    """
    return learners * max(1, round(chips / (learners * slice_chips)))
