"""Files of lines in a depot: lines wait in memory until a thread that may block flushes them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Protocol

from cluster.storage.depot import GrowingLines
from cluster.storage.files import opened


class Adding(Protocol):
    """A file to which content is added, with one writer."""

    def add(self, content: bytes) -> int:
        """Add a beginning of this content, and return how many bytes were added, at least one.

        Errors: `OSError`; then nothing was added.
        """
        ...

    def sync(self) -> None:
        """Make everything added survive a crash of the machine.

        Errors: `OSError`.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class WaitingLines(GrowingLines):
    """Lines that wait until they are flushed; younger ones are lost with the process.

    One thread writes lines, and several may flush them: only one flush runs at a time, and each
    line is added once, in order.
    """

    def __init__(self, file: Adding, length: int, *, torn: bool = False) -> None:
        """Append after `length` bytes in the file. `torn`: the last line there is incomplete."""
        self._file, self._length = file, length
        self._waiting = b""
        self._lock = threading.Lock()  # guards `_waiting` and `_length`
        self._flushing = threading.Lock()  # guards `_file`; held while a depot may hang
        if torn:
            self._wait(b"\n")

    def write(self, line: str) -> None:
        """Add a line, which waits in memory."""
        self._wait(line.encode() + b"\n")

    def _wait(self, content: bytes) -> None:
        with self._lock:
            self._waiting += content
            self._length += len(content)

    @property
    def length(self) -> int:
        """Bytes so far, including those that wait."""
        return self._length

    def flush(self) -> None:
        """Add all waiting lines, and make them durable.

        Errors: `OSError`; then lines that were not added keep waiting.
        """
        with self._flushing:
            while content := self._waiting:
                added_bytes = self._file.add(content)
                with self._lock:
                    self._waiting = self._waiting[added_bytes:]
            self._file.sync()

    def close(self) -> None:
        """Flush, and close the file even if that fails."""
        try:
            self.flush()
        finally:
            self._file.close()


class LinesFile(Adding):
    """A file of lines in a folder; it continues where the process before ended."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it.

        Errors: `OSError` if that is not possible.
        """
        self.length, self.torn = _end_of(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._dirty = False

    def add(self, content: bytes) -> int:
        """Append content; return how many bytes the system has taken."""
        self._dirty = True
        return os.write(self._file, content)

    def sync(self) -> None:
        """Flush the file to the disk, if anything was added."""
        if self._dirty:
            os.fsync(self._file)
            self._dirty = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _end_of(path: Path) -> tuple[int, bool]:
    """Return the length of a file of lines, and whether its last line is incomplete."""
    try:
        with opened(path, os.O_RDONLY) as file:
            length = os.lseek(file, 0, os.SEEK_END)
            return length, length > 0 and os.pread(file, 1, length - 1) != b"\n"
    except FileNotFoundError:
        return 0, False
