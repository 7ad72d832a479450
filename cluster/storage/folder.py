"""A depot in a folder, of this machine or one that all nodes share."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.storage.depot import Depot, Growing, GrowingLines, Grown
from cluster.storage.files import (
    closing_file,
    is_aside,
    make_folder,
    read_from,
    sync_folder,
    write,
    write_all,
    write_all_at,
    write_soon,
)
from cluster.storage.lines import LinesFile, WaitingLines

log = logging.getLogger("archipelago.depot")


@dataclass(frozen=True, slots=True)
class Folder(Depot):
    """A folder that every process which needs it can see, on a disk or on shared storage."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, *content: bytes | memoryview) -> None:
        """Replace a file as a whole, durably."""
        write(self.path / name, *content)

    def write_soon(self, name: str, content: bytes) -> None:
        """Replace a file as a whole, best effort; log an error."""
        try:
            write_soon(self.path / name, content)
        except OSError as error:
            log.warning("%s is not kept: %s", self.path / name, error)

    def claim(self, name: str, content: bytes) -> bool:
        """Create a file, and return whether this call created it: one of several writers does."""
        make_folder(self.path)
        path = self.path / name
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return False
        try:
            with closing_file(file, path):
                write_all(file, content)
                os.fsync(file)
            sync_folder(self.path)
        except OSError:
            with suppress(OSError):  # this call created it; if it stayed, others would wait for it
                os.unlink(path)
            raise
        return True

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return read_from(self.path / name)

    def has(self, name: str) -> bool:
        """Return whether there is such a file or folder."""
        try:
            os.stat(self.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        try:
            with os.scandir(self.path / folder) as entries:
                return [entry.name for entry in entries]
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Delete a file."""
        os.unlink(self.path / name)

    def move(self, name: str, to: str) -> None:
        """Rename a file, durably; a file that has the new name is replaced."""
        (self.path / name).replace(self.path / to)
        sync_folder((self.path / to).parent)

    def tidy(self, start: str) -> None:
        """Delete the temporary files of this prefix, best effort."""
        folder, _, first = start.rpartition("/")
        for name in self.names(folder):
            if is_aside(name, first):
                with suppress(OSError):
                    os.unlink(self.path / folder / name)

    def grow(self, name: str, *, again: bool = False) -> Growing:
        """Create a growing file, durably."""
        make_folder(self.path)
        growing = _GrowingFile(self.path / name, again=again)
        try:
            sync_folder(self.path)
        except OSError:
            with suppress(OSError):
                growing.close()
            if not again:  # this call created it; if it stayed, it would be an empty generation
                with suppress(OSError):
                    os.unlink(self.path / name)
            raise
        return growing

    def grown(self, name: str, start: int = 0) -> Grown:
        """Return the content from this byte on; it has no holes."""
        return Grown(read_from(self.path / name, start), None)

    def drop(self, name: str) -> None:
        """Delete a growing file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(self.path / name)

    def lines(self, name: str) -> GrowingLines:
        """Continue a file of lines; an incomplete last line is ended first."""
        make_folder(self.path)
        file = LinesFile(self.path / name)
        return WaitingLines(file, file.length, torn=file.torn)

    def probe(self) -> None:
        """Write and remove a file in the parent of the folder.

        The folder itself is not created: a missing mount must not be replaced by a folder.
        """
        with tempfile.TemporaryFile(dir=self.path.parent):
            pass


class _GrowingFile(Growing):
    """A file of one writer.

    Each addition is written at its own offset, so that it overwrites the remains of one that
    failed.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        """Write a file that does not exist yet. `again`: an earlier attempt may have created it.

        Errors: `FileExistsError`.
        """
        exclusive = 0 if again else os.O_EXCL
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | exclusive
        self._file, self._length = os.open(path, flags, 0o666), 0
        try:
            if again and os.fstat(self._file).st_size > 0:
                raise FileExistsError(errno.EEXIST, "another process has written it", str(path))
        except OSError:
            with suppress(OSError):
                os.close(self._file)
            raise

    def write(self, content: bytes) -> None:
        try:
            write_all_at(self._file, self._length, content)
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):  # if this fails, the next attempt overwrites it: it is as long
                os.ftruncate(self._file, self._length)
            raise
        self._length += len(content)

    def close(self) -> None:
        os.close(self._file)
