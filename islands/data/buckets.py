"""Files in a bucket, with the part of `pathlib.Path` that the readers of a corpus use.

A source is a URI that `pyarrow.fs` understands: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, with
options such as `?region=us-east-1` or `?endpoint_override=HOST:PORT&scheme=http` at its end.
Credentials come from the environment, or are the machine's own. Nothing is downloaded as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from coordinator.errors import SourceMistake, UserMistake

SCHEMES = ("s3", "gs", "gcs")
"""The schemes of the buckets that a corpus can be in."""
FileId: TypeAlias = tuple[str, int, int]
"""The name of a file, its size in bytes, and the time of its last change in nanoseconds."""


@dataclass(frozen=True, slots=True)
class BucketFile:
    """A file in a bucket."""

    uri: str
    """The URI of the source, with its options."""
    path: str
    """Bucket and key, without the scheme."""
    size: int
    """Bytes."""
    modified_ns: int
    """The time of the last change, in nanoseconds since 1970."""

    def __str__(self) -> str:
        return f"{self.uri.partition('://')[0]}://{self.path}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot."""
        return PurePosixPath(self.path).suffix

    def open(self, mode: str = "rb") -> Any:
        """Open the file for reading at any place, as `pyarrow.NativeFile`.

        Errors: `OSError`.
        """
        assert mode == "rb", "buckets are only read"
        return connection(self.uri).open_input_file(self.path)


SourceFile: TypeAlias = Path | BucketFile
"""A file of a source, on this machine or in a bucket."""


def in_bucket(source: str) -> bool:
    """Return whether a source is a URI and no path."""
    return "://" in source


def connection(uri: str) -> Any:
    """Return the file system of a URI; a process connects once to each.

    Errors: `UserMistake` if the URI is none that a corpus can be in.
    """
    scheme, _, rest = uri.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise UserMistake(f"{uri!r}: unknown scheme {scheme}://; a corpus can be in {known}")
    place, _, options = rest.partition("?")
    host = place.partition("/")[0]
    return _connection(f"{scheme}://{host}/" + (f"?{options}" if options else ""))


@cache
def _connection(uri: str) -> Any:
    fs: Any = import_module("pyarrow.fs")
    try:
        return fs.FileSystem.from_uri(uri)[0]
    except ValueError as error:  # pyarrow's ArrowInvalid
        raise UserMistake(f"{uri.partition('?')[0]}: {error}") from error


def path_of(uri: str) -> str:
    """Return bucket and key of a URI; the user's name before the bucket is no part of it."""
    return uri.partition("://")[2].partition("?")[0].rpartition("@")[2].rstrip("/")


def bucket_files(source: str) -> tuple[str, list[BucketFile]]:
    """Return the root of a source in a bucket, and its files in order; hidden ones are left out.

    `*` in the path stands for any characters, "/" included.

    Errors: `UserMistake` if there is none, or the bucket cannot be listed.
    """
    fs: Any = import_module("pyarrow.fs")
    path = path_of(source)
    root, pattern = path, ""
    if "*" in path:
        root, pattern = path[: path.index("*")].rpartition("/")[0], path
    try:
        there = connection(source)
        info = there.get_file_info(root)
        if info.type == fs.FileType.File:
            return root.rpartition("/")[0], [_file(source, info)]
        wanted = fs.FileSelector(root, recursive=True, allow_not_found=True)
        found = [each for each in there.get_file_info(wanted) if each.type == fs.FileType.File]
    except (OSError, ValueError) as error:
        raise UserMistake(
            f"data.source = {plain_uri(source)!r} cannot be listed: {error}"
        ) from error
    below = [(each, each.path.removeprefix(root).split("/")) for each in found]
    files = [
        _file(source, each)
        for each, parts in sorted(below, key=lambda pair: pair[0].path)
        if not any(part.startswith(".") for part in parts)
        and (not pattern or fnmatchcase(each.path, pattern))
    ]
    if not files:
        raise SourceMistake(
            f"data.source = {plain_uri(source)!r}: there is no such file or folder in the bucket"
        )
    return root, files


def _file(source: str, info: Any) -> BucketFile:
    return BucketFile(source, info.path, info.size or 0, info.mtime_ns or 0)


def plain_uri(source: str) -> str:
    """Return a source without the options of a URI, for messages."""
    return source.partition("?")[0] if in_bucket(source) else source


def size_of(file: SourceFile) -> int:
    """Return the bytes of a file.

    Errors: `OSError`.
    """
    return file.size if isinstance(file, BucketFile) else file.stat().st_size


def identity(file: SourceFile) -> FileId:
    """Return what distinguishes a file and its state from others.

    Errors: `OSError` if the file is gone.
    """
    if isinstance(file, BucketFile):
        return str(file), file.size, file.modified_ns
    status = file.stat()
    return str(file.absolute()), status.st_size, status.st_mtime_ns


def names_below(root: Path | str, files: Sequence[SourceFile]) -> list[str]:
    """Return the paths of files below their root, with slashes."""
    return [
        file.path.removeprefix(f"{root}/")
        if isinstance(file, BucketFile)
        else file.relative_to(root).as_posix()
        for file in files
    ]
