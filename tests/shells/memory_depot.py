"""An in-memory depot; each call takes a time that the seed chooses, and may fail."""

from __future__ import annotations

import errno
from pathlib import PurePosixPath

from cluster.storage.depot import Depot, Growing, GrowingLines, Grown
from tests.shells.scheduler import Scheduler

CALL_S = 0.05
HANGS_S = 12.0
HANGS, FAILS = 0.05, 0.15
"""The chances that a call hangs or fails."""


class MemoryDepot(Depot):
    """Files by name.

    A call that fails may have done its work; the caller cannot detect it. `hangs` is the chance
    that a call takes up to `HANGS_S`.
    """

    def __init__(self, s: Scheduler, hangs: float = HANGS) -> None:
        self.s, self.chance, self.files, self.sound = s, hangs, dict[str, bytes](), False

    def call(self, what: str) -> None:
        """Take a random time, then fail by chance, unless the depot is `sound`."""
        chance = self.s.rng
        hangs = not self.sound and chance.random() < self.chance
        self.s.nap(what, HANGS_S if hangs else CALL_S)
        if not self.sound and chance.random() < FAILS:
            raise OSError(errno.EIO, f"{what}: input/output error")

    def write(self, name: str, *content: bytes | memoryview) -> None:
        self.call(f"begin to write {name}")
        self.files[name] = b"".join(map(bytes, content))
        self.call(f"write {name}")

    def write_soon(self, name: str, content: bytes) -> None:
        self.files[name] = content

    def claim(self, name: str, content: bytes) -> bool:
        self.s.point(f"claim {name}")
        if name in self.files:
            return False
        self.files[name] = content
        return True

    def read(self, name: str) -> bytes:
        self.call(f"read {name}")
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def has(self, name: str) -> bool:
        self.call(f"look for {name}")
        return name in self.files

    def names(self, folder: str = "") -> list[str]:
        paths = map(PurePosixPath, self.files)
        return [path.name for path in paths if path.parent == PurePosixPath(folder)]

    def remove(self, name: str) -> None:
        self.call(f"remove {name}")
        self.drop(name)

    def drop(self, name: str) -> None:
        self.files.pop(name, None)

    def tidy(self, start: str) -> None: ...

    def probe(self) -> None: ...

    def grow(self, name: str, *, again: bool = False) -> Growing:
        self.s.point(f"begin {name}")
        if name in self.files and (self.files[name] or not again):
            raise FileExistsError(errno.EEXIST, "it is there", name)
        self.files[name] = b""
        self.call(f"grow {name}")
        return _Growing(self, name)

    def grown(self, name: str, start: int = 0) -> Grown:
        return Grown(self.files[name][start:], None)

    def lines(self, name: str) -> GrowingLines:
        raise NotImplementedError


class _Growing(Growing):
    def __init__(self, depot: MemoryDepot, name: str) -> None:
        self._depot, self._name = depot, name

    def write(self, content: bytes) -> None:
        before = self._depot.files[self._name]
        self._depot.call(f"add to {self._name}")
        assert self._depot.files[self._name] == before, "two additions at once"
        self._depot.files[self._name] = before + content

    def close(self) -> None:
        self._depot.call(f"close {self._name}")
