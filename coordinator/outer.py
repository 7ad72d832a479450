"""The outer step: SGD with Nesterov momentum on one fragment, in place.

With the outer gradient g = anchor - theta, which is minus the merged delta:
    b <- mu * b + g;   theta <- theta - eta * (g + mu * b)
as in DiLoCo (arXiv:2311.08105) and in `optax.sgd(eta, momentum=mu, nesterov=True)`.

With one and the same eta, momentum also makes steps longer: by 1 + mu / (1 - mu rho) in the long
run, where rho is the cosine of one merged delta to the next. A rule that is `as_long` takes that
out of each step: it is as long as the merged delta alone, and momentum only turns it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordinator import kernels
from coordinator.fragments import Flat

CANCELLED = 1e-6
"""A step so much shorter than what it is the sum of points nowhere: it is not lengthened."""


@dataclass(frozen=True, slots=True)
class OuterRule:
    """`learning_rate` eta and `momentum` mu; eta = 1, mu = 0 adopts the merged delta as it is.
    `as_long`: eta counts in lengths of the merged delta, so that 1 makes each step as long."""

    learning_rate: float
    momentum: float
    nesterov: bool
    as_long: bool = False


class Turn(NamedTuple):
    """Of the merged delta d and the momentum b before a step: d . d, d . b and b . b."""

    delta: float
    both: float
    momentum: float

    @property
    def cosine(self) -> float | None:
        """Of the merged delta to where the momentum leads, which without momentum is the merged
        delta before; None where one of the two has no length."""
        length = math.sqrt(self.delta) * math.sqrt(self.momentum)
        cosine = -self.both / length if 0 < length < math.inf else math.nan
        return max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else None


def rate(rule: OuterRule, turn: Turn) -> float:
    """The outer learning rate of a step."""
    if not rule.as_long:
        return rule.learning_rate
    mu = rule.momentum
    ours, former = (1 + mu, mu * mu) if rule.nesterov else (1.0, mu)  # a step: ours d - former b
    whole = ours * ours * turn.delta + former * former * turn.momentum
    square = whole - 2 * ours * former * turn.both
    if not CANCELLED * CANCELLED * whole < square < math.inf:
        return rule.learning_rate / ours
    return rule.learning_rate * math.sqrt(turn.delta / square)


def step(rule: OuterRule, master: Flat, momentum: Flat, delta: Flat, factor: float = 1.0) -> None:
    """Move `master` by `factor` times the merged `delta`, at the rate as it is, updating
    `momentum`; both in place."""
    eta, mu = np.float32(rule.learning_rate), np.float32(rule.momentum)
    kernels.step(master, momentum, delta, np.float32(factor), eta, mu, rule.nesterov)
