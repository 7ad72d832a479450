"""Where a run keeps what it comes back from: names, each with bytes that are whole or not there.

    layout.json, config.toml     what is trained, and how
    tape-0.arrow                 the events that the rules heard: where a generation begins ...
    tape-0-000000041000.arrow    ... and where it goes on when that was sealed, by its first event
    state.json, notes.jsonl      a moment of the rules and the measures, and what no event says
    states/                      such a moment at the beginning of each of the last segments
    fragments/, contributions/   arrays; `identity.json` is the run that they name
    fleet.json, owner-1.json     what the fleet must remember, and whose the run is

Without `durability.dir` the depot is the run directory itself. All of it raises `OSError` when it
cannot be had, which whoever asks must be able to live with.
"""

from __future__ import annotations

from mmap import PROT_READ, mmap
from pathlib import Path
from typing import NamedTuple, Protocol


class Growing(Protocol):
    """Something that grows, with one writer."""

    def write(self, content: bytes) -> None:
        """Add this; it survives a crash of the machine once this returns.

        Errors: `OSError`; then nothing of it is there.
        """
        ...

    def close(self) -> None: ...


class GrowingLines(Protocol):
    """A file that grows line by line over several processes; its last line may be lost."""

    def write(self, line: str) -> None:
        """Add a line. It waits in memory: that costs nothing that an event loop would notice."""
        ...

    @property
    def length(self) -> int:
        """Bytes so far, by all processes, with those that wait."""
        ...

    def flush(self) -> None:
        """Add what waits. It may take as long as the depot likes; threads may call it at once.

        Errors: `OSError`; then what is not there goes on waiting, in order.
        """
        ...

    def close(self) -> None: ...


class Grown(NamedTuple):
    """What has grown, as far as it was asked for; `hole` says what is missing behind it, None if
    nothing is."""

    content: bytes
    hole: str | None


class Depot(Protocol):
    """Names are those of files, folders before them: `fragments/f0000-g0-v00000000.safetensors`.

    Every call may take as long as the storage likes: none is made on an event loop.
    """

    def write(self, name: str, *content: bytes | memoryview) -> None:
        """Put this, one behind the other, in place of what was there; it survives a crash once this
        returns."""
        ...

    def copy(self, path: Path) -> None:
        """`write` a file of this machine under its name; it is never in memory as a whole."""
        with (
            path.open("rb") as file,
            mmap(file.fileno(), 0, prot=PROT_READ) as mapped,
            memoryview(mapped) as content,
        ):
            self.write(path.name, content)

    def write_soon(self, name: str, content: bytes) -> None:
        """Put this in place of what was there, best effort: it may be gone after a crash of the
        machine, and an object store leaves it."""
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

    def move(self, name: str, to: str) -> None:
        """Give what was written another name, in place of what has that.

        A crash may leave it under both names, never under none. Errors: `FileNotFoundError`.
        """
        self.write(to, self.read(name))
        self.remove(name)

    def tidy(self, start: str) -> None:
        """Delete temporary files that crashed writers have left under this prefix, best effort.
        Only for the single writer of the prefix."""
        ...

    def grow(self, name: str, *, again: bool = False) -> Growing:
        """Begin something that grows.

        `again`: nobody else can begin it, and an earlier attempt may have done so in part: one that
        is there and empty is taken.

        Errors: `FileExistsError` if it has begun before; `OSError`.
        """
        ...

    def grown(self, name: str, start: int = 0) -> Grown:
        """What is there from this byte on.

        Errors: `FileNotFoundError`; `EOFError` if it does not reach as far.
        """
        ...

    def drop(self, name: str) -> None:
        """Delete what has grown, best effort."""
        ...

    def lines(self, name: str) -> GrowingLines:
        """Go on with a file of lines."""
        ...

    def probe(self) -> None:
        """Write something and take it back: nothing is left, also of what was not there before.

        Errors: `OSError` that says why it could never be written.
        """
        ...
