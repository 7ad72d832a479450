"""The parts of a timeline that metrics.jsonl, events.jsonl and notes.jsonl have, in every mode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from archipelago.lab.report.curves import thinned
from archipelago.lab.report.run_record import RunRecord
from archipelago.lab.report.timeline import Lane, Timeline
from cluster.syncer.journal import Note

COUNTERS = {
    "heldout_loss": "held-out loss",
    "tokens_per_s": "tokens per second",
    "alive": "live islands",
    "participants": "participants",
}
"""The columns that become curves, with their titles."""
ROWS = 2000
"""The most rows of which a timeline shows the figures."""


def began_at(record: RunRecord, notes: Sequence[Note]) -> float:
    """Return when a run began, in seconds since 1970; 0 if its files do not have that.

    The syncer's clock, which notes and the tape have, counts from the wall clock too.
    """
    if began := [note.now_s for note in notes if note.kind == "began"]:
        return min(began)
    for row in record.rows:
        if math.isfinite(unix_s := _number(row.get("unix_s"))):
            return unix_s - float(row["elapsed_s"])
    return 0.0


def add_counters(timeline: Timeline, record: RunRecord, began_s: float) -> None:
    """Add curves of the main figures."""
    for row in thinned(record.rows, ROWS):
        for column, name in COUNTERS.items():
            if math.isfinite(value := _number(row.get(column))):
                timeline.counters.append((name, began_s + float(row["elapsed_s"]), value))


def add_faults(timeline: Timeline, notes: Iterable[Note]) -> bool:
    """Add the injected faults, each across all lanes and on that of its island; return if any."""
    found = False
    for note in notes:
        if note.kind == "fault" and note.what:
            target = str(note.what[0])
            timeline.instant(None, f"fault: {target}", note.now_s)
            timeline.instant(Lane("islands", target), "fault injected", note.now_s)
            found = True
    return found


def add_events(
    timeline: Timeline, events: Iterable[Mapping[str, Any]], began_s: float, *, faults: bool
) -> None:
    """Add the events of the fleet. `faults`: with the injected faults."""
    for each in events:
        at_s, kind = began_s + _number(each.get("elapsed_s")), str(each.get("kind"))
        if not math.isfinite(at_s) or (kind == "fault" and not faults):
            continue
        island = each.get("island")
        lane = Lane("run", "fleet") if not island else Lane("islands", str(island))
        why = str(each.get("why") or "")
        if kind == "fault":
            timeline.instant(None, str(each.get("text")), at_s, why=why)
        timeline.instant(lane, f"{kind}: {each.get('text')}", at_s, why=why)


def add_island_states(timeline: Timeline, record: RunRecord, began_s: float) -> None:
    """Add a slice for each state of each island, for a run without a tape of events."""
    since: dict[str, tuple[float, tuple[str, int], str]] = {}
    at_s = began_s
    for row in record.rows:
        at_s = began_s + float(row["elapsed_s"])
        for island in row.get("islands") or ():
            name = str(island.get("island"))
            state = (str(island.get("state")), int(island.get("life") or 0))
            if name in since and since[name][1] == state:
                continue
            if name in since:
                _add_state(timeline, name, since[name], at_s)
            since[name] = at_s, state, str(island.get("why") or "")
    for name, begun in since.items():
        _add_state(timeline, name, begun, at_s)


def _add_state(
    timeline: Timeline, island: str, begun: tuple[float, tuple[str, int], str], end_s: float
) -> None:
    start_s, (state, life), why = begun
    timeline.slice(Lane("islands", island), state, start_s, end_s, life=life, why=why)


def _number(value: object) -> float:
    """Return a number; NaN if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)
