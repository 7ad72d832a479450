"""The measures of rounds and merges: how long, how old, how large, and in which direction.

Each function counts one thing in the `Counts` of a run. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math

from cluster.syncer.counts import Counts, smoothed
from cluster.thinning import thin
from coordinator import suspects
from coordinator.protocol import Merge, Merged, Unsound
from coordinator.state import FragmentState, Stage, State

RECENT_MERGES = 24
"""The number of merges over which the displayed participants are averaged."""
CURVE_KEPT = 512
"""The most points of the held-out curve of a status."""


def closed(counts: Counts, fragment: FragmentState, order: Merge, now_s: float) -> None:
    """Count a closed round: how long it was open, and the staleness of its contributions."""
    if (round_ := fragment.round) is not None:
        counts.round_s = smoothed(counts.round_s, now_s - round_.opened_s)
        since_s = now_s if round_.quorum_since_s is None else round_.quorum_since_s
        counts.grace_s = now_s - since_s
    steps = sum(item.contribution.steps for item in order.items)
    shares = [item.weight * steps / item.contribution.steps for item in order.items]
    counts.largest_share = smoothed(counts.largest_share, max(shares))
    for item in order.items:
        age = fragment.version.number - item.contribution.base.number
        counts.staleness = smoothed(counts.staleness, age)


def merged(counts: Counts, before: State, after: State, now_s: float) -> None:
    """Count a merge: its participants, and the time since the one before."""
    participants = next(
        new.participants
        for old, new in zip(before.fragments, after.fragments, strict=True)
        if old.round != new.round and new.round and new.round.stage is Stage.STORING
    )
    counts.recent = [*counts.recent, len(participants)][-RECENT_MERGES:]
    if not math.isnan(counts.merged_s):
        counts.max_gap_s = max(counts.max_gap_s, now_s - counts.merged_s)
    counts.merged_s = now_s


def undone(counts: Counts, before: State, event: Unsound, after: State) -> None:
    """Count a merge that was undone, unless its round was over already."""
    if after.fragments[event.fragment] is before.fragments[event.fragment]:
        return
    counts.unsound += 1
    counts.jumps[event.fragment] = (
        f"the step of fragment {event.fragment} to {event.version} had norm {event.norm:.3g} "
        "and was undone"
    )


def pointed(counts: Counts, before: State, event: Merged) -> None:
    """Record the direction of each contribution of a merge, and of the merged delta."""
    if event.turned is not None:
        counts.outer_cosine = smoothed(counts.outer_cosine, event.turned)
    if event.rate is not None:
        counts.outer_rate = smoothed(counts.outer_rate, event.rate)
    if (round_ := before.fragments[event.fragment].round) is None:
        return
    for cosines in suspects.cosines_of(round_.items, round_.trial, event):
        for island, cosine in cosines.items():
            counts.watched(island).cosine = cosine


def evaluated(counts: Counts, t: int, loss: float | None) -> None:
    """Record a held-out loss as of syncer step `t`; thin out the curve when it is long.

    The curve has one point for each step, the newest: a run that waits is evaluated, too. A long
    curve is evenly spread over the steps of the run, and the same after a replay.
    """
    if loss is not None and math.isfinite(loss):
        if counts.heldout and counts.heldout[-1][0] == t:
            counts.heldout.pop()
        counts.heldout.append((t, loss))
        thin(counts.heldout, CURVE_KEPT, lambda point: point[0])
        counts.not_finite = ""
    else:
        counts.not_finite = f"its held-out loss at t = {t} is not finite"
