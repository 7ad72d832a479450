"""What a run says of itself while it goes on: one mapping, written by the run, read by whoever
shows it. Plain JSON types, so that it travels as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

PhaseName = Literal["starting", "running", "stopping", "finished"]
IslandState = Literal[
    "waiting", "starting", "joining", "live", "draining", "quarantined", "lost", "left", "set aside"
]
"""`waiting`: for its devices; `set aside`: it failed too often; the others are its learner's."""


CURVE_KEPT, CURVE_SKETCHED = 512, 32
"""Points of a held-out curve: in a status, and in each line of metrics.jsonl."""


def sketched(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A curve as one can draw it in a line: few points, evenly spread, the newest among them."""
    if len(curve) <= CURVE_SKETCHED:
        return [*curve]
    last = CURVE_SKETCHED - 1
    return [curve[point * (len(curve) - 1) // last] for point in range(CURVE_SKETCHED)]


class IslandStatus(TypedDict):
    island: str
    group: str
    state: IslandState
    incarnation: int  # of the present or last life; grows over the whole run, 0 before the first
    life: int  # which life of this island that is: 1 for the first
    steps: int  # inner steps over all lives
    tokens_per_s: float
    loss: float | None  # of its last step, nats per token
    why: str  # why it is in this state
    contributions: int  # admitted ones
    cosine: float | None  # of its last contribution to the mean of the others', None: not measured
    restarts: int  # lives after its first: its process began anew, or it was let in again


class Figures(TypedDict):
    """Measurements for dashboards. Moving averages unless said otherwise."""

    quorum: int
    generation: int  # how often the syncer was restarted
    tokens_merged: int
    tokens_discarded: int
    tokens_lost: int
    merge_age_s: float | None  # since the last merge
    round_s: float | None  # from opening to close
    grace_s: float | None  # of the last round that closed
    staleness: float | None  # of merged contributions, in versions
    overlap_steps: float | None  # from a hand-in to the adoption after it, mean over the run
    outer_cosine: float | None  # of merged deltas to the outer momentum, or to those before
    outer_rate: float | None  # the outer learning rate that was taken
    distrusted_lives: int  # that were ended for words that cannot be true
    largest_share: float | None  # of a merge, over the same contribution's share of the steps
    unsound_merges: int  # that were undone, since their step was not finite or far too long
    trouble: str  # what is wrong with the model, as far as it can be seen; empty: nothing
    merges_lost: int  # published, but not durable when the shard died
    not_durable: str  # what the disk does not take at present, and why; empty: all is well
    damage: str  # files of the run that could not be used when it came back; empty: all could
    up_bytes: int
    down_bytes: int
    goodput: float
    uptime: float


class RoundStatus(TypedDict):
    """An open round."""

    arrived: int
    asked: int
    why: str


class FragmentStatus(TypedDict):
    fragment: int
    version: int
    participants: list[str]  # islands in the last merge
    round: RoundStatus | None


class EvaluationStatus(TypedDict):
    """What judging the model takes, from the batches judged so far; and how far the last one is."""

    look_s: float  # one of the looks now and then
    last_s: float  # the last model's, all figures of the summary together
    done: int  # batches of the last model's
    wanted: int  # ... of so many; 0: it has not begun


class RunStatus(TypedDict):
    run: str
    t: int
    steps: int  # T
    elapsed_s: float
    left_s: float | None  # None: not known yet
    phase: PhaseName
    islands: list[IslandStatus]
    fragments: list[FragmentStatus]
    participants: float  # mean of the recent merges
    alive: int
    merges: int
    tokens_trained: int
    tokens_per_s: float
    heldout: list[tuple[int, float]]  # (t, loss of the syncer's model), oldest first; thinned out
    faults: int
    wanted: int  # islands that shall be there
    spares: int  # processes that are warm and could be one of them
    refusals: dict[str, int]  # contributions not merged, by reason
    failures: dict[str, int]  # of islands, by reason
    unjudged: dict[str, int]  # evaluations of the model that came to nothing, by reason
    figures: Figures | None  # None: nothing measured yet
    evaluation: NotRequired[EvaluationStatus | None]  # None: no batch was judged yet
    asked: NotRequired[str | None]  # who asked the run to end; None: nobody
    alerts: NotRequired[list[str]]  # of the fleet: what somebody must see to
