"""The merge order for a shard: which contributions it merges, and with which weights."""

from __future__ import annotations

import math

from coordinator import norms
from coordinator.direction_gate import Watch
from coordinator.plain_sums import plain_sum
from coordinator.protocol import (
    Contribution,
    Fragment,
    Item,
    Merge,
)
from coordinator.state import (
    FragmentState,
    Round,
    Rule,
)

MOST_SHARE = 4.0
"""The largest weight of a contribution, as a multiple of its share of the inner steps.

It bounds what a learner gains by claiming too many tokens for its steps.
"""


def merge_order_of(rule: Rule, fragment: FragmentState, p: Fragment, round_: Round) -> Merge:
    """Return the merge order for a round that is closed."""
    return Merge(
        p,
        round_.version,
        weigh(round_.items, capped=rule.bounded),
        round_.why,
        last=round_.last,
        limit=math.inf if round_.last else norms.limit(fragment.moves, span_steps(round_.items)),
        trial=round_.trial,
        measure=rule.watch is not Watch.OFF,
    )


def span_steps(items: tuple[Contribution, ...]) -> int:
    """Return the inner steps over which a merge moves its fragment: those of its longest item."""
    return max((c.spans_steps for c in items), default=1)


def sorting_key(contribution: Contribution) -> tuple[str, int, int]:
    """Return the key by which the contributions of a merge are ordered."""
    life, _, from_step, _ = contribution.id
    return life.island, life.incarnation, from_step


def weigh(merging: tuple[Contribution, ...], *, capped: bool = True) -> tuple[Item, ...]:
    """Return weights that sum to one, proportional to tokens^2 / steps (arXiv:2604.21428).

    The paper calls this "quantity x quality". `capped`: no weight is more than MOST_SHARE times its
    contribution's share of the steps; the excess goes to the others, in proportion (edition 1).
    """
    raw = [c.tokens * (c.tokens / c.steps) for c in merging]
    shares = [w / plain_sum(raw) for w in raw]
    if capped:
        steps = sum(c.steps for c in merging)
        shares = _capped(shares, [MOST_SHARE * c.steps / steps for c in merging])
    return tuple(Item(c, share) for c, share in zip(merging, shares, strict=True))


def _capped(shares: list[float], most: list[float]) -> list[float]:
    """Return the weights with each one at most `most`, and the others in their proportions.

    The sum of `most` must be at least one.
    """
    capped = set[int]()
    while excessive := {i for i, share in enumerate(shares) if share > most[i] and i not in capped}:
        capped |= excessive
        free_sum = plain_sum(share for i, share in enumerate(shares) if i not in capped)
        rest = 1.0 - plain_sum(most[i] for i in capped)
        factor = rest / free_sum if free_sum > 0 else 0.0
        shares = [most[i] if i in capped else share * factor for i, share in enumerate(shares)]
    return shares
