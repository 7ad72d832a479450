"""The time of all islands of a run: where it went, rolling windows, and why an island is slow.

`island_time` has the record of one island. The windows are not durable: they are of the last
minutes. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.status import IslandStatus, RunStatus
from cluster.syncer.badput import GOODPUT, Badput
from cluster.syncer.counts import Counts, Watched
from cluster.syncer.slow_islands import slow_islands
from cluster.view import ProcessStarts
from coordinator.protocol import Island
from islands.time_budget import Activity, added

WINDOWS_S = (60, 300, 900)
"""Lengths of the rolling windows of goodput, in seconds."""
SAMPLE_S = 5.0
"""Seconds between two samples of a rolling window."""
RECENT_S = 60.0
"""Length in seconds of the window that shows where an island's time goes at present."""


@dataclass(slots=True)
class _Sample:
    """The totals of all islands at one moment."""

    at_s: float
    computing_s: float
    life_s: float
    islands: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Seconds by activity of each island."""


class RunTime:
    """The rolling windows of one run, and the time of its islands in a status."""

    def __init__(self) -> None:
        self._samples = deque[_Sample]()
        self._known_s = -math.inf  # the time up to which the fleet's knowledge of starts goes

    def looked(self, counts: Counts, processes: ProcessStarts | None, now_s: float) -> None:
        """Note the starts of processes that the fleet has seen."""
        if processes is None:
            return
        for island, (start, age_s) in processes.newest.items():
            if (watched := counts.islands.get(island)) is not None:
                watched.time.began(start, now_s - age_s)
        self._known_s = now_s - processes.age_s

    def with_time(self, counts: Counts, status: RunStatus, now_s: float) -> RunStatus:
        """Return a status with the time of the islands in it, accounted for up to now."""
        for island in status["islands"]:
            watched = counts.islands[Island(island["island"])]
            if island["state"] == "lost":
                watched.time.died()
            watched.time.up_to(min(now_s, self._known_s))
        figures = status["figures"]
        if figures is not None:
            _count_waste(counts, figures["tokens_lost"], status["tokens_trained"])
        budgets = {str(name): each.time.seconds() for name, each in counts.islands.items()}
        recent = self._recent(budgets, now_s)
        islands = [
            _timed(each, counts.islands[Island(each["island"])], budgets, recent, now_s)
            for each in status["islands"]
        ]
        by_name = {each["island"]: each for each in islands}
        for island, why in slow_islands(islands).items():
            shown = by_name[island]
            shown["why"] = f"{shown['why']}; {why}" if shown["why"] else why
            shown["slow"] = True
        after: RunStatus = {**status, "islands": islands}
        if figures is not None:
            rolling = self._rolling(budgets, now_s)
            after["figures"] = {
                **figures,
                "badput_s": badput_s(counts),
                "rolling_goodput": rolling,
                "loss_spikes": loss_spikes(counts),
            }
        return after

    def _recent(
        self, budgets: Mapping[str, Mapping[str, float]], now_s: float
    ) -> dict[str, dict[str, float]]:
        """Take a sample if it is time; return each island's seconds of the last minute."""
        longest_s = max(WINDOWS_S)
        if not self._samples or now_s - self._samples[-1].at_s >= SAMPLE_S:
            copied = {name: dict(budget) for name, budget in budgets.items()}
            computing_s, life_s = _sums(budgets)
            self._samples.append(_Sample(now_s, computing_s, life_s, copied))
            for old in self._samples:
                if now_s - old.at_s <= RECENT_S + SAMPLE_S:
                    break
                old.islands = {}  # longer windows need only the sums
        while len(self._samples) > 1 and now_s - self._samples[1].at_s >= longest_s:
            self._samples.popleft()
        before = self._at(now_s - RECENT_S).islands
        return {
            name: {key: each - before.get(name, {}).get(key, 0.0) for key, each in budget.items()}
            for name, budget in budgets.items()
        }

    def _at(self, at_s: float) -> _Sample:
        """Return the newest sample with islands that is as old as this time, or the oldest one."""
        detailed = [each for each in self._samples if each.islands] or [*self._samples]
        older = [each for each in detailed if each.at_s <= at_s]
        return older[-1] if older else detailed[0]

    def _rolling(
        self, budgets: Mapping[str, Mapping[str, float]], now_s: float
    ) -> dict[str, float | None]:
        """Return the goodput of the last minutes, by the length of the window in seconds."""
        computing_s, life_s = _sums(budgets)
        found: dict[str, float | None] = {}
        for window_s in WINDOWS_S:
            older = [each for each in self._samples if each.at_s <= now_s - window_s]
            before = older[-1] if older else self._samples[0]
            spent_s = life_s - before.life_s
            found[f"{window_s}"] = (computing_s - before.computing_s) / spent_s if spent_s else None
        return found


def _sums(budgets: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    """Return the computing seconds of all islands, and all their seconds."""
    total = added(*budgets.values())
    return total.get(Activity.COMPUTING, 0.0), math.fsum(total.values())


def _timed(
    island: IslandStatus,
    watched: Watched,
    budgets: Mapping[str, Mapping[str, float]],
    recent: Mapping[str, Mapping[str, float]],
    now_s: float,
) -> IslandStatus:
    name, vitals = island["island"], watched.vitals
    return {
        **island,
        "life_s": round(watched.time.life_s(now_s), 3),
        "time_s": _in_order(budgets[name]),
        "recent_s": _in_order(recent[name]),
        "ideal_step_s": vitals.ideal_step_s or None,
        "step_deviation_s": vitals.step_deviation_s if vitals.ideal_step_s else None,
        "loss_spikes": watched.spikes_before + vitals.loss_spikes,
        "metrics": {name: x if math.isfinite(x) else None for name, x in vitals.metrics},
        "slow": False,
    }


def _in_order(seconds: Mapping[str, float]) -> dict[str, float]:
    return {each.value: round(max(0.0, seconds.get(each, 0.0)), 3) for each in Activity}


def _count_waste(counts: Counts, lost_tokens: int, trained_tokens: int) -> None:
    """Count the computing time of tokens that were lost, at the mean speed of the run."""
    if lost_tokens <= counts.lost_seen or not trained_tokens:
        return
    computing_s = math.fsum(
        watched.time.seconds().get(Activity.COMPUTING, 0.0) for watched in counts.islands.values()
    )
    counts.wasted_s += (lost_tokens - counts.lost_seen) * computing_s / trained_tokens
    counts.lost_seen = lost_tokens


def badput_s(counts: Counts) -> dict[str, float]:
    """Return the seconds of all islands by type of badput, in the order of the types."""
    types = added(*(watched.time.seconds_by_type() for watched in counts.islands.values()))
    wasted = Badput.WASTED_PROGRESS_FROM_DISRUPTION
    types[wasted] = types.get(wasted, 0.0) + counts.wasted_s
    return {kind.value: round(types.get(kind, 0.0), 3) for kind in Badput}


def began(counts: Counts, now_s: float) -> None:
    """Let the lives of islands begin at the beginning of the run."""
    for watched in counts.islands.values():
        if watched.time.activities.life_s == 0.0 and not watched.time.processes:
            watched.time = type(watched.time).held(now_s)


def held(counts: Counts, islands: Mapping[Island, str], now_s: float) -> None:
    """Note which islands hold devices from now on, each with its group."""
    passed_s, before = now_s - counts.held_since_s, counts.holding
    for island in before:
        group = counts.islands[island].group
        counts.held_by_group[group] = counts.held_by_group.get(group, 0.0) + passed_s
    counts.held_s += len(before) * passed_s
    counts.holding, counts.held_since_s = frozenset(islands), now_s
    for island, group in islands.items():
        watched = counts.islands.setdefault(island, Watched(group))
        if math.isnan(counts.ended_s):
            watched.time.holds(now_s, added_later=not math.isnan(counts.first_s))
    for island in before - counts.holding:
        counts.islands[island].time.ends(now_s)


def ended(counts: Counts, now_s: float) -> None:
    """End the lives of all islands with the run."""
    for watched in counts.islands.values():
        watched.time.ends(now_s)


def summary(counts: Counts) -> dict[str, object]:
    """Return the figures of a summary about time."""
    steps: Sequence[tuple[float, float]] = [
        (watched.vitals.ideal_step_s, watched.vitals.step_deviation_s)
        for watched in counts.islands.values()
        if watched.vitals.ideal_step_s
    ]
    ideal_s = [each for each, _ in steps]
    return {
        "island_seconds": {
            name: _in_order(watched.time.seconds()) for name, watched in counts.islands.items()
        },
        "badput_s": badput_s(counts),
        "goodput_s": goodput_s(counts),
        "ideal_step_s": statistics.median(ideal_s) if ideal_s else None,
        "step_deviation_s": statistics.median(each for _, each in steps) if steps else None,
        "loss_spikes": loss_spikes(counts),
    }


def loss_spikes(counts: Counts) -> int:
    """Return the spikes of the training loss of all islands over all their lives."""
    return sum(each.spikes_before + each.vitals.loss_spikes for each in counts.islands.values())


def goodput_s(counts: Counts) -> float:
    """Return the computing seconds of all islands whose tokens were not lost."""
    types = added(*(watched.time.seconds_by_type() for watched in counts.islands.values()))
    return round(max(0.0, types.get(GOODPUT, 0.0) - counts.wasted_s), 3)
