"""What a shard is ordered to do for a round that is closed: what it merges, by which shares."""

from __future__ import annotations

import math

from coordinator import norms
from coordinator.direction_gate import Watch
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
"""Of a merge nobody has more than so many times its share of the inner steps, however many tokens
it claims to have trained in them."""


def merge_order_of(rule: Rule, fragment: FragmentState, p: Fragment, round_: Round) -> Merge:
    """What the shard shall do for a round that is closed."""
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
    """Over how many inner steps a merge moves its fragment: as many as its longest contribution."""
    return max((c.spans_steps for c in items), default=1)


def sorting_key(contribution: Contribution) -> tuple[str, int, int]:
    """Return by what the contributions of a merge are ordered."""
    life, _, from_step, _ = contribution.id
    return life.island, life.incarnation, from_step


def weigh(merging: tuple[Contribution, ...], *, capped: bool = True) -> tuple[Item, ...]:
    """Return shares that sum to one, each in proportion to tokens^2 / steps, "quantity x quality"
    (arXiv:2604.21428).

    `capped`: no share is more than MOST_SHARE times its contribution's share of the steps; what is
    above that goes to the others, in proportion (edition 1).
    """
    raw = [c.tokens * (c.tokens / c.steps) for c in merging]
    shares = [w / sum(raw) for w in raw]
    if capped:
        steps = sum(c.steps for c in merging)
        shares = _capped(shares, [MOST_SHARE * c.steps / steps for c in merging])
    return tuple(Item(c, share) for c, share in zip(merging, shares, strict=True))


def _capped(shares: list[float], most: list[float]) -> list[float]:
    """Return shares that keep their proportions but for those that are held to `most`, whose sum is
    at least one."""
    held = set[int]()
    while over := {i for i, each in enumerate(shares) if each > most[i] and i not in held}:
        held |= over
        free = sum(each for i, each in enumerate(shares) if i not in held)
        left = 1.0 - sum(most[i] for i in held)
        factor = left / free if free > 0 else 0.0
        shares = [most[i] if i in held else each * factor for i, each in enumerate(shares)]
    return shares
