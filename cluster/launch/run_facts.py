"""The facts about a run that the doctor judges, read from its directory and its cluster."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from cluster.fleet.metrics_row import status_of_row
from cluster.launch.remote_status import status_at
from cluster.launch.run_findings import FileFacts, RunFacts
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.metrics_log import EVENTS, LOOKS
from coordinator.errors import UserMistake

OWNERS = "owner-*.json"
FRAGMENTS = "fragments"


def facts_of(run_dir: Path, span_s: float, now_unix_s: float | None = None) -> RunFacts:
    """Return the facts that the directory of a run shows.

    `span_s`: the last seconds of the run that are looked at.

    Errors: `UserMistake` if the run has written no status.
    """
    live = runs.live_of(run_dir)
    rows = [*_rows(run_dir / LOOKS)]
    if not rows:
        raise UserMistake(
            f"run {run_dir} has written no status; `archipelago status` says whether it is starting"
        )
    last_s = rows[-1][0]
    recent = [row for row in rows if row[0] >= last_s - span_s]
    times = [at_s for at_s, _ in recent]
    gaps = [after - before for before, after in pairwise(times)]
    answered = status_at(run_dir) if live is not None else None
    status = answered or status_of_row(recent[-1][1])
    now_s = time.time() if now_unix_s is None else now_unix_s
    return RunFacts(
        status=status,
        before=status_of_row(recent[0][1]) if len(recent) > 1 else None,
        events=[e for e in _events(run_dir / EVENTS) if e.get("unix_s", 0.0) >= last_s - span_s],
        gap_s=max(gaps, default=0.0),
        age_s=now_s - last_s,
        is_live=live is not None,
        files=_files(run_dir, port_answers=live is None or answered is not None),
    )


def facts_over_ray(status: RunStatus) -> RunFacts:
    """Return the facts about a run whose directory is on another machine."""
    return RunFacts(status=status)


def _files(run_dir: Path, *, port_answers: bool) -> FileFacts:
    usage = shutil.disk_usage(run_dir)
    token = run_dir / runs.TOKEN
    is_open = token.exists() and bool(token.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    newest: dict[str, int] = {}
    for path in (run_dir / FRAGMENTS).glob("*"):
        fragment = path.name.partition("-")[0]
        newest[fragment] = max(newest.get(fragment, 0), path.stat().st_size)
    return FileFacts(
        usage.free, usage.total, sum(newest.values()), is_open, port_answers, _fleet_lives(run_dir)
    )


def _fleet_lives(run_dir: Path) -> int:
    """Return how many processes of one fleet have owned the run; 1 if it cannot be read."""
    numbered = [(int(p.stem.partition("-")[2]), p) for p in run_dir.glob(OWNERS) if _number(p)]
    if not numbered:
        return 1
    try:
        return int(json.loads(max(numbered)[1].read_text())["life"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1


def _number(path: Path) -> bool:
    return path.stem.partition("-")[2].isdecimal()


def _rows(path: Path) -> Iterator[tuple[float, str]]:
    """Yield the time and the text of each whole row, oldest first."""
    for line in _lines(path):
        try:
            yield float(json.loads(line)["unix_s"]), line
        except (ValueError, KeyError, TypeError):
            continue  # a line that a crash has torn


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in _lines(path):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from (line for line in file if line.endswith(os.linesep))
    except FileNotFoundError:
        return
