"""Does a learner push against all the others? Its norm and its numbers may be in order and its
sign be wrong: a bit flipped in its gradients, a loss with the wrong sign, data of another task.

Each merge of at least PARTICIPANTS islands measures the cosine of each contribution to the weighted
mean of the others. One merge says little; RUN merges in a row that are below what chance and the
spread of the others explain say enough. Nobody has published such a rule for DiLoCo; the bounds are
chosen so that clean runs, skewed data among them, never reach them (docs/protocol.md, Direction).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Set
from enum import StrEnum

from coordinator.protocol import Island

PARTICIPANTS = 3
"""Between two their directions alone do not say which one points the wrong way."""
LIVE = 4
"""With fewer live learners a low cosine has a consequence only where the outer momentum confirms
it, which leads where all of them pointed before."""
RUN = 5
"""So many merges in a row below the bound: quarantine. So many above it: trusted again."""
DEVIATIONS = 4.0
"""Of chance (the cosine of two random directions of n elements has 1/sqrt(n)), and of the others'
median deviation."""


class Watch(StrEnum):
    """What follows from the direction of contributions."""

    QUARANTINE = "quarantine"
    REPORT = "report"
    OFF = "off"


def bound(others: Mapping[Island, float], measured: int) -> float:
    """Return the cosine under which an island points against the others; `others`: their own
    cosines, of two islands at least; `measured`: elements that were looked at."""
    middle = statistics.median(others.values())
    spread = statistics.median(abs(cosine - middle) for cosine in others.values())
    return min(-DEVIATIONS / math.sqrt(measured), middle - DEVIATIONS * spread)


def chance(measured: int) -> float:
    """Return the cosine that two unrelated directions do not reach, of so many elements."""
    return DEVIATIONS / math.sqrt(measured)


def confirmed(island: Island, aligned: Mapping[Island, float], measured: int) -> bool:
    """Whether an island points against the outer momentum, and the others along it.

    `aligned`: cosine of each contribution to where the momentum led before the merge.
    """
    others = [cosine for other, cosine in aligned.items() if other != island]
    if measured == 0 or island not in aligned or not others:
        return False
    most = chance(measured)
    return aligned[island] < -most and statistics.median_low(others) > most


def apart(
    merged: Set[Island],
    participants: Mapping[Island, float],
    trial: Mapping[Island, float],
    aligned: Mapping[Island, float],
    measured: int,
) -> dict[Island, bool]:
    """Return of each of two islands whether it points against the other one, where the outer
    momentum says which of the two it is; of those on trial beside one island, whether they do.

    `merged`: the islands in the merge; `participants`: cosines of those that have one, `trial`: of
    those that were only measured; `aligned`: as in `confirmed`.
    """
    if measured == 0:
        return {}
    least = -chance(measured)
    if len(merged) == 1:
        return {island: cosine < least for island, cosine in trial.items()}
    if len(merged) != 2 or not merged == participants.keys() == aligned.keys():
        return {}
    return {
        island: cosine < least and confirmed(island, aligned, measured)
        for island, cosine in participants.items()
    }


def against(
    participants: Mapping[Island, float], trial: Mapping[Island, float], measured: int
) -> dict[Island, bool]:
    """Return of each island whether it points against the others; of nobody if too few took part.

    `participants`: cosines of those merged; `trial`: of those that were only measured.
    """
    if measured == 0 or len(participants) + bool(trial) < PARTICIPANTS or len(participants) < 2:
        return {}
    found = {island: cosine < bound(participants, measured) for island, cosine in trial.items()}
    for island, cosine in participants.items():
        others = {other: c for other, c in participants.items() if other != island}
        if len(others) >= PARTICIPANTS - 1:
            found[island] = cosine < bound(others, measured)
    return found
