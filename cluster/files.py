"""Files that are whole: written aside, flushed, renamed; or that grow line by line."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

log = logging.getLogger("archipelago.files")

_ASIDE = re.compile(r"\..+\.[0-9]+")


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole; it survives a crash of the machine once this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(_aside(path.name))
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_aside(name: str, start: str) -> bool:
    """Whether it is what a `write` has begun of a file whose name begins so."""
    return _ASIDE.fullmatch(name) is not None and name[1:].startswith(start)


def _aside(name: str) -> str:
    return f".{name}.{os.getpid()}"


def write_json(path: Path, value: object) -> None:
    write(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


class Lines:
    """A file that grows line by line, over several processes; not flushed to the disk.

    What a full disk does not take is left out: these are looks and figures, and the next one comes.
    """

    def __init__(self, path: Path) -> None:
        """Errors: `OSError` if there cannot even be a file."""
        self._torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = path.open("ab", buffering=0)
        self._failing = False

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
