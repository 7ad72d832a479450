"""The effects of contributions on the held-out loss: when they are measured, and which are bad.

All functions are pure. Nothing here acts on an island: a harmful one is only reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from cluster.workers.evaluator_answers import ContributionEffect
from coordinator.protocol import Island

SHARE = 4
"""Evaluations take at most one part in so many of the time while effects are measured."""
COST = 2
"""Duration of an evaluation with an effect over one without: two losses in place of one."""
KEPT = 16
"""Effects of each island with which those of the others are compared."""
LEAST_OTHERS = 4
"""Effects of other islands below which none is compared: their spread is not known."""
SPREADS = 3.0
"""Spreads above the median of the other islands from which an effect is harmful."""
DEVIATION = 1.4826
"""Standard deviation over the median absolute deviation, for a normal distribution."""
LEAST_NATS = 1e-5
"""The smallest spread, in nats per token: a loss is a mean of f32 values and no more exact."""
IN_A_ROW = 3
"""Harmful contributions in a row from which an island is reported."""


def has_room(took_s: float, *, measured: bool, every_s: float) -> bool:
    """Return whether the evaluator is idle enough to measure an effect in its next evaluation.

    - `took_s`: the duration of its last evaluation.
    - `measured`: whether that included an effect.
    - `every_s`: the period of evaluations.
    """
    return took_s * (1 if measured else COST) * SHARE <= every_s


def is_harmful(effect: float, others: Sequence[float]) -> bool:
    """Return whether an effect is worse than the spread of those of the other islands.

    It must have raised the loss, too. The spread is the median absolute deviation, so that it does
    not grow with a few harmful islands among the others.
    """
    if effect <= 0 or len(others) < LEAST_OTHERS:
        return False
    middle = median(others)
    spread = DEVIATION * median(abs(each - middle) for each in others)
    return effect > middle + SPREADS * max(spread, LEAST_NATS)


@dataclass(frozen=True, slots=True)
class IslandEffects:
    """The measured contributions of one island."""

    recent: tuple[float, ...] = ()
    """The last `KEPT` effects, oldest first, in nats per token."""
    harmful: int = 0
    """The newest ones in a row that were harmful when they were measured."""


@dataclass(frozen=True, slots=True)
class EffectHistory:
    """The recent effects of the contributions of a run's islands."""

    by_island: Mapping[Island, IslandEffects] = field(default_factory=dict[Island, IslandEffects])

    def added(self, effect: ContributionEffect) -> EffectHistory:
        """Return the history with one more effect, compared with those of the other islands."""
        island, value = effect.island, effect.nats
        others = [
            each
            for name, effects in self.by_island.items()
            if name != island
            for each in effects.recent
        ]
        before = self.by_island.get(island, IslandEffects())
        harmful = before.harmful + 1 if is_harmful(value, others) else 0
        after = IslandEffects((*before.recent, value)[-KEPT:], harmful)
        return replace(self, by_island={**self.by_island, island: after})
