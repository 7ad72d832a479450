"""Where a run keeps what it comes back from: names, each with bytes that are whole or not there.

    layout.json, config.toml     what is trained, and how
    tape-0.arrow                 the events that the rules heard, one name a generation
    state.json, notes.jsonl      a moment of the rules and the measures, and what no event says
    fragments/, contributions/   arrays
    fleet.json, owner-1.json     what the fleet must remember, and whose the run is

Without `durability.dir` the depot is the run directory itself. All of it raises `OSError` when it
cannot be had, which whoever asks must be able to live with.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeVar

from cluster.files import Lines, is_aside, write

if TYPE_CHECKING:
    from cluster.config import Config

log = logging.getLogger("archipelago.depot")

PATIENCE_S, AGAIN_S = 60.0, 1.0
"""So long whoever comes back waits for a depot that cannot be had, and between two attempts."""
T = TypeVar("T")


class Growing(Protocol):
    """Something that grows, with one writer."""

    def write(self, content: bytes) -> None:
        """Add this; it survives a crash of the machine once this returns.

        Errors: `OSError`; then nothing of it is there.
        """
        ...

    def close(self) -> None: ...


class GrowingLines(Protocol):
    """... line by line, of which the last may be lost; it goes on over several processes."""

    def write(self, line: str) -> None:
        """Costs nothing that an event loop would notice."""
        ...

    @property
    def length(self) -> int:
        """Bytes so far, by all processes."""
        ...

    def flush(self) -> None:
        """What waits is there once this returns."""
        ...

    def close(self) -> None: ...


class Grown(NamedTuple):
    """What has grown so far; `hole` says what is missing behind it, None if nothing is."""

    content: bytes
    hole: str | None


class Depot(Protocol):
    """Names are those of files, folders before them: `fragments/f0000-g0-v00000000.safetensors`."""

    slow: bool
    """Whether it is so far away that an event loop should not wait for it."""

    def write(self, name: str, content: bytes) -> None:
        """Put this in place of what was there; it survives a crash once this returns."""
        ...

    def claim(self, name: str, content: bytes) -> bool:
        """Put this where nothing was; of all that do so one is told that it has."""
        ...

    def read(self, name: str) -> bytes:
        """Errors: `FileNotFoundError`."""
        ...

    def has(self, name: str) -> bool: ...

    def names(self, folder: str = "") -> list[str]:
        """What is in a folder, without its name before it; nothing if there is no such folder."""
        ...

    def remove(self, name: str) -> None:
        """Errors: `FileNotFoundError`."""
        ...

    def tidy(self, start: str) -> None:
        """Remove what writers that died have left unfinished, of names that begin so; what cannot
        be removed stays. For whoever alone writes such names from now on.
        """
        ...

    def grow(self, name: str) -> Growing:
        """Begin something that grows.

        Errors: `FileExistsError` if that has begun before.
        """
        ...

    def grown(self, name: str) -> Grown: ...

    def lines(self, name: str) -> GrowingLines:
        """Go on with a file of lines."""
        ...

    def probe(self) -> None:
        """Write something and take it back: nothing is left, also of what was not there before.

        Errors: `OSError` that says why it could never be written.
        """
        ...


def depot_of(config: Config, run_dir: Path) -> Depot:
    """The run's own place in `durability.dir`, called as its directory is; or that directory."""
    if config.durability.dir is None:
        return Folder(run_dir)
    there, name = config.durability.dir, run_dir.absolute().name
    if there.startswith("/"):
        return Folder(Path(there) / name)
    from cluster.bucket import Bucket  # pyarrow, which not everybody needs

    return Bucket(there, name)


def patiently(read: Callable[[], T]) -> T:
    """What is read, for whoever cannot go on without.

    Errors: `OSError` if it cannot be had for `PATIENCE_S`.
    """
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read()
        except OSError as error:
            if time.monotonic() > end_s:
                raise
            log.warning("trying again: %s", error)
            time.sleep(AGAIN_S)


@dataclass(frozen=True, slots=True)
class Folder(Depot):
    """A folder that every process which may need it sees: on a disk, or on shared storage."""

    path: Path
    slow: ClassVar[bool] = False  # type: ignore[misc] - a Protocol has no way to say so

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        write(self.path / name, content)

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

    def tidy(self, start: str) -> None:
        folder, _, first = start.rpartition("/")
        for name in self.names(folder):
            if is_aside(name, first):
                with suppress(OSError):
                    (self.path / folder / name).unlink()

    def grow(self, name: str) -> Growing:
        self.path.mkdir(parents=True, exist_ok=True)
        return _GrowingFile(self.path / name)

    def grown(self, name: str) -> Grown:
        return Grown(self.read(name), None)

    def lines(self, name: str) -> GrowingLines:
        self.path.mkdir(parents=True, exist_ok=True)
        return Lines(self.path / name)

    def probe(self) -> None:
        """... where it shall be: a mount that is missing is not made up for by a folder."""
        with tempfile.TemporaryFile(dir=self.path.parent):
            pass


class _GrowingFile(Growing):
    """Bytes that went there only in part are taken back, so that what is read has no hole."""

    def __init__(self, path: Path) -> None:
        self._file, self._length = path.open("xb", buffering=0), 0

    def write(self, content: bytes) -> None:
        try:
            self._file.seek(self._length)
            left = memoryview(content)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._length)
            raise
        self._length += len(content)

    def close(self) -> None:
        self._file.close()
