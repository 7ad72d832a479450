"""The files of a run, as far as they can be read."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cluster.fleet.metrics_row import COLUMNS, columns
from cluster.storage import runs
from cluster.storage.metrics_log import EVENTS, LOOKS
from coordinator.errors import UserMistake

RunState = Literal["live", "ended", "not ended"]
"""The state of a run: `not ended` is one that was killed, or that failed before its summary."""
MARKS = (runs.CONFIG, LOOKS, runs.SUMMARY)
"""The files of which a run directory has at least one."""
NOT_A_ROW = (ValueError, TypeError, KeyError, AttributeError, IndexError)
"""Errors raised by a damaged line, or by one of another program."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The files of one run."""

    run_dir: Path
    """The run directory."""
    name: str
    """The name of the run."""
    state: RunState
    """The state of the run."""
    config: Mapping[str, Any]
    """The resolved configuration; empty if it cannot be read."""
    summary: Mapping[str, Any]
    """The summary; empty if there is none."""
    rows: Sequence[Mapping[str, Any]]
    """The rows of `metrics.jsonl` with their flat columns, oldest first."""
    events: Sequence[Mapping[str, Any]]
    """The lines of `events.jsonl`, oldest first."""
    problems: Sequence[str]
    """The files that are missing or damaged, and what the reader misses for it."""

    @property
    def last(self) -> Mapping[str, Any]:
        """The last row; empty if there is none."""
        return self.rows[-1] if self.rows else {}

    def figure(self, name: str) -> Any:
        """Return a figure of the summary, or the last one that a row has; None if there is none."""
        found = self.summary.get(name)
        return self.last.get(name) if found is None else found


def find_run(name: str) -> Path:
    """Return a run directory by its path or the name of a run here.

    Errors: `UserMistake` if there is none.
    """
    path = Path(name)
    if not path.is_dir():
        return runs.here(name)
    if not any((path / mark).exists() for mark in MARKS):
        raise UserMistake(
            f"{path} is not a run directory: it has none of {', '.join(MARKS)}; name the directory "
            "of a run, such as runs/demo"
        )
    return path


def read_run(run_dir: Path) -> RunRecord:
    """Return the record of a run; what cannot be read is a problem of the record."""
    problems: list[str] = []
    config = _config(run_dir / runs.CONFIG, problems)
    live = runs.live_of(run_dir) is not None
    summary = _summary(run_dir / runs.SUMMARY, problems, live=live)
    rows = [*_rows(run_dir / LOOKS, problems)]
    if not rows:
        problems.append(f"{LOOKS}: no row can be read, so there are no curves")
    events = [*_lines(run_dir / EVENTS, problems, optional=True)]
    # the process of the fleet remains for some seconds after it has written the summary; it writes
    # one before the final evaluation, too
    ended = bool(summary) and not (live and summary.get("heldout_loss") is None)
    state: RunState = "ended" if ended else "live" if live else "not ended"
    named = summary.get("run") or (rows[-1].get("run") if rows else None)
    name = str(named or run_dir.resolve().name)
    return RunRecord(run_dir, name, state, config, summary, rows, events, problems)


def _config(path: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"{path.name}: {_reason(error)}, so the configuration is missing")
        return {}


def _summary(path: Path, problems: list[str], *, live: bool) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("it is not a JSON object")
        return found
    except FileNotFoundError:
        if not live:
            problems.append(f"{path.name}: not there: the run has not ended, or was killed")
    except (OSError, *NOT_A_ROW) as error:
        problems.append(f"{path.name}: {_reason(error)}; figures are of the last row")
    return {}


def _rows(path: Path, problems: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows; one of an earlier version gets its flat columns."""
    damaged = 0
    for found in _lines(path, problems):
        row: Any = found
        try:
            if not found.keys() >= COLUMNS:
                row = {**columns(row, math.nan), **found}
            if not math.isfinite(float(row["elapsed_s"])):
                raise ValueError("the time is not finite")
        except NOT_A_ROW:
            damaged += 1
            continue
        yield row
    if damaged:
        problems.append(f"{path.name}: {damaged} lines are no rows of a run, and are left out")


def _lines(path: Path, problems: list[str], *, optional: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file of lines; a torn last line is no problem."""
    damaged, torn = 0, False
    try:
        with path.open("rb") as file:
            for line in file:
                torn = not line.endswith(b"\n")
                try:
                    found = json.loads(line)
                    if not isinstance(found, dict):
                        raise TypeError
                except NOT_A_ROW:
                    damaged += not torn
                    continue
                yield found
    except FileNotFoundError:
        wrote = "an earlier version wrote this run, or it has not begun" if optional else "missing"
        problems.append(f"{path.name}: not there: {wrote}")
    except OSError as error:
        problems.append(f"{path.name}: {_reason(error)}")
    if damaged:
        problems.append(f"{path.name}: {damaged} damaged lines are left out")


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "not there"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return f"damaged: {error}"
