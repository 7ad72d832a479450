"""Files that are replaced atomically (written aside, flushed, renamed) or grow line by line; JSON.

The JSON is the same wherever a run writes or prints it.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import math
import os
import re
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("archipelago.files")

NAMED = 8
"""The most numbers that are not finite to list by name; further ones are only counted."""

_ASIDE = re.compile(r"\..+\.[0-9]+(?:-[0-9]+)?")
"""The names of temporary files."""
_COUNT = itertools.count()
"""Numbers of the temporary files of this process: two threads may replace one file."""


def write(path: Path, *content: bytes | memoryview) -> None:
    """Replace a file as a whole; the new content survives a crash of the machine once this returns.

    Errors: `OSError`; then the file has either its old or its new content.
    """
    make_folder(path.parent)
    _replace(path, content, durable=True)
    sync_folder(path.parent)


def write_soon(path: Path, content: bytes) -> None:
    """Replace a file as a whole; a crash of the machine may undo it.

    Errors: `OSError`; then the file has its old content.
    """
    _replace(path, (content,), durable=False)


def _replace(path: Path, content: tuple[bytes | memoryview, ...], *, durable: bool) -> None:
    aside = aside_of(path, next(_COUNT))
    try:
        with opened(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            for each in content:
                write_all(file, each)
            if durable:
                os.fsync(file)
        os.replace(aside, path)
    except BaseException:
        try:
            os.unlink(aside)
        except FileNotFoundError:
            pass
        except OSError as error:  # `tidy` will find the file; the first error is the one to raise
            log.warning("%s was not removed: %s", aside, error)
        raise


def opened(path: Path, flags: int) -> AbstractContextManager[int]:
    """Open a file, and close it at the end of the context (`closing_file`)."""
    return closing_file(os.open(path, flags | os.O_CLOEXEC, 0o666), path)


@contextmanager
def closing_file(file: int, path: Path) -> Generator[int]:
    """Close a file descriptor at the end of the context.

    Errors: `OSError` if it cannot be closed, unless another error is raised already.
    """
    try:
        yield file
    except BaseException:
        try:
            os.close(file)
        except OSError as error:
            log.warning("%s could not be closed: %s", path, error)
        raise
    os.close(file)


def read_from(path: Path, start: int = 0) -> bytes:
    """Return the content of a file from this byte on; one system call may read only a part.

    Errors: `OSError`; `EOFError` if the file is shorter.
    """
    with opened(path, os.O_RDONLY) as file:
        size = os.fstat(file).st_size
        if size < start:
            raise EOFError(f"{path.name} is shorter than {start} bytes")
        parts = list[bytes]()
        while part := os.pread(file, max(size - start, 1), start):
            parts.append(part)
            start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_all(file: int, content: bytes | memoryview) -> None:
    """Write everything at the file's position; one system call may write only a part."""
    left = memoryview(content).cast("B")
    while left:
        left = left[_some(os.write(file, left)) :]


def write_all_at(file: int, start: int, content: bytes) -> None:
    """Write everything from this byte on."""
    left = memoryview(content)
    while left:
        written = _some(os.pwrite(file, left, start))
        left, start = left[written:], start + written


def _some(written: int) -> int:
    """Return how many bytes a call has written.

    Errors: `OSError` if it made no progress.
    """
    if written <= 0:
        raise OSError(errno.EIO, "nothing was written, and no error was reported")
    return written


def make_folder(path: Path) -> None:
    """Create a folder and its parents; their names survive a crash of the machine."""
    missing: list[Path] = []
    while not _is_there(path):
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def _is_there(path: Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def sync_folder(path: Path) -> None:
    """Make the present names in a folder survive a crash of the machine."""
    with opened(path, os.O_RDONLY) as folder:
        os.fsync(folder)


def is_aside(name: str, start: str) -> bool:
    """Return whether this is a temporary file of a file whose name begins with `start`."""
    return _ASIDE.fullmatch(name) is not None and name[1:].startswith(start)


def aside_of(path: Path, number: int | None = None) -> Path:
    """Return the temporary path to which this process writes the next content of a file.

    `number`: the number of the attempt, where several threads may write the file.
    """
    attempt = "" if number is None else f"-{number}"
    return path.with_name(f".{path.name}.{os.getpid()}{attempt}")


def write_json(path: Path, value: object) -> None:
    """Replace a file by a value as JSON, durably."""
    write(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Return a value as indented JSON with a final newline."""
    return (json_text(value, indent=2) + "\n").encode()


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON; numbers that are not finite become null.

    An object lists them under "not_finite", up to `NAMED` of them by name.
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except (TypeError, ValueError):  # there may be numbers that are not finite, or other mappings
        pass
    not_finite: list[str] = []
    plain = _finite(value, "", not_finite)
    if not_finite and isinstance(plain, dict):
        remainder = [f"and {len(not_finite) - NAMED} more"] if len(not_finite) > NAMED else []
        plain["not_finite"] = [*not_finite[:NAMED], *remainder]
    return json.dumps(plain, indent=indent, allow_nan=False)


def read_figures(text: str) -> dict[str, Any]:
    """Return an object of numbers from JSON, with NaN in place of null."""
    return {key: math.nan if each is None else each for key, each in json.loads(text).items()}


def _finite(value: object, where: str, found: list[str]) -> object:
    """Return a copy of the value without numbers that are not finite, and add those to `found`."""
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
    """A file that grows line by line, over several processes; it is not flushed to the disk.

    A line that a full disk does not take is left out, and `trouble` is set until it takes one.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Errors: `OSError` if it cannot be created.
        """
        self._file = path.open("ab+", buffering=0)
        self._torn = self._ends_torn()
        self.trouble: str | None = None
        """The reason why the last line is not in the file; None if it is."""

    def _ends_torn(self) -> bool:
        if self._file.seek(0, os.SEEK_END) == 0:
            return False
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1) != b"\n"

    def write(self, line: str) -> None:
        """Add a line, or set `trouble`; log the first error of a series."""
        content = b"\n" * self._torn + line.encode() + b"\n"
        left = memoryview(content)
        try:
            while left:
                left = left[_some(self._file.write(left)) :]
        except OSError as error:
            if written := len(content) - len(left):
                self._torn = content[written - 1 : written] != b"\n"
            if self.trouble is None:
                log.error("%s takes no more: %s", self._file.name, error)
            self.trouble = str(error)
            return
        self._torn, self.trouble = False, None

    @property
    def length(self) -> int:
        """Bytes so far."""
        return self._file.tell()

    def flush(self) -> None:
        """Do nothing: each line is written at once."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
