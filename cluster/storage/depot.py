"""The durable store of a run: names with contents that are complete or absent.

    layout.json, config.toml     what is trained, and how; `layout-copy.json` is a copy
    tape-0.arrow                 the events that the rules received, from a generation's begin ...
    tape-0-000000041000.arrow    ... and from where that was sealed, named by its first event
    state.json, notes.jsonl      a snapshot of rules and measures, and facts without events
    states/                      snapshots at the beginning of each of the last segments
    fragments/, contributions/   arrays; `identity.json` is the run that they name
    fleet.json, owner-1.json     the memory of the fleet, and the owner of the run

Without `durability.dir` the depot is the run directory itself. All calls raise `OSError` if the
storage cannot be reached; callers must handle that.
"""

from __future__ import annotations

from mmap import PROT_READ, mmap
from pathlib import Path
from typing import NamedTuple, Protocol


class Growing(Protocol):
    """A file that grows, with one writer."""

    def write(self, content: bytes) -> None:
        """Add content; it survives a crash of the machine once this returns.

        Errors: `OSError`; then nothing of it was added.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class GrowingLines(Protocol):
    """A file that grows line by line over several processes; its last line may be lost."""

    def write(self, line: str) -> None:
        """Add a line, which waits in memory: fast enough for an event loop."""
        ...

    @property
    def length(self) -> int:
        """Bytes so far of all processes, including those that wait."""
        ...

    def flush(self) -> None:
        """Write all waiting lines; threads may call it concurrently, and it may take any time.

        Errors: `OSError`; then lines that are not written keep waiting, in order.
        """
        ...

    def close(self) -> None:
        """Write all waiting lines, and close the file."""
        ...


class Grown(NamedTuple):
    """The content of a growing file, as far as it was requested."""

    content: bytes
    hole: str | None
    """The part that is missing after the content; None if there is none."""


class Depot(Protocol):
    """A store of files, with folders in their names: `fragments/f0000-g0-v00000000.safetensors`.

    Every call may take as long as the storage likes, so none is made on an event loop.
    """

    def write(self, name: str, *content: bytes | memoryview) -> None:
        """Replace a file by these parts, one after the other.

        The new content survives a crash once this returns.
        """
        ...

    def copy(self, path: Path) -> None:
        """Write a file of this machine under its own name, without loading it into memory."""
        with (
            path.open("rb") as file,
            mmap(file.fileno(), 0, prot=PROT_READ) as mapped,
            memoryview(mapped) as content,
        ):
            self.write(path.name, content)

    def write_soon(self, name: str, content: bytes) -> None:
        """Replace a file, best effort: a crash of the machine may undo it.

        An object store does nothing.
        """
        ...

    def claim(self, name: str, content: bytes) -> bool:
        """Write a file that does not exist yet; return True to exactly one of several writers."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Errors: `FileNotFoundError`.
        """
        ...

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, without the folder's own; none if it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file.

        Errors: `FileNotFoundError`.
        """
        ...

    def move(self, name: str, to: str) -> None:
        """Rename a file; a file that has the new name is replaced.

        A crash may leave it under both names, never under none.

        Errors: `FileNotFoundError`.
        """
        self.write(to, self.read(name))
        self.remove(name)

    def tidy(self, start: str) -> None:
        """Delete temporary files that crashed writers have left under this prefix, best effort.

        Only the single writer of the prefix may call this.
        """
        ...

    def grow(self, name: str, *, again: bool = False) -> Growing:
        """Begin a growing file.

        `again`: no other process can begin it, and an earlier attempt may have created it; an
        empty file is then accepted.

        Errors: `FileExistsError` if it has begun before; `OSError`.
        """
        ...

    def grown(self, name: str, start: int = 0) -> Grown:
        """Return the content from this byte on.

        Errors: `FileNotFoundError`; `EOFError` if the file is shorter than `start`.
        """
        ...

    def drop(self, name: str) -> None:
        """Delete a growing file, best effort."""
        ...

    def lines(self, name: str) -> GrowingLines:
        """Continue a file of lines, or begin one."""
        ...

    def probe(self) -> None:
        """Check that the store can be written to, and leave no trace.

        Errors: `OSError` with the reason if it can never be written.
        """
        ...
