"""The durations of virtual time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cluster.config.schema import Table
from cluster.config.values import Amount, Positive, ShareValue


class Timing(Table):
    """Durations in seconds of virtual time, which do not depend on the model or the method."""

    step_s: Positive = 0.2
    """The usual step time of an island of speed 1; it is divided by the island's speed."""
    jitter: ShareValue = 0.0
    """Each step takes the usual time times 1 ± `jitter`."""
    latency_s: Positive = 0.005
    """The one-way latency of a message."""
    merge_s: Amount = 0.01
    """The duration of a merge."""
    gbit_s: Amount = 0.0
    """The bandwidth of an island's own link, where bytes queue; 0 is unlimited."""
    back_s: Positive = 8.0  # docs/lab/benchmarks.md: recovery
    """The time from a kill to the next process."""

    def passes_s(self, size_bytes: int) -> float:
        """Return the seconds that these bytes take on a free link, without the latency."""
        return 8 * size_bytes / (1e9 * self.gbit_s) if self.gbit_s else 0.0


class Virtual(Timing):
    """The table `[virtual]`: durations, and how often the model is evaluated."""

    look_every: Annotated[int, Field(ge=0)] = 0
    """Syncer steps between two evaluations of the held-out loss; 0: none."""
    average_shares: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(strict=False, max_length=8)
    ] = ()
    """Time constants of moving averages of the model, as shares of T, judged at the end."""
    tasks: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False, max_length=16)
    ] = ()
    """Files of multiple-choice questions that the final model answers."""
