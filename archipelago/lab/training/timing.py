"""How long things take in virtual time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cluster.config.schema import Table
from cluster.config.values import Amount, Positive, Share


class Timing(Table):
    """Seconds of virtual time; what stands here is no property of the model or of the method.

    A step takes `step_s` over the island's speed, give or take the share `jitter` of it. A word or
    a message takes `latency_s` one way, and its bytes over `gbit_s` on the island's own link, in
    turn with those before it (0: as many as there are at once). After a kill a process is back in
    `back_s`.
    """

    step_s: Positive = 0.2
    jitter: Share = 0.0
    latency_s: Positive = 0.005
    merge_s: Amount = 0.01
    gbit_s: Amount = 0.0
    back_s: Positive = 8.0  # docs/benchmarks.md: recovery

    def passes_s(self, size_bytes: int) -> float:
        """How long so many bytes take on a link that is free, without the latency."""
        return 8 * size_bytes / (1e9 * self.gbit_s) if self.gbit_s else 0.0


class Virtual(Timing):
    """The table `[virtual]`: how long things take, and how often the model is looked at.

    `look_every`: syncer steps from one look at its held-out loss to the next, 0: none.
    `average_shares`: time constants of moving averages of the model, as shares of T, which are
    judged at the end.
    """

    look_every: Annotated[int, Field(ge=0)] = 0
    average_shares: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(strict=False, max_length=8)
    ] = ()
