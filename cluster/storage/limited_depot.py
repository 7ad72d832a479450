"""A depot whose calls have a timeout, for callers that must continue while the storage hangs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cluster.storage.depot import Depot, Growing, GrowingLines, Grown
from cluster.storage.limited_calls import LimitedCalls


class LimitedDepot(Depot):
    """A depot for small files, whose calls raise `TimeoutError` as `LimitedCalls` does.

    `claim` has no timeout: whether it created the file must not stay unknown. `copy` has none
    either: a model may take any time. A growing file has none once it is begun.
    """

    def __init__(self, depot: Depot, limit_s: float | None = None) -> None:
        """Limit the calls of this depot; `limit_s`: as for `LimitedCalls`."""
        self._depot, self._calls = depot, LimitedCalls(limit_s)

    def __str__(self) -> str:
        return str(self._depot)

    def write(self, name: str, *content: bytes | memoryview) -> None:
        """Replace a file by these parts."""
        self._calls.call(partial(self._depot.write, name, *content))

    def copy(self, path: Path) -> None:
        """Write a file of this machine under its own name, without a timeout."""
        self._depot.copy(path)

    def write_soon(self, name: str, content: bytes) -> None:
        """Replace a file, best effort."""
        self._calls.call(partial(self._depot.write_soon, name, content))

    def claim(self, name: str, content: bytes) -> bool:
        """Write a file that does not exist yet, without a timeout."""
        return self._depot.claim(name, content)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return self._calls.call(partial(self._depot.read, name))

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        return self._calls.call(partial(self._depot.has, name))

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder."""
        return self._calls.call(partial(self._depot.names, folder))

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._calls.call(partial(self._depot.remove, name))

    def move(self, name: str, to: str) -> None:
        """Rename a file."""
        self._calls.call(partial(self._depot.move, name, to))

    def tidy(self, start: str) -> None:
        """Delete temporary files of this prefix, best effort."""
        self._calls.call(partial(self._depot.tidy, start))

    def grow(self, name: str, *, again: bool = False) -> Growing:
        """Begin a growing file."""
        return self._calls.call(partial(self._depot.grow, name, again=again))

    def grown(self, name: str, start: int = 0) -> Grown:
        """Return the content of a growing file."""
        return self._calls.call(partial(self._depot.grown, name, start))

    def drop(self, name: str) -> None:
        """Delete a growing file, best effort."""
        self._calls.call(partial(self._depot.drop, name))

    def lines(self, name: str) -> GrowingLines:
        """Continue a file of lines, or begin one."""
        return self._calls.call(partial(self._depot.lines, name))

    def probe(self) -> None:
        """Check that the store can be written to."""
        self._calls.call(self._depot.probe)
