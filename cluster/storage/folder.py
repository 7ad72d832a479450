"""A depot in a folder, of this machine or one that all nodes see."""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.storage.depot import Depot, Growing, GrowingLines, Grown
from cluster.storage.files import LateLines, Lines, append, aside_of, is_aside, sync_folder, write

log = logging.getLogger("archipelago.depot")


@dataclass(frozen=True, slots=True)
class Folder(Depot):
    """A folder that every process which may need it sees: on a disk, or on shared storage, where
    it may be `slow`."""

    path: Path
    slow: bool = False

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, *content: bytes | memoryview) -> None:
        write(self.path / name, *content)

    def write_soon(self, name: str, content: bytes) -> None:
        if self.slow:
            return
        path = self.path / name
        aside = aside_of(path)
        try:
            aside.write_bytes(content)
            aside.replace(path)
        except OSError as error:
            log.warning("%s is not kept: %s", path, error)
            with suppress(OSError):
                aside.unlink(missing_ok=True)

    def claim(self, name: str, content: bytes) -> bool:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with (self.path / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def names(self, folder: str = "") -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.path / folder)]
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        (self.path / name).unlink()

    def move(self, name: str, to: str) -> None:
        (self.path / name).replace(self.path / to)
        sync_folder((self.path / to).parent)

    def tidy(self, start: str) -> None:
        folder, _, first = start.rpartition("/")
        for name in self.names(folder):
            if is_aside(name, first):
                with suppress(OSError):
                    (self.path / folder / name).unlink()

    def grow(self, name: str) -> Growing:
        self.path.mkdir(parents=True, exist_ok=True)
        growing = _GrowingFile(self.path / name)
        sync_folder(self.path)
        return growing

    def grown(self, name: str, start: int = 0) -> Grown:
        with (self.path / name).open("rb") as file:
            if file.seek(0, os.SEEK_END) < start:
                raise EOFError(f"{name} is shorter than {start} bytes")
            file.seek(start)
            return Grown(file.read(), None)

    def drop(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def lines(self, name: str) -> GrowingLines:
        self.path.mkdir(parents=True, exist_ok=True)
        return LateLines(self.path / name) if self.slow else Lines(self.path / name)

    def probe(self) -> None:
        """Write and remove a file where the folder shall be: a mount that is missing is not
        replaced by one."""
        with tempfile.TemporaryFile(dir=self.path.parent):
            pass


class _GrowingFile(Growing):
    def __init__(self, path: Path) -> None:
        self._file, self._length = path.open("xb", buffering=0), 0

    def write(self, content: bytes) -> None:
        append(self._file, self._length, content)
        self._length += len(content)

    def close(self) -> None:
        self._file.close()
