"""Tracebacks of processes that broke, kept as files of the run directory."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from cluster.names import Seat

log = logging.getLogger("archipelago.fleet")
FOLDER = "tracebacks"
"""The folder in the run directory."""
KEPT = 16
"""Files that are kept for each seat; the oldest are deleted."""


def keep_traceback(run_dir: Path, seat: Seat, words: str) -> str:
    """Write a traceback to `tracebacks/SEAT-NUMBER.txt`, and return that name.

    If it cannot be written, log the error and return an empty name.
    """
    folder, pattern = run_dir / FOLDER, re.compile(re.escape(seat) + r"-(\d+)\.txt")
    try:
        folder.mkdir(exist_ok=True)
        found = (pattern.fullmatch(path.name) for path in folder.iterdir())
        numbers = sorted(int(each[1]) for each in found if each is not None)
        number = numbers[-1] + 1 if numbers else 1
        (folder / f"{seat}-{number}.txt").write_text(words, encoding="utf-8")
        for old in numbers[: -(KEPT - 1)]:
            (folder / f"{seat}-{old}.txt").unlink(missing_ok=True)
    except OSError as error:
        log.error("the traceback of %s is not kept: %s", seat, error)
        return ""
    return f"{FOLDER}/{seat}-{number}.txt"
