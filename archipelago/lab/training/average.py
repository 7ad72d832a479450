"""Exponential moving averages of the global model in a virtual run, judged at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordinator.fragments import Flat

UPDATES = 100
"""The number of updates in one time constant: an average of 20 steps is updated at every step."""
PREFIX = "heldout_loss_average_"
"""The start of a figure's name; the average's time constant as a share of T follows."""


@dataclass(slots=True)
class Average:
    """One exponential moving average of all fragments, with a time constant of `constant` steps.

    It starts at the first model that it sees. An update at step t weighs the model there with
    1 - exp(-(steps since the last update) / constant).
    """

    share: float
    """The time constant as a share of T."""
    constant: float
    """The time constant in steps."""
    updated_t: int = 0
    flats: list[Flat] = field(default_factory=list[Flat])

    @property
    def name(self) -> str:
        """The name of its figure: the held-out loss of the average at the end of the run."""
        return f"{PREFIX}{self.share:g}"

    def due(self, t: int) -> bool:
        """Return whether step t is the next one to update at."""
        return t - self.updated_t >= max(1, round(self.constant / UPDATES))

    def update(self, t: int, flats: Sequence[Flat]) -> None:
        """Move towards this model, float32 arrays of one fragment each, which are not kept."""
        if not self.flats:
            self.flats = [flat.copy() for flat in flats]
        else:
            weight = -math.expm1(-(t - self.updated_t) / self.constant)
            for average, flat in zip(self.flats, flats, strict=True):
                average[...] += weight * (flat - average)
        self.updated_t = t


@dataclass(slots=True)
class Averages:
    """All averages of one run; without any, nothing is copied."""

    averages: list[Average]

    @staticmethod
    def of(shares: Sequence[float], steps: int) -> Averages:
        """Return averages with time constants of these shares of T = `steps`."""
        return Averages([Average(share, share * steps) for share in shares])

    def see(self, t: int, model: Callable[[], Sequence[Flat]]) -> None:
        """Update what is due at step t; `model` returns the global model and is asked if needed."""
        if due := [each for each in self.averages if each.due(t)]:
            flats = model()
            for each in due:
                each.update(t, flats)

    def ended(
        self, t: int, flats: Sequence[Flat], loss: Callable[[Sequence[Flat]], float]
    ) -> dict[str, object]:
        """Return the held-out loss of each average, nats per token, the last model included."""
        losses = dict[str, object]()
        for each in self.averages:
            if t > each.updated_t or not each.flats:
                each.update(t, flats)
            losses[each.name] = loss(each.flats)
        return losses
