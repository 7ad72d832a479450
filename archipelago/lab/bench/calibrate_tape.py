"""The figures of `bench calibrate`, read from the tape of a real run or of a simulated one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from archipelago.lab.bench.child_run import VICTIM
from coordinator.protocol import (
    Arrived,
    Event,
    Fragment,
    Incarnation,
    Island,
    Life,
    Merged,
    Report,
    Stored,
)


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """The figures of a window of a tape."""

    goodput: float
    """Steps, times the step time without faults, over the islands' time."""
    merges: int
    """The number of merges."""
    participants: float
    """Contributions that arrived, for each merge."""
    gap_s: float
    """The median time between two merges."""
    longest_gap_s: float
    """The longest time between two merges."""


TapeRows = Sequence[tuple[float, Event]]
"""The events of a tape, each with its time in seconds."""


def seen(rows: TapeRows, from_s: float, to_s: float, islands: int, step_s: float) -> WindowFigures:
    """Return the figures of a window of the tape, in seconds of its own clock."""
    before, after = steps_by(rows, from_s), steps_by(rows, to_s)
    steps = sum(count - before.get(life, 0) for life, count in after.items())
    events = [(at_s, event) for at_s, event in rows if from_s < at_s <= to_s]
    merged_s = [at_s for at_s, event in events if isinstance(event, Merged)]
    arrived = sum(isinstance(event, Arrived) for _, event in events)
    gaps_s = [b - a for a, b in pairwise(merged_s)] or [math.nan]
    return WindowFigures(
        goodput=steps * step_s / (islands * (to_s - from_s)),
        merges=len(merged_s),
        participants=arrived / max(1, len(merged_s)),
        gap_s=statistics.median(gaps_s),
        longest_gap_s=max(gaps_s),
    )


def steps_by(rows: TapeRows, by_s: float) -> dict[Life, int]:
    """Return the steps that each life has reported by this time."""
    found: dict[Life, int] = {}
    for at_s, event in rows:
        if at_s > by_s:
            break
        if isinstance(event, Report):
            found[event.life] = max(found.get(event.life, 0), event.progress.steps)
    return found


def all_contributed_s(rows: TapeRows, islands: int) -> float:
    """Return the time at which the last island's first contribution arrived."""
    first: dict[Island, float] = {}
    for at_s, event in rows:
        if isinstance(event, Arrived):
            first.setdefault(event.contribution.id.life.island, at_s)
        if len(first) == islands:
            return at_s
    raise AssertionError("an island never contributed, and the run waited for all")


def waits_s(rows: TapeRows) -> tuple[float, float]:
    """Return the median seconds from a round's last contribution to `Merged`, then to `Stored`."""
    arrived, merged = dict[Fragment, float](), dict[Fragment, float]()
    merging, storing = list[float](), list[float]()
    for at_s, event in rows:
        match event:
            case Arrived(contribution):
                arrived[contribution.id.fragment] = at_s
            case Merged(p):
                merging.append(at_s - arrived.get(p, at_s))
                merged[p] = at_s
            case Stored(p) if p in merged:
                storing.append(at_s - merged.pop(p))
            case _:
                pass
    return statistics.median(merging or [0.0]), statistics.median(storing or [0.0])


def stepped_s(rows: TapeRows, life: int, after_s: float) -> float:
    """Return the time of the victim's first reported step in its `life`-th life, or later."""
    return next(
        at_s
        for at_s, event in rows
        if at_s > after_s
        and isinstance(event, Report)
        and event.life.island == VICTIM
        and event.progress.steps > 0
        and event.life.incarnation in lives_of(rows)[life - 1 :]
    )


def lives_of(rows: TapeRows) -> list[Incarnation]:
    """Return the incarnations of the victim, in order."""
    lives = {
        e.life.incarnation for _, e in rows if isinstance(e, Report) and e.life.island == VICTIM
    }
    return sorted(lives)
