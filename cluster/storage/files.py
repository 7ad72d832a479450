"""Files that are whole: written aside, flushed, renamed; or that grow line by line. And JSON, the
same wherever a run writes or prints it."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import Any

log = logging.getLogger("archipelago.files")

NAMED = 8
"""Numbers that are not finite and named, before they are only counted."""

_ASIDE = re.compile(r"\..+\.[0-9]+")


def write(path: Path, *content: bytes | memoryview) -> None:
    """Replace a file as a whole; it survives a crash of the machine once this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(path)
    try:
        with aside.open("wb") as file:
            for each in content:
                file.write(each)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """The names that are in a folder now survive a crash of the machine."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_aside(name: str, start: str) -> bool:
    """Whether it is what a `write` has begun of a file whose name begins so."""
    return _ASIDE.fullmatch(name) is not None and name[1:].startswith(start)


def aside_of(path: Path) -> Path:
    """Where this process writes what shall take the place of a file."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_json(path: Path, value: object) -> None:
    write(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    return (json_text(value, indent=2) + "\n").encode()


def json_text(value: object, *, indent: int | None = None) -> str:
    """A value as JSON, which knows no NaN and no infinity: these are null.

    An object says under "not_finite" which they were, as far as there are few.
    """
    found: list[str] = []
    plain = _finite(value, "", found)
    if found and isinstance(plain, dict):
        more = [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        plain["not_finite"] = [*found[:NAMED], *more]
    return json.dumps(plain, indent=indent, allow_nan=False)


def read_figures(text: str) -> dict[str, Any]:
    """An object of figures, read back to be reckoned with: what was not finite is NaN."""
    return {key: math.nan if each is None else each for key, each in json.loads(text).items()}


def _finite(value: object, where: str, found: list[str]) -> object:
    """A copy of the value; `found`: what of it is null now."""
    match value:
        case float() if not math.isfinite(value):
            found.append(f"{where} = {float(value)}" if where else str(float(value)))
            return None
        case Mapping():
            return {key: _finite(each, _below(where, key), found) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each, _below(where, i), found) for i, each in enumerate(value)]
        case _:
            return value


def _below(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


class Lines:
    """A file that grows line by line, over several processes; not flushed to the disk.

    What a full disk does not take is left out: these are looks and figures, and the next one comes.
    """

    def __init__(self, path: Path) -> None:
        """Errors: `OSError` if there cannot even be a file."""
        self._file = path.open("ab+", buffering=0)
        self._torn = self._ends_torn()
        self._failing = False

    def _ends_torn(self) -> bool:
        if self._file.seek(0, os.SEEK_END) == 0:
            return False
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1) != b"\n"

    def write(self, line: str) -> None:
        whole = b"\n" * self._torn + line.encode() + b"\n"
        try:
            written = self._file.write(whole)
        except OSError as error:
            if not self._failing:
                log.error("%s takes no more: %s", self._file.name, error)
            self._failing = True
            return
        self._torn, self._failing = written < len(whole), False

    @property
    def length(self) -> int:
        """Bytes so far."""
        return self._file.tell()

    def flush(self) -> None:
        """Each line is written at once."""

    def close(self) -> None:
        self._file.close()


def append(file: RawIOBase, length: int, content: bytes) -> None:
    """Write all of it at the end of a file of `length` bytes, and have it survive a crash of the
    machine.

    Errors: `OSError`; what went there in part is taken back, so that what is read has no hole.
    """
    try:
        file.seek(length)
        left = memoryview(content)
        while left:
            left = left[file.write(left) or 0 :]
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(length)
        raise


class LateLines:
    """A file that grows line by line, over several processes, where a write may take long: lines
    wait until they are flushed, and what is younger dies with its process."""

    def __init__(self, path: Path) -> None:
        """Errors: `OSError` if there cannot even be a file."""
        self._file = path.open("ab+", buffering=0)
        self._there = self._length = self._file.seek(0, os.SEEK_END)
        self._waiting = b""
        self._lock = threading.Lock()  # they are written by one thread and flushed by another
        if self._there:
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":  # its last line was torn
                self._wait(b"\n")

    def write(self, line: str) -> None:
        self._wait(line.encode() + b"\n")

    def _wait(self, content: bytes) -> None:
        with self._lock:
            self._waiting += content
            self._length += len(content)

    @property
    def length(self) -> int:
        """Bytes so far, with those that wait."""
        return self._length

    def flush(self) -> None:
        """Errors: `OSError`; then nothing of it is there, and it goes on waiting."""
        with self._lock:
            content, self._waiting = self._waiting, b""
        try:
            append(self._file, self._there, content)
        except OSError:
            with self._lock:
                self._waiting = content + self._waiting
            raise
        self._there += len(content)

    def close(self) -> None:
        self.flush()
        self._file.close()
