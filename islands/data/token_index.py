"""The index of a token directory: its shards, what their ids mean, and a digest.

    index.json           this index
    tokenizer.json       the tokenizer's file, unless the tokens are bytes
    shard-00000.bin      token ids, little-endian, in the type `dtype`
    shard-00000.ends     int64, little-endian: the place in the shard behind each document

With `masked` a shard has 2 x id, plus 1 for a token that the loss counts, in place of the id.

`archipelago data tokenize` writes such a directory. Opening one reads the index, and the size of
each file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.errors import UserMistake
from islands.data.buckets import (
    BucketFile,
    SourceFile,
    connection,
    in_bucket,
    path_of,
    plain_uri,
)

INDEX = "index.json"
FORMAT, VERSION, MASKED_VERSION = "archipelago-tokens", 1, 2
DTYPES = ("uint8", "uint16", "uint32")
READERS = 16
"""Files in a bucket that are asked for at the same time."""
PIECE_BYTES = 2**24
"""Bytes of a shard that are read at once to compute its digest."""


@dataclass(frozen=True, slots=True)
class TokenShard:
    """A shard in an index."""

    file: str
    """The file with the ids."""
    tokens: int
    """Token ids in the file."""
    documents: int
    """Documents that end in the shard."""
    sha256: str
    """The digest of the ids, followed by the ends of the documents."""

    @property
    def ends(self) -> str:
        """The file with the ends of the documents."""
        return self.file.removesuffix(".bin") + ".ends"


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """The index of a token directory."""

    dtype: str
    """The type of an id: "uint8", "uint16" or "uint32"."""
    vocabulary: int
    """One more than the largest id that a document can have."""
    end_token: int | None
    """The id behind each document; None: documents are joined as they are."""
    tokenizer: str | None
    """The tokenizer's file in the directory; None: the tokens are bytes, or came as ids."""
    tokenizer_sha256: str | None
    documents: int
    tokens: int
    source_bytes: int
    """Bytes of the files that the tokens came from."""
    left_out: dict[str, int]
    """Parts of the source that were left out, by kind, with their number."""
    shards: tuple[TokenShard, ...]
    masked: bool = False
    """Whether the shards mark the tokens that the loss counts."""
    answers: int = 0
    """Tokens that the loss counts, if `masked`."""

    @property
    def sha256(self) -> str:
        """The digest of all ids and documents."""
        masked = " masked" if self.masked else ""
        digest = hashlib.sha256(f"{self.dtype} {self.end_token}{masked}".encode())
        for shard in self.shards:
            digest.update(bytes.fromhex(shard.sha256))
        return digest.hexdigest()

    def text(self) -> str:
        """Return the content of the file."""
        version = MASKED_VERSION if self.masked else VERSION
        plain = {"format": FORMAT, "version": version, "sha256": self.sha256, **asdict(self)}
        return json.dumps(plain, indent=1) + "\n"


def parsed(text: bytes, name: str) -> TokenIndex:
    """Return the index that a file contains.

    Errors: `UserMistake` if it is none, is of a later version, or contradicts itself.
    """
    try:
        plain: dict[str, Any] = json.loads(text)
        if plain.pop("format") != FORMAT:
            raise ValueError("it is of another format")
        if (version := plain.pop("version")) not in (VERSION, MASKED_VERSION):
            raise UserMistake(
                f"{name} has version {version!r} and this program reads up to {MASKED_VERSION}: "
                "install the program that wrote it, or tokenize the source again"
            )
        digest = plain.pop("sha256")
        shards = tuple(TokenShard(**each) for each in plain.pop("shards"))
        plain = {"masked": False, "answers": 0} | plain
        index = TokenIndex(**{each.name: plain[each.name] for each in fields(TokenIndex)
                              if each.name != "shards"}, shards=shards)  # fmt: skip
        problem = _contradiction(index, digest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_index(name, f"{type(error).__name__}: {error}") from error
    if problem:
        raise _no_index(name, problem)
    return index


def _no_index(name: str, problem: str) -> UserMistake:
    return UserMistake(
        f"{name} is no index of a token directory ({problem}): restore it, or run `archipelago "
        "data tokenize` again"
    )


def _contradiction(index: TokenIndex, digest: object) -> str:
    if index.dtype not in DTYPES:
        return f"dtype = {index.dtype!r}"
    if not 1 <= index.vocabulary * (1 + index.masked) <= np.iinfo(index.dtype).max + 1:
        return f"a vocabulary of {index.vocabulary} in {index.dtype}"
    if any("/" in shard.file or not shard.file.endswith(".bin") for shard in index.shards):
        return "a shard outside the directory"
    if index.tokens != sum(shard.tokens for shard in index.shards):
        return "its tokens are not the sum of its shards"
    if digest != index.sha256:
        return "its digest does not fit its shards"
    return ""


@dataclass(frozen=True, slots=True)
class TokenDirectory:
    """A token directory that can be read."""

    name: str
    """The directory, for messages."""
    index: TokenIndex
    files: tuple[SourceFile, ...]
    """The files with the ids, in the order of the index."""
    ends: tuple[SourceFile, ...]
    """The files with the ends of documents, in the same order; not checked."""
    tokenizer: SourceFile | None
    """The file of the tokenizer, not checked."""

    def damaged(self) -> list[str]:
        """Return the shards whose content has another digest; this reads everything.

        Errors: `OSError`.
        """
        found: list[str] = []
        for shard, file, ends in zip(self.index.shards, self.files, self.ends, strict=True):
            digest = hashlib.sha256()
            for each in (file, ends):
                with each.open("rb") as stream:
                    while piece := stream.read(PIECE_BYTES):
                        digest.update(piece)
            if digest.hexdigest() != shard.sha256:
                found.append(f"{file} has another content than the index: restore it from a copy")
        return found


def opened(source: str) -> TokenDirectory | None:
    """Open a token directory, on this machine or in a bucket; None if the source is none.

    Errors: `UserMistake` if the index or a shard is missing, cut off or of another version.
    """
    remote = in_bucket(source)
    if not remote and not (Path(source).expanduser() / INDEX).is_file():
        return None
    name = plain_uri(source)
    if (text := _content(source, INDEX)) is None or (remote and FORMAT.encode() not in text[:200]):
        return None
    if not remote and FORMAT.encode() not in text[:200]:
        return None  # an index.json of something else, in a folder of texts
    index = parsed(text, f"{name}/{INDEX}")
    names = [shard.file for shard in index.shards]
    sizes = _sizes(source, names)
    width = np.dtype(index.dtype).itemsize
    problems = [
        f"{name}/{shard.file}: "
        + ("there is no such file" if size is None else f"{size:,} bytes")
        + f", and the index wants {shard.tokens * width:,} bytes"
        for shard, size in zip(index.shards, sizes, strict=True)
        if size != shard.tokens * width
    ]
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise UserMistake(f"{problems[0]}{more}: copy the whole directory again")
    files = _files(source, names, [size or 0 for size in sizes])
    ends = _files(source, [shard.ends for shard in index.shards], [0] * len(names))
    kept = index.tokenizer and _files(source, [index.tokenizer], [0])[0]
    return TokenDirectory(name, index, tuple(files), tuple(ends), kept or None)


def _content(source: str, name: str) -> bytes | None:
    if not in_bucket(source):
        return (Path(source).expanduser() / name).read_bytes()
    try:
        with connection(source).open_input_file(f"{path_of(source)}/{name}") as stream:
            content: bytes = stream.read()
            return content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserMistake(f"data.source = {plain_uri(source)!r} cannot be read: {error}") from error


def _sizes(source: str, names: Sequence[str]) -> list[int | None]:
    if not in_bucket(source):
        folder = Path(source).expanduser()
        return [path.stat().st_size if (path := folder / each).is_file() else None
                for each in names]  # fmt: skip
    there, root = connection(source), path_of(source)

    def size(name: str) -> int | None:
        found: int | None = there.get_file_info(f"{root}/{name}").size
        return found

    with ThreadPoolExecutor(READERS) as readers:
        return [*readers.map(size, names)]


def _files(source: str, names: Sequence[str], sizes: Sequence[int]) -> list[SourceFile]:
    if not in_bucket(source):
        return [Path(source).expanduser() / name for name in names]
    root = path_of(source)
    return [
        BucketFile(source, f"{root}/{name}", size, 0)
        for name, size in zip(names, sizes, strict=True)
    ]
