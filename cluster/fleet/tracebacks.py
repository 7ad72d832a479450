"""Tracebacks of processes that broke, kept as files of the run directory.

The fleet answers the process that broke on one of few threads. A run directory that hangs may not
hold them up for long, or the fleet would answer no call any more.
"""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path

from cluster.names import Seat
from cluster.storage.limited_calls import LimitedCalls

log = logging.getLogger("archipelago.fleet")
FOLDER = "tracebacks"
"""The folder in the run directory."""
KEPT = 16
"""Files that are kept for each seat; the oldest are deleted."""
LIMIT_S = 2.0
"""The timeout of keeping one traceback, in seconds."""


class Tracebacks:
    """The tracebacks of one run; any thread may call, and none waits long for a run directory."""

    def __init__(self, run_dir: Path, limit_s: float = LIMIT_S) -> None:
        """Prepare; `limit_s`: as for `LimitedCalls`."""
        self._run_dir, self._storage = run_dir, LimitedCalls(limit_s)

    def keep(self, seat: Seat, words: str) -> str:
        """Call `keep_traceback` within the timeout; return an empty name if it takes longer.

        Once a call was given up, the next ones return at once until the run directory answers.
        """
        try:
            return self._storage.call(partial(keep_traceback, self._run_dir, seat, words))
        except TimeoutError as error:
            log.error("the traceback of %s is not kept: %s", seat, error)
            return ""


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
