"""Is this contribution fit to be merged? One NaN learner would destroy the run.

Refused are: impossible counters, another layout, an unknown or too old base, numbers that are not
finite, and a norm per step far out of line with the recent ones of the same fragment.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.protocol import Contribution, Fate, Version

NORMS_KEPT = 64
"""Admitted norms per step that are remembered for each fragment."""
NORMS_NEEDED = 8
"""With fewer, nothing can be called an outlier."""
OUTLIER_FACTOR = 10.0
"""A norm per step up to this many times the median is always admitted."""
OUTLIER_SPREADS = 8.0
"""... and so is one within this many median deviations (of the logarithm) of it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, what becomes of its tokens, and whether only its size was wrong."""

    fate: Fate
    why: str
    outlier: bool = False


def inspect(
    contribution: Contribution,
    *,
    fingerprint: str,
    current: Version,
    max_staleness: int,
    norms: Sequence[float],
) -> Refusal | None:
    """None if the contribution may be merged onto `current`; `norms`: recent ones, per step."""
    c = contribution
    if c.fingerprint != fingerprint:
        return Refusal(Fate.GATE, f"layout {c.fingerprint}, the run's is {fingerprint}")
    if c.base > current:
        return Refusal(Fate.GATE, f"base {c.base} is not known, the newest is {current}")
    if (staleness := current.number - c.base.number) > max_staleness:
        return Refusal(Fate.STALE, f"{staleness} versions old, the limit is {max_staleness}")
    if not math.isfinite(c.norm):
        return Refusal(Fate.GATE, "numbers that are not finite")
    if (limit := largest_norm(norms)) < c.norm_per_step:
        why = f"norm per step {c.norm_per_step:.3g}, the limit is {limit:.3g}"
        return Refusal(Fate.GATE, why, outlier=True)
    return None


def well_formed(contribution: Contribution) -> bool:
    """Do the counters fit together? An interval that ends where its learner stands, and tokens."""
    c = contribution
    interval = 0 <= c.since_step <= c.id.from_step < c.id.to_step == c.progress.steps
    return interval and 0 < c.tokens <= c.progress.tokens


def plausible(contribution: Contribution, *, uncovered: int) -> bool:
    """Are the counters possible? Well formed, and no more tokens than are unaccounted for.

    `uncovered`: tokens of the contributing life on this fragment whose fate is still open.
    """
    return well_formed(contribution) and contribution.tokens <= uncovered


def largest_norm(norms: Sequence[float]) -> float:
    """The largest norm per step that is still in line; infinite while too few are known."""
    logs = [math.log(norm) for norm in norms if norm > 0]
    if len(logs) < NORMS_NEEDED:
        return math.inf
    middle = statistics.median(logs)
    spread = statistics.median(abs(value - middle) for value in logs)
    return math.exp(middle + max(math.log(OUTLIER_FACTOR), OUTLIER_SPREADS * spread))
