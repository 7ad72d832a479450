"""The time budget of an island: each second of its life belongs to one activity.

The accumulator is a value: each change returns a new one. Times are seconds of any steady clock,
and come in as arguments. A budget is accounted for up to one moment, and that moment never goes
back, so no second is counted twice and none is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from coordinator.protocol import Vitals


class Activity(StrEnum):
    """The activity to which a second of an island belongs."""

    COMPUTING = "computing"
    """The devices compute inner steps."""
    DATA = "data"
    """The devices wait for data."""
    COPYING = "copying"
    """Hand-ins, adoptions, donations, or the exchange of gradients hold the devices up."""
    WAITING = "waiting"
    """The learner waits for the syncer or for other islands, as in lock-step."""
    STARTING = "starting"
    """The island waits for its devices, its process starts and imports, or it asks to join."""
    COMPILING = "compiling"
    """The process compiles its functions."""
    RESTORING = "restoring"
    """The learner fetches the model and the moments, and puts them on the devices."""
    IDLE = "idle"
    """The island is idle by order: paced, parked at the end, or barred from joining."""
    DEAD = "dead"
    """The island has devices, and its process is gone or out of reach."""


OF_VITALS = {
    Activity.COMPUTING: "computing_s",
    Activity.DATA: "data_s",
    Activity.COPYING: "talking_s",
    Activity.WAITING: "waiting_s",
    Activity.STARTING: "starting_s",
    Activity.COMPILING: "compiling_s",
    Activity.RESTORING: "restoring_s",
    Activity.IDLE: "idle_s",
}
"""The field of `Vitals` for each activity that a process measures itself."""


def seconds_of(vitals: Vitals) -> dict[str, float]:
    """Return the seconds that a process has measured, by activity."""
    return {activity.value: getattr(vitals, name) for activity, name in OF_VITALS.items()}


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """The seconds from `began_s` to `until_s`, by activity; they add up to the time between."""

    began_s: float
    """The time at which the budget begins, later by all times that were skipped."""
    until_s: float
    """The time up to which every second is accounted for."""
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds by activity."""

    @classmethod
    def begun(cls, now_s: float) -> TimeBudget:
        """Return an empty budget that begins now."""
        return cls(now_s, now_s)

    @property
    def life_s(self) -> float:
        """Seconds that are accounted for, over all activities."""
        return self.until_s - self.began_s

    def to(self, now_s: float, activity: str) -> TimeBudget:
        """Account the time since `until_s` to one activity; an earlier time changes nothing."""
        return self.split(now_s, {}, activity)

    def split(self, now_s: float, parts: Mapping[str, float], rest: str) -> TimeBudget:
        """Account the time since `until_s` to several activities, and what is left to `rest`.

        `parts`: seconds by activity. If they are longer than the time, they are shortened in
        proportion: two clocks measure them.
        """
        if not now_s > self.until_s:  # a NaN changes nothing either
            return self
        elapsed_s = now_s - self.until_s
        known = {key: each for key, each in parts.items() if each > 0 and math.isfinite(each)}
        total_s = math.fsum(known.values())
        scale = min(1.0, elapsed_s / total_s) if total_s > 0 else 1.0
        spent = {key: each * scale for key, each in known.items()}
        left_s = max(0.0, elapsed_s - math.fsum(spent.values()))
        if left_s > 0:
            spent[rest] = spent.get(rest, 0.0) + left_s
        return replace(self, until_s=now_s, seconds=added(self.seconds, spent))

    def skip(self, now_s: float) -> TimeBudget:
        """Leave out the time since `until_s`: it is no part of the life."""
        if not now_s > self.until_s:
            return self
        return replace(self, began_s=self.began_s + now_s - self.until_s, until_s=now_s)


def added(*budgets: Mapping[str, float]) -> dict[str, float]:
    """Return the sum of seconds by activity."""
    total: dict[str, float] = {}
    for budget in budgets:
        for activity, seconds in budget.items():
            total[activity] = total.get(activity, 0.0) + seconds
    return total


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each activity's share of the time; empty if there is none."""
    total_s = math.fsum(seconds.values())
    return {key: each / total_s for key, each in seconds.items()} if total_s > 0 else {}


ANOMALOUS_DEVIATIONS = 3.0
"""Median absolute deviations above the median from which a step counts as anomalous."""


def ideal_step_s(steps_s: Iterable[float]) -> tuple[float, float]:
    """Return the ideal step time, and the mean deviation from it; 0 if there are no steps.

    The ideal is the mean of the steps that are not anomalous: at most three median absolute
    deviations above the median. The definitions are those of Google's ml-goodput-measurement 0.2.3.
    """
    ordered = sorted(steps_s)
    if not ordered:
        return 0.0, 0.0
    median_s = _median(ordered)
    spread_s = _median(sorted(abs(each - median_s) for each in ordered))
    normal = [each for each in ordered if each <= median_s + ANOMALOUS_DEVIATIONS * spread_s]
    ideal_s = math.fsum(normal) / len(normal)
    return ideal_s, math.fsum(abs(each - ideal_s) for each in ordered) / len(ordered)


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
