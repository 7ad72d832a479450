"""The recent norms of a fragment, and the limit above which a norm is an outlier.

A norm belongs to a number of inner steps. Between two numbers of steps it grows at least with the
square root of their ratio (if the steps are all noise) and at most with the ratio (if they all
point the same way). So a known norm bounds one over other steps by the larger of the two.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.frozen import replace
from coordinator.protocol import Island

KEPT = 64
"""Number of norms that are remembered."""
NEEDED = 8
"""Number of norms below which nothing is called an outlier."""
OUTLIER_FACTOR = 10.0
"""A norm up to this many times the median is always admitted."""
STRICT_FACTOR = 5.0
"""The factor for an island that was quarantined for its norms before (edition 3)."""
OUTLIER_SPREADS = 8.0
"""A norm within this many median deviations (of the logarithm) of the median is admitted too."""
CHANGED_FACTOR = 100.0
"""The limit after norms have changed for everyone, as a multiple of the former median.

It applies until NEEDED new norms are known.
"""


OTHERS_NEEDED = 4
"""Number of norms of other islands below which an island's own norms count like theirs."""
KEPT_OF_EACH = 4
"""Number of an island's newest norms that those of others do not push out."""


class Sample(NamedTuple):
    """The Euclidean norm of a delta over a number of inner steps."""

    norm: float
    steps: int
    island: Island | None = None
    """The island it came from, from edition 1 of the rules on."""


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms of a fragment that are remembered."""

    recent: tuple[Sample, ...] = ()
    """The last KEPT norms, oldest first."""
    former: Sample | None = None
    """The median of those that were forgotten, until NEEDED others are known."""


NONE = Norms()
"""The norms of a fragment that has merged nothing yet."""


def limit(
    norms: Norms,
    steps: int,
    others: Set[Island] = frozenset(),
    own: Island | None = None,
    *,
    newest: bool = False,
    factor: float = OUTLIER_FACTOR,
) -> float:
    """Return the largest norm over `steps` that is in line with these.

    It is infinite if too few norms are known.

    The median norm is taken per step and per square root of steps, and the larger limit counts. The
    spread is that of the reading that fits the norms better.

    `others`: the islands with which this one is compared. If enough of their norms are known, the
    median is that of their medians, so that no island's own norms move its limit. With two islands,
    each is compared with the other.

    `own`: the island itself, from edition 2 on. An even number of others has no middle one: if half
    of them are a thousand times too large, the limit is hundreds of times too large as well. Then
    the island's own norms count as those of one more. The limit stays between those that the two
    middle ones of the others alone would give.

    `newest`: only the newest KEPT_OF_EACH norms of each island count, from edition 3 on. Norms fall
    with the learning rate, and the median of all that are remembered would follow late: near the
    end of a run, a norm of a hundred times the others' would be admitted.

    `factor`: a norm up to this many times the median is admitted.
    """
    known = [sample for sample in norms.recent if sample.norm > 0]
    if len(known) < NEEDED:
        if norms.former is None:
            return math.inf
        ratio = steps / norms.former.steps
        return CHANGED_FACTOR * norms.former.norm * max(ratio, math.sqrt(ratio))
    other_samples = [sample for sample in known if sample.island in others]
    by_island = len(other_samples) >= OTHERS_NEEDED
    if own is not None and len({sample.island for sample in other_samples}) % 2 == 0:
        other_samples = [sample for sample in known if sample.island in {*others, own}]
    if newest:
        other_samples = _newest(other_samples)
    highest, spread = -math.inf, math.inf
    for power in (1.0, 0.5):
        samples = other_samples if by_island else known
        logs = [
            math.log(norm) - power * math.log(sample_steps) for norm, sample_steps, _ in samples
        ]
        median = statistics.median(logs)
        if by_island:
            logs_by_island: dict[Island | None, list[float]] = {}
            for sample, logarithm in zip(samples, logs, strict=True):
                logs_by_island.setdefault(sample.island, []).append(logarithm)
            median = statistics.median(
                statistics.median(island_logs) for island_logs in logs_by_island.values()
            )
        highest = max(highest, median + power * math.log(steps))
        spread = min(spread, statistics.median([abs(logarithm - median) for logarithm in logs]))
    return math.exp(highest + max(math.log(factor), OUTLIER_SPREADS * spread))


def _newest(samples: list[Sample]) -> list[Sample]:
    """Return the newest KEPT_OF_EACH norms of each island."""
    counts, newest = Counter[Island | None](), list[Sample]()
    for sample in reversed(samples):
        counts[sample.island] += 1
        if counts[sample.island] <= KEPT_OF_EACH:
            newest.append(sample)
    return newest[::-1]


def admit(norms: Norms, norm: float, steps: int, island: Island | None = None) -> Norms:
    """Return the norms with one more.

    If there are more than KEPT, the oldest one of an island with more than KEPT_OF_EACH is dropped.
    """
    recent = (*norms.recent, Sample(norm, steps, island))
    if len(recent) > KEPT:
        count = Counter(sample.island for sample in recent)
        removable = (
            place for place, other in enumerate(recent) if count[other.island] > KEPT_OF_EACH
        )
        removed = next(removable, 0)
        recent = (*recent[:removed], *recent[removed + 1 :])
    known = sum(sample.norm > 0 for sample in recent) >= NEEDED
    return Norms(recent, None if known else norms.former)


def forget(norms: Norms) -> Norms:
    """Return no norms, except the median one (per step) as a last bound.

    The norms have changed for everyone. If there are too few for a median, the former one stays.
    """
    known = sorted((s for s in norms.recent if s.norm > 0), key=lambda s: s.norm / s.steps)
    if len(known) < NEEDED:
        return replace(norms, recent=())
    return Norms((), known[len(known) // 2])
