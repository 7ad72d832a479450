"""`metrics.jsonl`: what a run said of itself at each look, a line each, the newest last.

It never gets longer than it may: of its older half every other line goes when it is full, so that a
long run has all of the last hours and ever less of what was before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from cluster.storage.files import Lines, aside_of

log = logging.getLogger("archipelago.files")

LOOKS = "metrics.jsonl"
BLOCK = 2**16
"""So many bytes are read at once, from the end."""
MEGABYTE = 10**6


class MetricsLog:
    """The metrics log of a run. One process writes it."""

    def __init__(self, path: Path, most_mb: int) -> None:
        """Errors: `OSError` if there cannot even be a file."""
        self._path, self._most = path, most_mb * MEGABYTE
        self._lines = Lines(path)

    def write(self, line: str) -> None:
        self._lines.write(line)
        if self._lines.length > self._most:
            self._thin()

    def close(self) -> None:
        self._lines.close()

    def _thin(self) -> None:
        """Let go of every other line of the older half. A full disk leaves it as it is."""
        aside = aside_of(self._path)
        try:
            with self._path.open("rb") as old, aside.open("wb") as new:
                new.writelines(_thinned(old, self._lines.length // 2))
            aside.replace(self._path)
        except OSError as error:
            log.error("%s cannot be made shorter: %s", self._path, error)
            self._most *= 2
            return
        finally:
            aside.unlink(missing_ok=True)
        self._lines.close()
        self._lines = Lines(self._path)


def _thinned(lines: Iterator[bytes], older: int) -> Iterator[bytes]:
    """`older`: bytes of which every other line goes."""
    read, keep = 0, False
    for line in lines:
        keep = not keep or read >= older
        read += len(line)
        if keep:
            yield line


def last_look(path: Path) -> str | None:
    """The last whole line; None if there is none. It costs what that line does."""
    try:
        with path.open("rb") as file:
            place, tail = file.seek(0, os.SEEK_END), b""
            while place > 0:
                before, place = place, max(0, place - BLOCK)
                file.seek(place)
                tail = file.read(before - place) + tail
                whole, newline, _ = tail.rpartition(b"\n")
                if newline and (b"\n" in whole or place == 0):
                    return whole.rpartition(b"\n")[2].decode()
    except FileNotFoundError:
        pass
    return None
