"""The outer step: SGD with Nesterov momentum on one fragment, in place.

With the outer gradient g = anchor - theta, which is minus the merged delta:
    b <- mu * b + g;   theta <- theta - eta * (g + mu * b)
as in DiLoCo (arXiv:2311.08105) and in `optax.sgd(eta, momentum=mu, nesterov=True)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator.fragments import Flat


@dataclass(frozen=True, slots=True)
class OuterRule:
    """`learning_rate` eta and `momentum` mu; eta = 1, mu = 0 adopts the merged delta as it is."""

    learning_rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = True


def step(rule: OuterRule, master: Flat, momentum: Flat, delta: Flat) -> None:
    """Move `master` by the merged `delta`, updating `momentum`; both in place, `delta` is spent."""
    eta, mu = np.float32(rule.learning_rate), np.float32(rule.momentum)
    np.multiply(momentum, mu, out=momentum)
    np.subtract(momentum, delta, out=momentum)
    if rule.nesterov:
        np.subtract(delta, mu * momentum, out=delta)
    else:
        np.negative(momentum, out=delta)
    np.multiply(delta, eta, out=delta)
    np.add(master, delta, out=master)
