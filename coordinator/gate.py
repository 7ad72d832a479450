"""The gate: the check of a contribution before it can be merged. One NaN would destroy the run.

The gate refuses:

- impossible counters
- another layout
- bytes that do not fit the wire format
- an unknown base, or one that is too stale
- numbers that are not finite
- a norm far out of line with the recent ones of the same fragment (`norms`)

First moments beside the delta are held to the same: if one payload of a learner cannot be trusted,
neither can the other.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from functools import partial

from coordinator.norms import OUTLIER_FACTOR, Norms, limit
from coordinator.protocol import Cause, Contribution, Fate, Island, Version


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for which a contribution is not merged, and the fate of its tokens."""

    fate: Fate
    cause: Cause
    why: str


def inspect(
    contribution: Contribution,
    *,
    fingerprint: str,
    current: Version,
    max_staleness: int,
    norms: Norms,
    moments: Norms,
    others: Set[Island] = frozenset(),
    own: Island | None = None,
    newest: bool = False,
    factor: float = OUTLIER_FACTOR,
) -> Refusal | None:
    """Return None if the contribution may be merged onto `current`, else the refusal.

    `norms`: the fragment's norms of deltas. `moments`: those of first moments, each over one step,
    since they do not grow with the steps that a delta spans. `others`, `own`, `newest`, `factor`:
    the norms that it is compared with, and how far it may exceed them (`norms.limit`).
    """
    c = contribution
    most_of = partial(limit, others=others, own=own, newest=newest, factor=factor)
    if c.fingerprint != fingerprint:
        return Refusal(
            Fate.GATE, Cause.LAYOUT, f"layout {c.fingerprint}, the run's is {fingerprint}"
        )
    if c.flaw:
        return Refusal(Fate.GATE, Cause.FLAW, c.flaw)
    if c.base > current:
        why = f"base {c.base} is not known, the newest is {current}"
        return Refusal(Fate.GATE, Cause.BASE, why)
    if (staleness := current.number - c.base.number) > max_staleness:
        why = f"{staleness} versions old, the limit is {max_staleness}"
        return Refusal(Fate.STALE, Cause.STALE, why)
    if not math.isfinite(c.norm):
        return Refusal(Fate.GATE, Cause.NOT_FINITE, "numbers that are not finite")
    if (most := most_of(norms, c.spans_steps)) < c.norm:
        steps = f"{c.spans_steps} step{'s' * (c.spans_steps > 1)}"
        why = f"norm {c.norm:.3g} over {steps}, the limit is {most:.3g}"
        return Refusal(Fate.GATE, Cause.NORM, why)
    if c.moments_norm is None:
        return None
    if not math.isfinite(c.moments_norm):
        return Refusal(Fate.GATE, Cause.NOT_FINITE, "first moments that are not finite")
    if (most := most_of(moments, 1)) < c.moments_norm:
        why = f"first moments of norm {c.moments_norm:.3g}, the limit is {most:.3g}"
        return Refusal(Fate.GATE, Cause.MOMENTS, why)
    return None


def well_formed(contribution: Contribution) -> bool:
    """Return whether the counters fit together: an interval up to the progress, with tokens."""
    c = contribution
    interval = 0 <= c.since_step <= c.id.from_step < c.id.to_step == c.progress.steps
    return interval and 0 < c.tokens <= c.progress.tokens


def plausible(contribution: Contribution, *, uncovered: int) -> bool:
    """Return whether the counters are possible: well formed, with no more tokens than are open.

    `uncovered`: tokens of this life on this fragment whose fate is still open.
    """
    return well_formed(contribution) and contribution.tokens <= uncovered
