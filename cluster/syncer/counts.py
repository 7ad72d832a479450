"""What is counted of a run, as data: the part of its measures that outlasts the process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from coordinator.protocol import (
    Island,
    Life,
    Vitals,
)


@dataclass(slots=True)
class Watched:
    """One island over all its lives."""

    group: str
    lives: int = 0
    steps_before: int = 0
    life: Life | None = None
    vital_life: Life | None = None
    reported_s: float = math.nan
    steps: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    vitals: Vitals = field(default_factory=lambda: Vitals(math.nan))
    computing_before_s: float = 0.0
    contributions: int = 0
    cosine: float | None = None
    refused: str = ""
    rejected: bool = False  # for good: it will not ask again
    fault_s: float | None = None
    fault_life: Life | None = None
    failed: str = ""  # since its last contribution
    handed_in: dict[int, int] = field(default_factory=dict[int, int])  # until it adopts: the step


RATE_SMOOTHING = 0.1
"""Weight of the newest sample in a moving average."""
SPANS_KEPT, RECOVERIES_KEPT = 64, 4096
"""Of the newest: times in which some learner advanced, and recoveries."""


@dataclass(slots=True)
class Counts:
    """All that was counted so far; plain data, so that it outlasts the process, and no longer than
    its islands, fragments and the limits here make it, however long the run is."""

    islands: dict[Island, Watched]
    began_s: float
    first_s: float
    stopping_s: float
    ended_s: float
    up_spans: list[tuple[float, float]]
    merged_s: float
    max_gap_s: float
    recent: list[int]
    up_bytes: int
    down_bytes: int
    refusals: Counter[str]
    recovery_s: list[float]
    faults: int
    heldout: list[tuple[int, float]]
    holding: frozenset[Island]
    held_since_s: float
    held_s: float
    merges_lost: int
    troubles: dict[str, str]
    round_s: float
    grace_s: float
    staleness: float
    failures: Counter[str]
    unjudged: Counter[str]
    unsound: int = 0
    jumps: dict[int, str] = field(default_factory=dict[int, str])
    not_finite: str = ""
    adoptions: int = 0  # of what had been handed in
    steps_to_adoption: int = 0  # since that, of all of them
    outer_cosine: float = math.nan  # of merged deltas to the outer momentum, a moving average
    outer_rate: float = math.nan  # that was taken, a moving average
    distrusted: int = 0  # lives that were ended for words that cannot be true
    largest_share: float = math.nan  # of a merge over that of its steps, a moving average
    up_before_s: float = 0.0  # of spans that are no longer told apart
    damage: str = ""  # files of the run that could not be used when it came back last

    def watched(self, island: Island) -> Watched:
        """Return what is known of an island; of one that is not configured, from here on."""
        return self.islands.setdefault(island, Watched("?"))


COUNTS = TypeAdapter(Counts)


def fresh(islands: Mapping[Island, str], now_s: float) -> Counts:
    """Nothing counted yet; `islands`: each configured one with its group, which hold devices."""
    return Counts(
        islands={island: Watched(group) for island, group in islands.items()},
        began_s=now_s,
        first_s=math.nan,
        stopping_s=math.nan,
        ended_s=math.nan,
        up_spans=[],
        merged_s=math.nan,
        max_gap_s=0.0,
        recent=[],
        up_bytes=0,
        down_bytes=0,
        refusals=Counter(),
        recovery_s=[],
        faults=0,
        heldout=[],
        holding=frozenset(islands),
        held_since_s=now_s,
        held_s=0.0,
        merges_lost=0,
        troubles={},
        round_s=math.nan,
        grace_s=math.nan,
        staleness=math.nan,
        failures=Counter(),
        unjudged=Counter(),
    )


def smoothed(known: float, sample: float) -> float:
    """Return a moving average with one more sample; NaN stands for an average of none."""
    return sample if math.isnan(known) else known + RATE_SMOOTHING * (sample - known)
