"""What a shard is ordered to do for a round that is closed: what it merges, by which shares."""

from __future__ import annotations

import math

from coordinator import norms
from coordinator.direction import Watch
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


def merge_order_of(rule: Rule, fragment: FragmentState, p: Fragment, round_: Round) -> Merge:
    """What the shard shall do for a round that is closed."""
    return Merge(
        p,
        round_.version,
        weigh(round_.items),
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


def weigh(merging: tuple[Contribution, ...]) -> tuple[Item, ...]:
    """Shares that sum to one, each in proportion to tokens^2 / steps, "quantity x quality"
    (arXiv:2604.21428)."""
    raw = [c.tokens * (c.tokens / c.steps) for c in merging]
    return tuple(Item(c, w / sum(raw)) for c, w in zip(merging, raw, strict=True))
