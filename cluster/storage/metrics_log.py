"""The file `metrics.jsonl`: one line for each status that a run has reported, newest last.

Its size is limited: when it is full, its older half is thinned out (`line_thinning`). So a long run
has all of its newest lines, and lines of all earlier times, evenly spread.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from cluster.storage.files import Lines, aside_of
from cluster.storage.line_thinning import thinned_lines

log = logging.getLogger("archipelago.files")

LOOKS = "metrics.jsonl"
"""The name in the run directory."""
EVENTS, EVENTS_MB = "events.jsonl", 16
"""The name of the events in the run directory, a file of the same kind, and its size in MB."""
BLOCK = 2**16
"""Bytes that are read at once, from the end."""
LINES_BLOCKS = 4
"""Blocks at the end of a file in which `last_lines` looks."""
MEGABYTE = 10**6


class MetricsLog:
    """The metrics log of a run; one process writes it."""

    def __init__(self, path: Path, most_mb: int) -> None:
        """Open nothing yet; `most_mb`: the largest size of the file in megabytes."""
        self._path, self._limit = path, most_mb * MEGABYTE
        self._most = self._limit
        self._lines: Lines | None = None  # the file, once it could be opened
        self._closed: str | None = None  # the reason why the file cannot be opened

    @property
    def trouble(self) -> str | None:
        """The reason why the last line is not in the file, or would not be; None if it is."""
        return self._closed if self._lines is None else self._lines.trouble

    def open(self) -> None:
        """Open the file if it is not open, or set `trouble`."""
        if self._lines is not None:
            return
        try:
            self._lines, self._closed = Lines(self._path), None
        except OSError as error:
            if self._closed is None:
                log.error("%s cannot be opened, its lines are left out: %s", self._path, error)
            self._closed = str(error)

    def write(self, line: str) -> None:
        """Add a line, and thin the file out if it is full; set `trouble` if it takes no line."""
        self.open()
        if (lines := self._lines) is None:
            return
        lines.write(line)
        if lines.length > self._most:
            self._thin(lines)

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()

    def _thin(self, lines: Lines) -> None:
        """Thin out all but the newest lines; with a full disk the file stays as it is.

        The newest lines are half of the limit, and at most a quarter of it stays of the others.
        """
        aside = aside_of(self._path)
        older, most = lines.length - self._limit // 2, self._limit // 4
        try:
            with self._path.open("rb") as old, aside.open("wb") as new:
                new.writelines(thinned_lines(old, older, most))
            aside.replace(self._path)
        except OSError as error:
            log.error("%s cannot be made shorter: %s", self._path, error)
            self._most *= 2
            return
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        with suppress(OSError):
            lines.close()
        self._lines, self._most = None, self._limit


def last_lines(path: Path, most: int) -> list[bytes]:
    """Return the last complete lines, oldest first; only the end of the file is read.

    Lines before the last `LINES_BLOCKS` blocks are left out.

    Errors: `OSError` if the file is there and cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - BLOCK * LINES_BLOCKS))
            lines = file.read().split(b"\n")[:-1]
            return lines[1 if start else 0 :][-most:]
    except FileNotFoundError:
        return []


def last_look(path: Path) -> str | None:
    """Return the last complete line, None if there is none; only the end of the file is read."""
    try:
        with path.open("rb") as file:
            place, tail = file.seek(0, os.SEEK_END), b""
            while place > 0:
                before, place = place, max(0, place - BLOCK)
                file.seek(place)
                tail = file.read(before - place) + tail
                complete, newline, _ = tail.rpartition(b"\n")
                if newline and (b"\n" in complete or place == 0):
                    return complete.rpartition(b"\n")[2].decode()
    except FileNotFoundError:
        pass
    return None
