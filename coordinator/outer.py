"""The outer step: SGD with Nesterov momentum on one fragment, in place.

With the outer gradient g = anchor - theta, which is minus the merged delta:
    b <- mu * b + g;   theta <- theta - eta * (g + mu * b)
as in DiLoCo (arXiv:2311.08105) and in `optax.sgd(eta, momentum=mu, nesterov=True)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator import kernels
from coordinator.fragments import Flat


@dataclass(frozen=True, slots=True)
class OuterRule:
    """`learning_rate` eta and `momentum` mu; eta = 1, mu = 0 adopts the merged delta as it is."""

    learning_rate: float
    momentum: float
    nesterov: bool


def step(rule: OuterRule, master: Flat, momentum: Flat, delta: Flat, factor: float = 1.0) -> None:
    """Move `master` by `factor` times the merged `delta`, updating `momentum`; both in place."""
    eta, mu = np.float32(rule.learning_rate), np.float32(rule.momentum)
    kernels.step(master, momentum, delta, np.float32(factor), eta, mu, rule.nesterov)
