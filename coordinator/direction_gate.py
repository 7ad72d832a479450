"""The direction test: whether a learner points against all the others.

A learner's norm and numbers may be in order and its sign wrong: a bit flipped in its gradients, a
loss with the wrong sign, data of another task. Each merge of at least PARTICIPANTS islands measures
the cosine of each contribution to the weighted mean of the others. One merge proves little. RUN
merges in a row below what chance and the spread of the others explain are enough. There is no
published rule of this kind for DiLoCo. The bounds are chosen so that clean runs, also with skewed
data, never reach them (docs/explanation/protocol.md, Direction).
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Set
from enum import StrEnum

from coordinator.medians import median_without
from coordinator.protocol import Island

PARTICIPANTS = 3
"""Islands that a merge needs for the test: with two, directions do not show which one is wrong."""
LIVE = 4
"""Live learners that the test needs without confirmation.

With fewer, a low cosine has a consequence only if the outer momentum confirms it. The momentum
leads where all of them pointed before.
"""
RUN = 5
"""Merges in a row below the bound until quarantine, and above it until trusted again."""
DEVIATIONS = 4.0
"""Deviations below which a cosine is low: of chance, and of the others' median deviation.

The cosine of two random directions of n elements has the deviation 1/sqrt(n).
"""


class Watch(StrEnum):
    """The consequence of the direction of contributions."""

    QUARANTINE = "quarantine"
    REPORT = "report"
    OFF = "off"


def bound(others: Mapping[Island, float], measured: int) -> float:
    """Return the cosine under which an island points against the others.

    `others`: their own cosines, from at least two islands. `measured`: elements measured.
    """
    median = statistics.median(others.values())
    spread = statistics.median(abs(cosine - median) for cosine in others.values())
    return _bound(median, spread, measured)


def _bound(median: float, spread: float, measured: int) -> float:
    return min(-DEVIATIONS / math.sqrt(measured), median - DEVIATIONS * spread)


CLEAR = 0.1
"""Cosine to the outer momentum, in size, from which one of two islands is judged in fewer merges.

Two clean islands of the byte models never came below +0.17 (`python -m tests.flipped`).
"""


def run_of_two(fragments: int) -> int:
    """Return the merges in a row after which one of two islands is quarantined, at most RUN.

    The momentum of a fragment shows which of the two is wrong once: after one merge of both, it has
    the directions of both. So there are no more proofs than fragments.
    """
    return min(RUN, fragments)


def chance(measured: int) -> float:
    """Return the cosine that two unrelated directions of this many elements do not reach."""
    return DEVIATIONS / math.sqrt(measured)


def confirmed(
    island: Island, aligned: Mapping[Island, float], measured: int, least: float = 0.0
) -> bool:
    """Return whether an island points against the outer momentum, and the others along it.

    `aligned`: cosine of each contribution to the direction of the momentum before the merge.
    `least`: the size that these cosines must have, if it is more than that of chance.
    """
    others = [cosine for other, cosine in aligned.items() if other != island]
    if measured == 0 or island not in aligned or not others:
        return False
    limit = max(chance(measured), least)
    return aligned[island] < -limit and statistics.median_low(others) > limit


def apart(
    merged: Set[Island],
    participants: Mapping[Island, float],
    trial: Mapping[Island, float],
    aligned: Mapping[Island, float],
    measured: int,
    least: float = 0.0,
) -> dict[Island, bool]:
    """Return for each of two islands whether it points against the other and is the wrong one.

    The outer momentum decides which of the two is wrong. For islands on trial beside a single
    island, return whether they point against that one.

    `merged`: the islands in the merge. `participants`: cosines of those that have one. `trial`:
    cosines of those that were only measured. `aligned`, `least`: as in `confirmed`.
    """
    if measured == 0:
        return {}
    limit = -chance(measured)
    if len(merged) == 1:
        return {island: cosine < limit for island, cosine in trial.items()}
    if len(merged) != 2 or not merged == participants.keys() == aligned.keys():
        return {}
    return {
        island: cosine < limit and confirmed(island, aligned, measured, least)
        for island, cosine in participants.items()
    }


def against(
    participants: Mapping[Island, float], trial: Mapping[Island, float], measured: int
) -> dict[Island, bool]:
    """Return for each island whether it points against the others; nothing if too few took part.

    `participants`: cosines of the merged islands. `trial`: of those that were only measured.
    """
    if measured == 0 or len(participants) + bool(trial) < PARTICIPANTS or len(participants) < 2:
        return {}
    verdicts: dict[Island, bool] = {}
    if trial:
        limit = bound(participants, measured)
        verdicts |= {island: cosine < limit for island, cosine in trial.items()}
    if len(participants) >= PARTICIPANTS:
        bounds = _bounds_of_others(participants, measured)
        verdicts |= {island: cosine < bounds[cosine] for island, cosine in participants.items()}
    return verdicts


def _bounds_of_others(participants: Mapping[Island, float], measured: int) -> dict[float, float]:
    """Return for each cosine the `bound` of all other participants.

    The median without one of them has at most three values. The deviations from each are sorted
    once, so that a merge of many islands takes no quadratic time.
    """
    ordered, found = sorted(participants.values()), dict[float, float]()
    deviations: dict[float, list[float]] = {}
    for i, cosine in enumerate(ordered):
        median = median_without(ordered, i)
        if median not in deviations:
            deviations[median] = sorted(abs(each - median) for each in ordered)
        here = deviations[median]
        spread = median_without(here, bisect_left(here, abs(cosine - median)))
        found[cosine] = _bound(median, spread, measured)
    return found
