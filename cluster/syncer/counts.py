"""The counters of a run, as data: the part of its measures that outlives the process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from cluster.syncer.island_time import IslandTime
from cluster.syncer.link_counts import LinkCounts
from coordinator.protocol import (
    Island,
    Life,
    Vitals,
)


@dataclass(slots=True)
class Watched:
    """The measurements of one island over all its lives."""

    group: str
    """The island's group."""
    lives: int = 0
    """Lives that were granted to the island."""
    steps_before: int = 0
    """Inner steps of all earlier lives."""
    life: Life | None = None
    """The life that reported last."""
    vital_life: Life | None = None
    """The life that sent `vitals`."""
    reported_s: float = math.nan
    """The time of that life's last report of progress; NaN before its first report."""
    steps: int = 0
    """Inner steps of that life."""
    tokens: int = 0
    """Tokens trained by that life."""
    tokens_per_s: float = 0.0
    """Throughput of that life, a moving average."""
    vitals: Vitals = field(default_factory=lambda: Vitals(math.nan))
    """The newest vitals."""
    computing_before_s: float = 0.0
    """Computing seconds of all earlier lives."""
    spikes_before: int = 0
    """Loss spikes of all earlier processes."""
    contributions: int = 0
    """Contributions that arrived and were not discarded on arrival."""
    cosine: float | None = None
    """Cosine of its last contribution to the others of that merge."""
    refused: str = ""
    """The reason why its last join was refused; empty once one is granted."""
    rejected: bool = False
    """Whether it was refused for good, so that it does not ask again."""
    fault_s: float | None = None
    """The time of the last injected fault; None once a later life has contributed."""
    fault_life: Life | None = None
    """The life that the fault has hit."""
    failed: str = ""
    """The reason why it failed since its last contribution; empty if it has not."""
    handed_in: dict[int, int] = field(default_factory=dict[int, int])
    """The step at which the last contribution to each fragment ended, until the next adoption."""
    time: IslandTime = field(default_factory=IslandTime.away)
    """The time of the island with its devices, by activity."""


RATE_SMOOTHING = 0.1
"""Weight of the newest sample in a moving average."""
SPANS_KEPT, RECOVERIES_KEPT = 64, 4096
"""The newest spans in which some learner advanced, and the newest recovery times, that are kept."""


@dataclass(slots=True)
class Counts:
    """All counters so far: plain data that outlives the process.

    Times are in seconds of the syncer's clock. The size is bounded by the islands, the fragments
    and the limits here, however long the run is.
    """

    islands: dict[Island, Watched]
    """Measurements of each island."""
    began_s: float
    """The time at which the run began."""
    first_s: float
    """The time at which the first inner step began; NaN before it."""
    stopping_s: float
    """The time at which the run began to stop; NaN before."""
    ended_s: float
    """The time at which the run finished; NaN before."""
    up_spans: list[tuple[float, float]]
    """The newest spans in which some learner advanced."""
    merged_s: float
    """The time of the last merge; NaN before the first."""
    max_gap_s: float
    """The longest time between two merges."""
    recent: list[int]
    """Participants of the newest merges."""
    up_bytes: int
    """Bytes of all contributions received."""
    down_bytes: int
    """Bytes of all publications, summed over the learners addressed."""
    refusals: Counter[str]
    """Discarded contributions by fate."""
    recovery_s: list[float]
    """Seconds from an injected fault to the next contribution of the island."""
    faults: int
    """Faults that were injected."""
    heldout: list[tuple[int, float]]
    """Held-out losses (nats per token) by syncer step."""
    holding: frozenset[Island]
    """The islands that hold devices now."""
    held_since_s: float
    """The time of the last change of `holding`, in seconds."""
    held_s: float
    """Island-seconds of devices held before `held_since_s`."""
    merges_lost: int
    """Merges lost because a restarted syncer found an earlier version."""
    troubles: dict[str, str]
    """Reasons why parts of the run are not durable at present."""
    round_s: float
    """Seconds from opening to closing of a round, a moving average."""
    grace_s: float
    """Seconds from quorum to closing of the last round."""
    staleness: float
    """Versions that a contribution's base is behind, a moving average."""
    failures: Counter[str]
    """Failures by reason."""
    unjudged: Counter[str]
    """Evaluations without a result, by reason."""
    unsound: int = 0
    """Merges that were undone."""
    jumps: dict[int, str] = field(default_factory=dict[int, str])
    """The reason why the last merge of a fragment was undone, until one succeeds."""
    not_finite: str = ""
    """The reason why the model counts as not finite; empty if it is finite."""
    adoptions: int = 0
    """Adoptions that followed a hand-in."""
    steps_to_adoption: int = 0
    """Inner steps from hand-in to adoption, summed over those."""
    outer_cosine: float = math.nan
    """Cosine of the merged delta to the outer momentum, a moving average."""
    outer_rate: float = math.nan
    """The outer learning rate that was taken, a moving average."""
    distrusted: int = 0
    """Lives that were ended because of messages that cannot be true."""
    largest_share: float = math.nan
    """Largest share in a merge over the share of its steps, a moving average."""
    up_before_s: float = 0.0
    """Seconds of earlier spans that are no longer kept one by one."""
    damage: str = ""
    """Files of the run that could not be used at the last restart."""
    held_by_group: dict[str, float] = field(default_factory=dict[str, float])
    """Island-seconds of devices held before `held_since_s`, by group."""
    links: dict[str, LinkCounts] = field(default_factory=dict[str, LinkCounts])
    """Measurements of each link and direction, such as "eu up"."""
    lost_seen: int = 0
    """Lost tokens whose computing time is in `wasted_s`."""
    wasted_s: float = 0.0
    """Computing seconds of lost tokens."""
    shards_lost: int = 0
    """Processes of shards that have ended."""
    owner: int = 0
    """The number of the owner that the run has; 0: it is not known."""
    owner_is_new: bool = False
    """Whether the syncer of this owner has not resumed the run yet."""
    paused_since_s: float = math.nan
    """The last event under the owner before, until this owner resumes the run; NaN otherwise."""
    paused_s: float = 0.0
    """Seconds between an owner and the next one, in which nothing ran."""

    def watched(self, island: Island) -> Watched:
        """Return the measurements of an island; begin some if it is not configured."""
        return self.islands.setdefault(island, Watched("?"))


COUNTS = TypeAdapter(Counts)


def fresh(islands: Mapping[Island, str], now_s: float) -> Counts:
    """Return counters at zero; `islands` maps each configured island to its group.

    All of them hold devices from `now_s` on.
    """
    return Counts(
        islands={
            island: Watched(group, time=IslandTime.held(now_s)) for island, group in islands.items()
        },
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
    """Return a moving average with one more sample; NaN stands for an average of no samples."""
    return sample if math.isnan(known) else known + RATE_SMOOTHING * (sample - known)
