"""The timeline of a run as a Chrome trace, from its tape, notes, metrics and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipelago.lab.report.metrics_timeline import (
    add_counters,
    add_events,
    add_faults,
    add_island_states,
    began_at,
)
from archipelago.lab.report.run_record import RunRecord, read_run
from archipelago.lab.report.tape_timeline import MOST, TapeTimeline
from archipelago.lab.report.timeline import Timeline
from archipelago.lab.report.written import write_report
from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.config.schema import Config
from cluster.storage.files import json_text
from cluster.storage.format import Damaged
from cluster.storage.layout import load_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.playback import Playback, edition_of
from cluster.storage.snapshots import beginning_of
from cluster.storage.state_history import OtherRules, relive
from cluster.syncer.journal import Note, read_notes
from coordinator.errors import UserMistake
from coordinator.state import initial

SLICES = 4000
"""The slices of steps of an island, at most, over the length of a run."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A timeline that was written."""

    events: int
    """The number of trace events."""
    problems: Sequence[str]
    """The parts that are missing, and why."""


def write_trace(run_dir: Path, path: Path) -> TraceFile:
    """Write the timeline of a run, and return what it has.

    Errors: `UserMistake` if the run has no event yet, or the file cannot be written.
    """
    made, problems = trace_of(read_run(run_dir))
    if not made["traceEvents"]:
        raise UserMistake(f"run {run_dir} has no events yet: {'; '.join(problems)}")
    write_report(path, json_text(made) + "\n")
    return TraceFile(len(made["traceEvents"]), problems)


def trace_of(record: RunRecord, most: int = MOST) -> tuple[dict[str, Any], list[str]]:
    """Return the timeline of a run as the object of a Chrome trace, and what is missing.

    `most`: the most events that the tape gives.
    """
    problems = [each for each in record.problems if not each.startswith("summary.json")]
    timeline, notes, has_tape = Timeline(), list[Note](), False
    try:
        config = load(record.run_dir / "config.toml")
        notes = read_notes(depot_of(config, record.run_dir))
        if config.run.mode.sums_gradients:
            problems.append(
                f'run.mode = "{config.run.mode}" has no tape: islands show their states'
            )
        else:
            _add_tape(timeline, config, record, problems, most)
            has_tape = bool(timeline.slices)
    except (UserMistake, Damaged, OSError) as error:
        problems.append(f"the tape cannot be read: {error}")
    began_s = began_at(record, notes)
    if not has_tape:
        add_island_states(timeline, record, began_s)
    noted = add_faults(timeline, notes)
    add_events(timeline, record.events, began_s, faults=not noted)
    add_counters(timeline, record, began_s)
    events = timeline.events() if timeline.size else []
    made = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "run": record.name,
            "began_unix_s": timeline.began_s if events else None,
            "problems": problems,
        },
    }
    return made, problems


def _add_tape(
    timeline: Timeline, config: Config, record: RunRecord, problems: list[str], most: int
) -> None:
    """Add the events of a tape, as far as it can be read and the rules answer as they did then.

    Errors: `UserMistake`, `Damaged` or `OSError` if nothing can be read.
    """
    depot = depot_of(config, record.run_dir)
    layout = load_layout(depot)
    rule = rule_of(config, layout, edition_of(depot))
    first = beginning_of(depot, layout.fingerprint)
    began, place = (0, None) if first is None else (first.seq, first.place)
    if first is not None:
        problems.append(f"the tape begins with event {began}: older segments were deleted")
    played = Playback(depot, layout.fingerprint, began, place)
    state = initial(rule) if first is None else first.state
    elapsed_s = float(record.last.get("elapsed_s") or 0.0)
    line = TapeTimeline(
        timeline, config.sync.shards, config.sync.fragments, most, elapsed_s / SLICES
    )
    try:
        line.follow(relive(rule, played, state))
    except (OtherRules, Damaged, OSError) as error:
        problems.append(f"the timeline ends early: {error}")
    line.end()
    if played.damage is not None:
        problems.append(f"damage of the tape: {played.damage}")
    if line.full:
        problems.append(f"the timeline has its first {most:,} events; the run has more")
