"""The rule by which an island counts as slow, and the reason in words."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from cluster.status import IslandStatus
from coordinator.medians import median_without
from islands.time_budget import Activity, shares

SLOW_FACTOR = 1.25
"""An island is slow if its rate of tokens is below that of its group by this factor."""
LEAST_S = 10.0
"""Seconds of the recent window below which nothing is concluded."""
NOTABLE_SHARE = 0.05
"""The least share of the time, above the group's median, that is a reason."""
REASONS = {
    Activity.COMPUTING: "its devices compute slower",
    Activity.DATA: "it waits for data",
    Activity.COPYING: "copying for the syncer holds it up",
    Activity.WAITING: "it waits for the syncer",
    Activity.STARTING: "it was starting",
    Activity.COMPILING: "it was compiling",
    Activity.RESTORING: "it was fetching the model",
    Activity.IDLE: "it idles by order",
    Activity.DEAD: "its process was dead",
}


def slow_islands(islands: Sequence[IslandStatus]) -> dict[str, str]:
    """Return the reason for each live island that is slower than the others of its group.

    An island is compared with the median of the live islands of its group. The reason is the
    activity whose share of the last minute exceeds the group's median most, or slower devices.
    """
    groups: defaultdict[str, list[IslandStatus]] = defaultdict(list)
    for island in islands:
        if island["state"] == "live" and _known(island):
            groups[island["group"]].append(island)
    return dict(found for group in groups.values() if len(group) > 1 for found in _slow(group))


def _known(island: IslandStatus) -> bool:
    return math.fsum(island.get("recent_s", {}).values()) >= LEAST_S and island["tokens_per_s"] > 0


def _slow(group: Sequence[IslandStatus]) -> Iterator[tuple[str, str]]:
    usual = statistics.median_high(each["tokens_per_s"] for each in group)
    factors = [usual / each["tokens_per_s"] for each in group]
    if max(factors) < SLOW_FACTOR:
        return
    reasons = _Reasons(group)
    for i, (island, factor) in enumerate(zip(group, factors, strict=True)):
        if factor >= SLOW_FACTOR:
            why = reasons.of(i)
            yield island["island"], f"slow, {factor:.1f} times slower than its group: {why}"


class _Reasons:
    """The reasons of a group of two or more islands; its shares of the time are sorted once."""

    def __init__(self, group: Sequence[IslandStatus]) -> None:
        self._shares = [shares(each.get("recent_s", {})) for each in group]
        self._ordered = {
            activity: sorted(each.get(activity, 0.0) for each in self._shares)
            for activity in Activity
            if activity is not Activity.COMPUTING
        }

    def of(self, i: int) -> str:
        """Return why this island of the group is slow."""
        own = self._shares[i]
        excess = {
            activity: own.get(activity, 0.0)
            - median_without(ordered, bisect_left(ordered, own.get(activity, 0.0)))
            for activity, ordered in self._ordered.items()
        }
        activity = max(excess, key=lambda each: excess[each])
        if excess[activity] < NOTABLE_SHARE:
            activity = Activity.COMPUTING
        return f"{REASONS[activity]} ({own.get(activity, 0.0):.0%} of its time)"
