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
from collections.abc import Mapping
from enum import StrEnum

from coordinator.protocol import Island

PARTICIPANTS = 3
"""Between two nobody can say which one points the wrong way."""
LIVE = 4
"""With fewer live learners a low cosine is reported, and has no consequence."""
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
