"""Faults in system calls: functions of `os` fail for files below one folder, and nowhere else.

This is the layer below all our code, so no class is replaced. Each call is counted by its name and
file, so that a test can make each of them fail in turn.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self


class Fault(Enum):
    """An answer of the operating system."""

    EIO = "Input/output error"
    ENOSPC = "No space left on device"
    EEXIST = "File exists"  # yet the file is created: NFS reports this after a lost answer
    SHORT = "a short transfer"  # a part is written or read, without an error


HANGS_S = 60.0
"""Seconds after which a hanging call fails the test."""
OF_PATHS = ("open", "replace", "unlink", "mkdir", "scandir", "stat")
OF_FILES = ("write", "pwrite", "pread", "fsync", "ftruncate", "fstat", "lseek", "close")
TAKES_ROOM = {"open", "write", "pwrite", "fsync", "mkdir", "replace"}


class Call(NamedTuple):
    """A system call: its name, and its file relative to the folder, with numbers as `N`."""

    name: str
    file: str


def faults_of(call: Call) -> list[Fault]:
    """Return the possible faults of a call."""
    found = [Fault.EIO]
    if call.name in TAKES_ROOM:
        found.append(Fault.ENOSPC)
    if call.name in ("open", "mkdir"):
        found.append(Fault.EEXIST)
    if call.name in ("write", "pwrite", "pread"):
        found.append(Fault.SHORT)
    return found


class SystemCalls:
    """A context in which calls for files below `root` are counted, and may fail or hang.

    `room`: bytes that may still be written; None means no limit. `hit`: whether the call that was
    to fail was made. `answers`: calls hang while this is not set; `hung`: set once a call hangs.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._lock = str(root), threading.Lock()
        self._plain: Mapping[str, Callable[..., Any]] = {}
        self._files: dict[int, str] = {}
        self._planned: tuple[Call, int, Fault] | None = None
        self.made: Counter[Call] = Counter()
        self.room: int | None = None
        self.hit = False
        self.answers, self.hung = threading.Event(), threading.Event()
        self.answers.set()

    def fail(self, call: Call, number: int, fault: Fault) -> None:
        """Let the call with this number fail, counted from 1, and no other."""
        self._planned = call, number, fault

    def __enter__(self) -> Self:
        names = (*OF_PATHS, *OF_FILES)
        self._plain = {name: getattr(os, name) for name in names}
        for name in OF_PATHS:
            setattr(os, name, self._of_path(name))
        for name in OF_FILES:
            setattr(os, name, self._of_file(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, plain in self._plain.items():
            setattr(os, name, plain)

    def _of_path(self, name: str) -> Callable[..., Any]:
        def call(path: Any = ".", *more: Any, **options: Any) -> Any:
            file = self._below(path)
            if file is None:
                return self._plain[name](path, *more, **options)
            plain = self._answer(name, file, (path, *more), options)
            if name == "open":
                with self._lock:
                    self._files[plain] = file
            return plain

        return call

    def _of_file(self, name: str) -> Callable[..., Any]:
        def call(file: int, *more: Any) -> Any:
            with self._lock:
                path = self._files.get(file)
                if name == "close":
                    self._files.pop(file, None)
            if path is None:
                return self._plain[name](file, *more)
            return self._answer(name, path, (file, *more), {})

        return call

    def _below(self, path: Any) -> str | None:
        if not isinstance(path, str | os.PathLike):
            return None
        text = os.path.abspath(os.fspath(path))
        if text != self._root and not text.startswith(self._root + os.sep):
            return None
        return re.sub(r"[0-9]+", "N", text[len(self._root) :].lstrip(os.sep)) or "."

    def _answer(self, name: str, file: str, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        call, plain = Call(name, file), self._plain[name]
        if not self.answers.is_set():
            self.hung.set()
            assert self.answers.wait(HANGS_S)
        with self._lock:
            self.made[call] += 1
            fault = None
            if self._planned is not None and self._planned[:2] == (call, self.made[call]):
                fault, self.hit = self._planned[2], True
            if name in ("write", "pwrite") and self.room is not None:
                if self.room == 0:
                    fault = Fault.ENOSPC
                given = (given[0], given[1][: self.room], *given[2:])
        match fault:
            case None if name == "fsync":
                return None  # no machine crashes here, and a real fsync takes milliseconds
            case None:
                answer = plain(*given, **more)
                if name in ("write", "pwrite") and self.room is not None:
                    self.room -= answer
                return answer
            case Fault.SHORT if name == "pread":
                return plain(given[0], max(1, given[1] // 2), *given[2:])
            case Fault.SHORT:
                return plain(given[0], given[1][: max(1, len(given[1]) // 2)], *given[2:])
            case Fault.EEXIST:
                made = plain(*given, **more)
                if name == "open":
                    self._plain["close"](made)
            case Fault.EIO | Fault.ENOSPC:
                if name == "close":
                    plain(*given)  # Linux closes it despite the error
        raise OSError(getattr(errno, fault.name), fault.value, file)
