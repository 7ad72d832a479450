"""The chips layer's vocabulary: a cluster of chips, how it fails, and how it recovers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

YEAR_S = 365.25 * 86400.0
DAY_S = 86400.0


class Returns(StrEnum):
    """The distribution of a failed slice's return time about its mean."""

    LOG_NORMAL = "log-normal"
    EXPONENTIATED_WEIBULL = "exponentiated-weibull"


class Grow(StrEnum):
    """The moment at which a learner adds repaired slices.

    Every rebuild adds the slices that are back when it ends, whatever caused it.
    """

    WHOLE = "whole"
    """A learner pauses to grow once none of its slices is out: one pause serves all of them."""
    EACH = "each"
    """A learner pauses for every slice that comes back while it computes."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Chips in slices of equal size, and how often a chip is interrupted."""

    chips: int
    slices: int
    """The number of slices of all learners together."""
    mtbi_s: float
    """The mean time between interruptions of one chip, in seconds."""
    weibull_shape: float = 1.0
    """The shape of the times between interruptions: 1 is exponential; below 1 come bursts."""

    @property
    def failures_per_s(self) -> float:
        """Interruptions of the whole cluster per second."""
        return self.chips / self.mtbi_s


@dataclass(frozen=True, slots=True)
class Recovery:
    """The cost of a failure, in seconds."""

    shrink_s: float
    """The time a learner that lost a slice takes to rebuild without it."""
    grow_s: float
    """The time a learner takes to rebuild with slices that are back."""
    return_s: float
    """The mean time until a failed slice is back."""
    restart_s: float
    """The time that a job which cannot run on fewer chips takes to restart."""
    returns: Returns
    spread: float
    """Sigma of the log-normal return time, or the inner shape of the exponentiated Weibull."""
    grow: Grow

    def scaled(self, factor: float) -> Recovery:
        """Return these times in a unit of 1/`factor` seconds."""
        return replace(
            self,
            shrink_s=self.shrink_s * factor,
            grow_s=self.grow_s * factor,
            return_s=self.return_s * factor,
            restart_s=self.restart_s * factor,
        )


@dataclass(frozen=True, slots=True)
class TraceOutcome:
    """The outcome of one configuration on a trace, in shares of 1."""

    goodput: float
    """Chip-seconds in completed steps over all chip-seconds."""
    uptime: float
    """The share of the time in which at least one learner advanced; NaN if it is not computed."""


def whole_slices(chips: int, slice_chips: int, learners: int) -> int:
    """Return the number of slices nearest `chips / slice_chips` that `learners` can share evenly.

    The paper's 150,000 chips are not a whole number of slices of 256, nor of any other size that 16
    learners could share. The slices are then a little larger or smaller than `slice_chips`.
    """
    return learners * max(1, round(chips / (learners * slice_chips)))
