"""What islands cost in held-out loss, and how many more tokens make up for it.

Two published laws: how loss falls with parameters for each number of replicas (table of fits in
arXiv:2503.09799), and how it falls with tokens (arXiv:2203.15556). The first gives the ratio of
DiLoCo's loss to data-parallel's, of which never less than 1 is believed; the second how many
tokens that ratio is worth. Neither was fitted on this project's runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

DATA_PARALLEL = (18.129, -0.0953)
REPLICAS: Mapping[int, tuple[float, float]] = {
    1: (18.363, -0.0961),
    2: (18.768, -0.0969),
    4: (19.762, -0.0992),
    8: (21.051, -0.1018),
}
"""A and α of loss = A·N^α at 20 tokens a parameter, by the number of replicas."""
MOST_FITTED = 8
IRREDUCIBLE, OF_SIZE, SIZE_POWER, OF_DATA, DATA_POWER = 1.69, 406.4, 0.34, 410.7, 0.28
"""E, A, α, B, β of E + A/N^α + B/D^β."""


def ratio(parameters: float, learners: int) -> float:
    """Loss of so many learners over that of data-parallel, at equal tokens; 1 or more.

    Between the fitted numbers, and beyond 8, the logarithm of the ratio is a straight line in the
    logarithm of the number: beyond it is an extrapolation.
    """
    doublings = math.log2(learners)
    low = min(math.floor(doublings), math.floor(math.log2(MOST_FITTED)) - 1)
    at_low, at_high = _log_ratio(parameters, 2**low), _log_ratio(parameters, 2 ** (low + 1))
    return max(1.0, math.exp(at_low + (doublings - low) * (at_high - at_low)))


def _log_ratio(parameters: float, learners: int) -> float:
    (a, power), (base, base_power) = REPLICAS[learners], DATA_PARALLEL
    return math.log(a / base) + (power - base_power) * math.log(parameters)


def data_parallel(parameters: float, tokens: float) -> float:
    """Held-out loss of data-parallel, in nats per token."""
    return IRREDUCIBLE + OF_SIZE / parameters**SIZE_POWER + OF_DATA / tokens**DATA_POWER


def tokens_to(parameters: float, learners: int, target: float) -> float:
    """Tokens with which so many learners reach a loss; infinite if no number of them does."""
    needed = target / ratio(parameters, learners) - IRREDUCIBLE - OF_SIZE / parameters**SIZE_POWER
    return (OF_DATA / needed) ** (1 / DATA_POWER) if needed > 0 else math.inf


def best_loss(parameters: float, learners: int) -> float:
    """What no number of tokens gets below."""
    return ratio(parameters, learners) * (IRREDUCIBLE + OF_SIZE / parameters**SIZE_POWER)
