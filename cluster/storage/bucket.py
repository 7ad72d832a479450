"""A depot in a bucket: any storage that pyarrow reaches where objects are replaced atomically.

A growing file is a folder of parts, `tape-0.arrow/00000000` and so on. Every addition rewrites the
last part until that is long enough. So an addition is one request: it takes effect or does not. If
that is unknown, the next addition repeats it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from cluster.storage.depot import Depot, Growing, GrowingLines, Grown
from cluster.storage.lines import Adding, WaitingLines

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PART_BYTES = 2**18
"""The size in bytes above which a part is not rewritten.

A day of a tape is then some hundreds of parts, and no addition sends more than this besides itself.
"""
READERS = 16
"""The number of parts that are read at the same time."""
SMALL_AT_ONCE = "allow_delayed_open=true"
"""An option for pyarrow's S3: an object of less than 10 MB is one request, not three."""
PROBE = "probe"
"""The name of the object that `probe` writes and removes."""
SETTLE_S = 2.0
"""Seconds after one write within which any other write that was under way then has ended."""


class Bucket(Depot):
    """A depot at `name` below the URI.

    It connects at first use, since the constructor of an actor must not fail. Credentials come from
    the environment, or are the machine's own.
    """

    def __init__(self, uri: str, name: str) -> None:
        self._uri, self._name = uri, name

    def __str__(self) -> str:
        parts = urlsplit(self._uri)
        return urlunsplit((*parts[:2], f"{parts.path.rstrip('/')}/{self._name}", "", ""))

    @functools.cached_property
    def _there(self) -> tuple[FileSystem, str]:
        from pyarrow.fs import FileSystem

        uri = self._uri
        if uri.startswith("s3:") and SMALL_AT_ONCE not in uri:
            uri += f"{'&' if urlsplit(uri).query else '?'}{SMALL_AT_ONCE}"
        files, path = FileSystem.from_uri(uri)
        return files, f"{path.rstrip('/')}/{self._name}"

    def write(self, name: str, *content: bytes | memoryview) -> None:
        """Replace an object as a whole.

        Errors: `OSError`.
        """
        with _plainly():
            files, root = self._there
            with files.open_output_stream(f"{root}/{name}") as stream:
                for each in content:
                    stream.write(each)

    def write_soon(self, name: str, content: bytes) -> None:
        """Do nothing: object stores do not support this operation."""

    def claim(self, name: str, content: bytes) -> bool:
        """Write an object that is not there; return whether this call's content has stayed.

        There are no conditional writes here. A writer waits until all others that found nothing
        have written too; the last write wins.
        """
        if self.has(name):
            return False
        self.write(name, content)
        time.sleep(SETTLE_S)
        return self.read(name) == content

    def read(self, name: str) -> bytes:
        """Return the content of an object.

        Errors: `FileNotFoundError`; `OSError`.
        """
        with _plainly():
            files, root = self._there
            with files.open_input_file(f"{root}/{name}") as stream:
                return stream.read(stream.size())  # without a size it would be read in pieces

    def has(self, name: str) -> bool:
        """Return whether there is an object or folder with this name."""
        from pyarrow.fs import FileType

        with _plainly():
            files, root = self._there
            return files.get_file_info(f"{root}/{name}").type != FileType.NotFound

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, without the folder's own."""
        return list(self.sizes(folder))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the bytes of each object in a folder, by name."""
        from pyarrow.fs import FileSelector

        with _plainly():
            files, root = self._there
            wanted = FileSelector(f"{root}/{folder}".rstrip("/"), allow_not_found=True)
            return {each.base_name: each.size or 0 for each in files.get_file_info(wanted)}

    def remove(self, name: str) -> None:
        """Delete an object.

        Errors: `FileNotFoundError`; `OSError`.
        """
        with _plainly():
            files, root = self._there
            files.delete_file(f"{root}/{name}")

    def tidy(self, start: str) -> None:
        """Do nothing: an object store has no temporary files."""

    def grow(self, name: str, *, again: bool = False) -> Growing:
        """Begin a growing file.

        Nothing is written before the first addition, so `again` makes no difference.

        Errors: `FileExistsError` if it has begun before.
        """
        if self.has(name):
            raise FileExistsError(f"{name} is in {self} already")
        return _Parts(self, name, 0)

    def grown(self, name: str, start: int = 0) -> Grown:
        """Return the content from this byte on, up to the first part that is missing.

        Errors: `FileNotFoundError`; `EOFError` if the content is shorter than `start`.
        """
        sizes = {int(each): size for each, size in self.sizes(name).items()}
        if not sizes:
            raise FileNotFoundError(f"{name} is not in {self}")
        good = next((n for n, number in enumerate(sorted(sizes)) if n != number), len(sizes))
        first, before = 0, 0
        while first < good and before + sizes[first] <= start:
            before, first = before + sizes[first], first + 1
        with ThreadPoolExecutor(READERS) as readers:
            parts = readers.map(lambda n: self.read(_part(name, n)), range(first, good))
            content = b"".join(parts)[start - before :]
        if first == good and before < start:
            raise EOFError(f"{name} is shorter than {start} bytes")
        return Grown(content, None if good == len(sizes) else f"part {good} is not there")

    def drop(self, name: str) -> None:
        """Delete a growing file with all its parts."""
        with _plainly():
            files, root = self._there
            if self.has(name):
                files.delete_dir(f"{root}/{name}")

    def lines(self, name: str) -> GrowingLines:
        """Continue a file of lines, in new parts."""
        before = self.sizes(name)
        parts = _Parts(self, name, max(map(int, before), default=-1) + 1)
        return WaitingLines(_LineParts(parts), sum(before.values()))

    def probe(self) -> None:
        """Write an object and remove it; remove the folder too if it is empty."""
        self.write(PROBE, b"")
        self.remove(PROBE)
        with _plainly():
            files, root = self._there
            if not self.names():
                files.delete_dir(root)  # the marker object of an empty folder


class _Parts(Growing):
    def __init__(self, bucket: Bucket, name: str, first: int) -> None:
        self._bucket, self._name, self._number, self._last = bucket, name, first, b""

    def write(self, content: bytes) -> None:
        last = self._last + content
        self._bucket.write(_part(self._name, self._number), last)
        self._last = last
        if len(last) >= PART_BYTES:
            self._number, self._last = self._number + 1, b""

    def close(self) -> None:
        """Do nothing: each addition was one complete write."""


def _part(name: str, number: int) -> str:
    return f"{name}/{number:08}"


class _LineParts(Adding):
    """Lines in parts of their own, after those of earlier processes."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts

    def add(self, content: bytes) -> int:
        self._parts.write(content)
        return len(content)

    def sync(self) -> None:
        """Do nothing: every addition is durable at once."""

    def close(self) -> None:
        self._parts.close()


@contextmanager
def _plainly() -> Generator[None]:
    """Raise every error of pyarrow as an `OSError`."""
    try:
        yield
    except pa.ArrowException as error:
        raise OSError(str(error)) from error
