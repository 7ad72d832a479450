"""The cost of islands in held-out loss, and the additional tokens that make up for it.

Two published laws are used: how loss falls with parameters for each number of replicas (table of
fits in arXiv:2503.09799), and how it falls with tokens (arXiv:2203.15556). The first gives the
ratio of DiLoCo's loss to data-parallel's, which is clamped to at least 1. The second gives the
number of tokens that this ratio is worth. Neither was fitted on this project's runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cluster.config.monitor_tables import LossLaw

DATA_PARALLEL = (18.129, -0.0953)
"""A and α of loss = A·N^α at 20 tokens per parameter, for data-parallel training."""
REPLICAS: Mapping[int, tuple[float, float]] = {
    1: (18.363, -0.0961),
    2: (18.768, -0.0969),
    4: (19.762, -0.0992),
    8: (21.051, -0.1018),
}
"""A and α of loss = A·N^α at 20 tokens per parameter, by the number of replicas."""
MOST_FITTED = 8
"""The largest number of replicas in the published fits."""
LAW = LossLaw()
"""E, A, α, B and β of loss = E + A/N^α + B/D^β."""


def ratio(parameters: float, learners: int) -> float:
    """Return the loss of `learners` over that of data-parallel at equal tokens, at least 1.

    The logarithm of the ratio is linear in the logarithm of the number of learners, between the
    fitted numbers and beyond 8. Beyond 8 it is an extrapolation.
    """
    doublings = math.log2(learners)
    low = min(math.floor(doublings), math.floor(math.log2(MOST_FITTED)) - 1)
    at_low, at_high = _log_ratio(parameters, 2**low), _log_ratio(parameters, 2 ** (low + 1))
    return max(1.0, math.exp(at_low + (doublings - low) * (at_high - at_low)))


def _log_ratio(parameters: float, learners: int) -> float:
    (a, power), (base_factor, base_power) = REPLICAS[learners], DATA_PARALLEL
    return math.log(a / base_factor) + (power - base_power) * math.log(parameters)


def data_parallel(parameters: float, tokens: float) -> float:
    """Return the held-out loss of data-parallel training, in nats per token."""
    return LAW.loss(parameters, tokens)


def tokens_to(parameters: float, learners: int, target: float) -> float:
    """Return the tokens with which `learners` reach a loss; infinite if it cannot be reached."""
    needed = target / ratio(parameters, learners) - LAW.loss(parameters, math.inf)
    return (LAW.b / needed) ** (1 / LAW.beta) if needed > 0 else math.inf


def best_loss(parameters: float, learners: int) -> float:
    """Return the loss that no number of tokens gets below, in nats per token."""
    return ratio(parameters, learners) * LAW.loss(parameters, math.inf)
