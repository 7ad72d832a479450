"""The life of an island with its devices, by activity: what processes measure, and the time around.

A process measures its own time (`islands.activity_clock`) and sends totals with its reports. The
time without a process is added here: before the first one and between two of them. Each function
changes the record of one island. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.syncer.badput import Badput, by_type
from coordinator.protocol import Vitals
from islands.time_budget import Activity, TimeBudget, added, seconds_of


class LifeStage(StrEnum):
    """The part of an island's life that is under way."""

    AWAY = "away"  # it has no devices: the time is not of its life
    STARTING = "starting"  # it has devices or waits for them, and no process has begun
    RUNNING = "running"  # a process measures its time
    DEAD = "dead"  # its process is gone, and the next one has not begun


@dataclass(slots=True)
class IslandTime:
    """The record of one island's life: what is accounted for, and the process that measures."""

    activities: TimeBudget
    """Seconds by activity."""
    types: TimeBudget
    """These seconds by type of badput."""
    stage: LifeStage = LifeStage.AWAY
    waits_as: Badput = Badput.TPU_INITIALIZATION
    """The type of the time before a process begins."""
    processes: int = 0
    """Processes that have begun."""
    start: int = 0
    """The number of the newest process start that the fleet has reported."""
    ahead: bool = False
    """Whether the newest process has reported before the fleet has."""
    process: int = 0
    """The number by which the process that measures names itself; 0: it has not reported."""
    reported_s: float = -math.inf
    """The time of its last report."""
    base: dict[str, float] = field(default_factory=dict[str, float])
    """Totals of that process, by activity, that are accounted for in `activities`."""
    debt_s: float = 0.0
    """Seconds that it measures after `base`, and that are accounted for already."""
    measured: dict[str, float] = field(default_factory=dict[str, float])
    """The newest totals of that process, by activity."""

    @classmethod
    def away(cls, now_s: float = 0.0) -> IslandTime:
        """Return the record of an island that has had no devices yet."""
        return cls(TimeBudget.begun(now_s), TimeBudget.begun(now_s))

    @classmethod
    def held(cls, now_s: float) -> IslandTime:
        """Return the record of an island whose life begins now."""
        record = cls.away(now_s)
        record.stage = LifeStage.STARTING
        return record

    @property
    def _own(self) -> dict[str, float]:
        """Seconds that the present process has measured and that are not accounted for yet."""
        base = self.base
        own = {key: max(0.0, each - base.get(key, 0.0)) for key, each in self.measured.items()}
        if not self.debt_s or not (total_s := math.fsum(own.values())):
            return own
        rest = max(0.0, 1.0 - self.debt_s / total_s)  # it only grows, and so does each product
        return {key: each * rest for key, each in own.items()}

    @property
    def first(self) -> bool:
        """Whether the process that measures is the first one of the island."""
        return self.processes <= 1

    def seconds(self) -> dict[str, float]:
        """Return the seconds so far by activity; none of them falls later."""
        return added(self.activities.seconds, self._own)

    def seconds_by_type(self) -> dict[str, float]:
        """Return the same seconds by type of badput, and goodput."""
        return added(self.types.seconds, by_type(self._own, first=self.first))

    def life_s(self, now_s: float) -> float:
        """Return the seconds of the life so far; those since the last report are in no activity."""
        known = self.activities
        return known.life_s + (now_s - known.until_s if self.stage is LifeStage.RUNNING else 0.0)

    def account(self, now_s: float, activity: Activity, kind: str) -> None:
        """Account the time without a process up to now."""
        self.activities = self.activities.to(now_s, activity)
        self.types = self.types.to(now_s, kind)

    def close(self, now_s: float, rest: Activity, kind: str) -> None:
        """End the time that the present process has measured; what is left of it is `rest`."""
        own = self._own
        now_s = max(now_s, self.activities.until_s + math.fsum(own.values()))  # clocks differ by ms
        self.types = self.types.split(now_s, by_type(own, first=self.first), kind)
        self.activities = self.activities.split(now_s, own, rest)
        self.base, self.debt_s = dict(self.measured), 0.0

    def up_to(self, now_s: float) -> None:
        """Account the time up to now, if no process measures it."""
        match self.stage:
            case LifeStage.STARTING:
                self.account(now_s, Activity.STARTING, self.waits_as)
            case LifeStage.DEAD:
                kind = Badput.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION
                self.account(now_s, Activity.DEAD, kind)
            case LifeStage.RUNNING | LifeStage.AWAY:
                pass

    def died(self) -> None:
        """Note that the process is gone: after its last report it was, as far as is known, dead.

        Steps after the last measurement count as computing that was wasted. A process that has not
        reported yet cannot be lost: the loss is that of the one before.
        """
        if self.stage is LifeStage.RUNNING and self.process:
            kind = Badput.WASTED_PROGRESS_FROM_DISRUPTION
            self.close(self.reported_s, Activity.COMPUTING, kind)
            self.stage = LifeStage.DEAD

    def began(self, start: int, at_s: float) -> None:
        """Note that a process began at this time.

        `start`: the number by which the fleet counts it; 0: it has reported before the fleet has.
        A process of an island without devices, or of a run that is over, does not count.
        """
        if self.stage is LifeStage.AWAY:
            return
        if start:
            known = start == self.start
            self.start = start
            if known or self.ahead:
                self.ahead = False
                return
        self.died()
        if self.stage is LifeStage.RUNNING:  # it ended before its first report
            self.stage = LifeStage.DEAD
        self.up_to(at_s)
        self.stage, self.processes = LifeStage.RUNNING, self.processes + 1
        self.process, self.base, self.measured, self.debt_s = 0, {}, {}, 0.0
        self.reported_s = max(at_s, self.activities.until_s)

    def reported(self, vitals: Vitals, now_s: float) -> None:
        """Record the totals of a report."""
        measured = seconds_of(vitals)
        if math.isnan(now_s) or self.stage is LifeStage.AWAY or not vitals.process:
            return
        if vitals.process != self.process:
            self._first_report(vitals, now_s, math.fsum(measured.values()))
        elif self.stage is LifeStage.DEAD:  # it was out of reach and is back: that time stays dead
            self.up_to(now_s)
            self.base, self.stage = measured, LifeStage.RUNNING
            self.debt_s = max(0.0, vitals.age_s - math.fsum(measured.values()))
        self.measured = measured
        self.reported_s = max(self.reported_s, now_s)

    def _first_report(self, vitals: Vitals, now_s: float, measured_s: float) -> None:
        """Account the time until the clock of a process began, from its first report.

        The clock begins after the first answer of the fleet, which has noted the start before.
        """
        at_s = now_s - max(measured_s, vitals.age_s)
        if self.stage is not LifeStage.RUNNING or self.process:  # the fleet has not reported it yet
            self.began(0, at_s)
            self.ahead = True
            self.debt_s = max(0.0, self.activities.until_s - at_s)
        else:
            (kind,) = by_type({Activity.STARTING: 1.0}, first=self.first)
            self.account(at_s, Activity.STARTING, kind)
        self.process = vitals.process

    def holds(self, now_s: float, *, added_later: bool) -> None:
        """Note that the island has devices, or waits for them, from now on."""
        if self.stage is not LifeStage.AWAY:
            return
        self.activities, self.types = self.activities.skip(now_s), self.types.skip(now_s)
        self.stage = LifeStage.STARTING
        if self.processes:
            self.waits_as = Badput.ELASTIC_SLICE_DOWN
        elif added_later:
            self.waits_as = Badput.ELASTIC_SCALE_UP

    def ends(self, now_s: float) -> None:
        """End this part of the life: the island returns its devices, or the run is over.

        A process that was alive is idle since its last measurement.
        """
        if self.stage is LifeStage.RUNNING:
            self.close(now_s, Activity.IDLE, Badput.OTHER)
        self.up_to(now_s)
        self.stage, self.start, self.ahead = LifeStage.AWAY, 0, False
        self.process, self.base, self.measured, self.debt_s = 0, {}, {}, 0.0
