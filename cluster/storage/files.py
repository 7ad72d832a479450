"""Files that are whole: written aside, flushed, renamed; or that grow line by line. And JSON, the
same wherever a run writes or prints it."""

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
"""Numbers that are not finite and named, before they are only counted."""

_ASIDE = re.compile(r"\..+\.[0-9]+(?:-[0-9]+)?")
_COUNT = itertools.count()
"""Numbers the temporary files of this process: two threads may replace one file."""


def write(path: Path, *content: bytes | memoryview) -> None:
    """Replace a file as a whole; it survives a crash of the machine once this returns.

    Errors: `OSError`; then the file is as it was, or already the new one.
    """
    make_folder(path.parent)
    _replace(path, content, durable=True)
    sync_folder(path.parent)


def write_soon(path: Path, content: bytes) -> None:
    """Replace a file as a whole; a crash of the machine may undo it.

    Errors: `OSError`; then the file is as it was.
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
        except OSError as error:  # `tidy` finds it; the first error is the one to be told
            log.warning("%s is left over: %s", aside, error)
        raise


def opened(path: Path, flags: int) -> AbstractContextManager[int]:
    """Open a file, and close it at the end of the context, as `closing_file`."""
    return closing_file(os.open(path, flags | os.O_CLOEXEC, 0o666), path)


@contextmanager
def closing_file(file: int, path: Path) -> Generator[int]:
    """Close a file descriptor at the end.

    Errors: `OSError` if it cannot be closed, unless there is another error to be told.
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


def write_all(file: int, content: bytes | memoryview) -> None:
    """Write all of this where the file stands; one call may take only a part of it."""
    left = memoryview(content).cast("B")
    while left:
        left = left[_some(os.write(file, left)) :]


def write_all_at(file: int, start: int, content: bytes) -> None:
    """Write all of this from this byte on."""
    left = memoryview(content)
    while left:
        written = _some(os.pwrite(file, left, start))
        left, start = left[written:], start + written


def _some(written: int) -> int:
    """Return how many bytes a call has written. Errors: `OSError` if it made no progress."""
    if written <= 0:
        raise OSError(errno.EIO, "nothing was written, and no error was reported")
    return written


def make_folder(path: Path) -> None:
    """Make a folder, and those above it; their names survive a crash of the machine."""
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
    """Make the names that are in a folder now survive a crash of the machine."""
    with opened(path, os.O_RDONLY) as folder:
        os.fsync(folder)


def is_aside(name: str, start: str) -> bool:
    """Whether it is what a `write` has begun of a file whose name begins so."""
    return _ASIDE.fullmatch(name) is not None and name[1:].startswith(start)


def aside_of(path: Path, number: int | None = None) -> Path:
    """Return where this process writes the next content of a file.

    `number`: of the attempt, where several threads may write the file.
    """
    attempt = "" if number is None else f"-{number}"
    return path.with_name(f".{path.name}.{os.getpid()}{attempt}")


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
