"""The usual rule for spikes of a training loss; pure.

A loss is a spike if it is more than six standard deviations above the mean of the 128 steps before
it. Steps in a row that are above count once.
"""

from __future__ import annotations

import math

WINDOW = 128
"""The steps before a loss that it is compared with; with fewer, nothing is a spike."""
DEVIATIONS = 6.0
"""Standard deviations above the mean from which a loss is a spike."""
LEAST_DEVIATION = 1e-6
"""The least standard deviation, as a share of the mean: rounding of a constant loss is no spike."""


class LossSpikes:
    """The number of spikes in a series of losses, of which the last `WINDOW` are kept.

    A loss that is not finite is a spike, and is not compared with later ones.
    """

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._next = 0
        self._sum = self._squares = 0.0
        self._above = False
        self.count = 0
        """Spikes so far."""

    def saw(self, loss: float) -> None:
        """Add the loss of one step."""
        above = self._is_spike(loss)
        self.count += above and not self._above
        self._above = above
        if math.isfinite(loss):
            self._keep(loss)

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if len(self._losses) < WINDOW:
            return False
        mean = self._sum / WINDOW
        if loss <= mean:
            return False
        deviation = math.sqrt(max(0.0, self._squares / WINDOW - mean * mean))
        return loss - mean > DEVIATIONS * max(deviation, LEAST_DEVIATION * abs(mean))

    def _keep(self, loss: float) -> None:
        if len(self._losses) < WINDOW:
            self._losses.append(loss)
        else:
            old, self._losses[self._next] = self._losses[self._next], loss
            self._sum -= old
            self._squares -= old * old
        self._sum += loss
        self._squares += loss * loss
        self._next = (self._next + 1) % WINDOW
        if self._next == 0:  # rounding errors of the sums do not grow with the run
            self._sum = math.fsum(self._losses)
            self._squares = math.fsum(each * each for each in self._losses)
