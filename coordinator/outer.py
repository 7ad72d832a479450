"""The outer step: SGD with Nesterov momentum on one fragment, in place.

With the outer gradient (pseudo-gradient) g = anchor - theta, which is minus the merged delta:
    b <- mu * b + g;   theta <- theta - eta * (g + mu * b)
as in DiLoCo (arXiv:2311.08105) and in `optax.sgd(eta, momentum=mu, nesterov=True)`.

At the same eta, momentum also makes steps longer: by 1 + mu / (1 - mu rho) in the long run, where
rho is the cosine between successive merged deltas. A rule that is `as_long` removes that from each
step: the step is as long as the merged delta alone, and momentum only turns it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator import kernels
from coordinator.fragments import Flat
from coordinator.kernels import frozen

CANCELLED = 1e-6
"""The ratio of a step to the sum of its terms below which it has no direction.

Such a step is not lengthened.
"""


@dataclass(frozen=True, slots=True)
class OuterRule:
    """The outer optimizer of a run; eta = 1, mu = 0 adopts the merged delta as it is."""

    learning_rate: float
    """The outer learning rate eta."""
    momentum: float
    """The outer momentum mu."""
    nesterov: bool
    as_long: bool = False
    """Whether eta is relative to the length of the merged delta: at 1 the step has that length."""


class Turn(NamedTuple):
    """The products of the merged delta d and the momentum b before a step."""

    delta: float
    """The product d . d."""
    both: float
    """The product d . b."""
    momentum: float
    """The product b . b."""

    @property
    def cosine(self) -> float | None:
        """The cosine of the merged delta to the momentum's direction; None if a length vanishes.

        Without momentum that direction is the merged delta before.
        """
        length = math.sqrt(self.delta) * math.sqrt(self.momentum)
        cosine = -self.both / length if 0 < length < math.inf else math.nan
        return max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else None


def rate(rule: OuterRule, turn: Turn) -> float:
    """Return the outer learning rate of a step."""
    if not rule.as_long:
        return rule.learning_rate
    mu = rule.momentum
    alpha, beta = (1 + mu, mu * mu) if rule.nesterov else (1.0, mu)  # a step is alpha d - beta b
    squares = alpha * alpha * turn.delta + beta * beta * turn.momentum
    square = squares - 2 * alpha * beta * turn.both
    if not CANCELLED * CANCELLED * squares < square < math.inf:
        return rule.learning_rate / alpha
    return rule.learning_rate * math.sqrt(turn.delta / square)


def step(rule: OuterRule, master: Flat, momentum: Flat, delta: Flat, factor: float = 1.0) -> None:
    """Take the outer step by `factor` times the merged `delta`.

    `master` and `momentum` change in place. The learning rate is the rule's own; `as_long` has no
    effect here.
    """
    bounds, factors = frozen(np.array([0, delta.size])), np.array([factor], np.float32)
    step_run(rule, master, momentum, delta, bounds, factors)


def step_run(
    rule: OuterRule,
    master: Flat,
    momentum: Flat,
    delta: Flat,
    bounds: NDArray[np.int64],
    factors: Flat,
) -> None:
    """Take the outer step as `step` does, with a factor for each stretch between two bounds."""
    eta, mu = np.float32(rule.learning_rate), np.float32(rule.momentum)
    kernels.step(master, momentum, delta, bounds, factors, eta, mu, rule.nesterov)
