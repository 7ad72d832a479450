"""The sources of tokens: text, tables, token directories, buckets, the standard library."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import SourceMistake, UserMistake
from islands.data import token_index
from islands.data.buckets import SourceFile, bucket_files, in_bucket, plain_uri
from islands.data.formats import is_table

Tokens = NDArray[np.unsignedinteger[Any]]
"""Token ids, [length], in the smallest unsigned type that holds the vocabulary."""
STDLIB = "python-stdlib"
"""A source name: the interpreter's own standard library, some 14 MB on every machine."""
STDLIB_WITHOUT = frozenset({"site-packages", "dist-packages", "test", "__pycache__"})
"""Folders left out: installed packages, and `test`, which many distributions do not ship."""
SNIFFED_BYTES = 8000
"""Bytes that are searched for a byte 0, which marks a binary file; git has the same rule."""
COMPRESSED = frozenset(
    {".gz", ".bgz", ".bz2", ".xz", ".lzma", ".zst", ".lz4", ".zip", ".7z", ".tgz"}
)
"""The suffixes of compressed files, which are not read."""
SAVED_SPLITS, SAVED_STATE = "dataset_dict.json", "state.json"
"""Files of a dataset that the package `datasets` saved: of all splits, and of one."""


@dataclass(frozen=True, slots=True)
class MixtureSource:
    """One source of a mixture: an entry of `[[data.mixture]]`."""

    source: str
    """A source, in the form of `DataSpec.source`."""
    weight: float
    """The share of the windows, relative to the other weights."""
    column: str | None = None
    """The column or field, in the form of `DataSpec.column`."""
    tokens: bool = False
    """Whether the column holds lists of token ids."""


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The source of the tokens and how they are handed out: the table `[data]`."""

    source: str
    """A file, a folder (with all below it), a glob, a token directory, or "python-stdlib".

    All of them but the last may be in a bucket.
    """
    column: str | None
    """The column of Parquet or Arrow files, or the field of JSON lines, to read."""
    tokens: bool
    """Whether that column holds lists of token ids."""
    heldout_percent: float
    """The share of the files that is never trained on, in percent."""
    window: int
    """Predicted tokens per window."""
    seed: int
    """The seed of the shuffle and of the choice of held-out files."""
    lease_windows: int
    """Windows in one lease."""
    tokenizer: str | None = None
    """The file of a Hugging Face tokenizer, or a folder with one; None: bytes, or ids."""
    end_token: int | str | None = None
    """The id or text of the token that ends each document; None: the tokenizer's own."""
    separate_documents: bool = False
    """Whether batches have the number of each token's document (`islands.data.segments`)."""
    skip_damaged: bool = False
    """Whether damaged parts are left out and counted, in place of an error."""
    prepare_gb: float = 2.0
    """The largest source, in GB, that is written as token files at the start."""
    mixture: tuple[MixtureSource, ...] = ()
    """Several sources with weights, in place of `source`."""


def find_source(data: DataSpec) -> list[SourceFile]:
    """Return the source's files; at most an index is read.

    Errors: `UserMistake` if there are none.
    """
    if data.mixture:
        return [file for part in parts_of(data) for file in find_source(part)]
    if (directory := token_index.opened(data.source)) is not None:
        return [*directory.files]
    return root_and_files(data)[1]


def parts_of(data: DataSpec) -> list[DataSpec]:
    """Return the sources of a mixture, each by itself."""
    return [
        replace(data, source=each.source, column=each.column, tokens=each.tokens, mixture=())
        for each in data.mixture
    ]


def root_and_files(data: DataSpec) -> tuple[Path | str, list[SourceFile]]:
    """Return the source's root and its files, sorted; hidden files and folders are left out.

    Errors: `UserMistake` if there are none.
    """
    root, found, is_named = _found(data)
    packed = [file for file in found if file.suffix.lower() in COMPRESSED]
    found = [file for file in found if file.suffix.lower() not in COMPRESSED]
    if packed and not found:
        raise SourceMistake(
            f"data.source = {plain_uri(data.source)!r}: {packed[0].name} is compressed, and its "
            "bytes are no text: unpack it, or write it as Parquet, which is compressed inside"
        )
    if is_named:
        return root, found
    readable = [file for file in found if is_table(file, data.column)]
    wants_tables = bool(readable) or data.column is not None
    files = readable if wants_tables else [file for file in found if not _is_binary(file)]
    if not files:
        wanted = "text file"
        if wants_tables:
            wanted = "Parquet file, Arrow file or file of JSON lines (data.column is set)"
        raise SourceMistake(
            f"data.source = {plain_uri(data.source)!r} is empty: no {wanted} is below it"
        )
    return root, files


def _found(data: DataSpec) -> tuple[Path | str, list[SourceFile], bool]:
    """Return the root, all files below it, and whether each of them was named."""
    if data.source == STDLIB:
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        return stdlib, [*sorted(_of_stdlib(stdlib))], True
    if in_bucket(data.source):
        above, files = bucket_files(data.source)
        return above, [*files], len(files) == 1
    path = Path(data.source).expanduser()
    if path.is_file():
        return path.parent, list[SourceFile]([path]), True
    if path.is_dir() and (saved := _saved_dataset(path)):
        return path, [*saved], True
    if path.is_dir():
        root, found = path, path.rglob("*")
    elif glob.has_magic(data.source):
        fixed = path.parts[: [glob.has_magic(part) for part in path.parts].index(True)]
        root, found = Path(*fixed), (Path(p) for p in glob.glob(str(path), recursive=True))
    else:
        raise SourceMistake(
            f"data.source = {data.source!r}: there is no such file or folder (looked in "
            f"{Path.cwd()}): name a file, a folder, a glob, or {STDLIB!r}"
        )
    visible = sorted(
        p
        for p in found
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(root).parts)
    )
    return root, [*visible], False


def _saved_dataset(folder: Path) -> list[Path]:
    """Return the files of a split that the package `datasets` saved; empty if it is none.

    Errors: `UserMistake` if the folder has several splits, or its list of files is broken.
    """
    if (folder / SAVED_SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{SAVED_STATE}"))
        named = ", ".join(str(folder / split) for split in splits) or "none is there"
        raise UserMistake(
            f"data.source = {str(folder)!r} is a saved dataset of several splits: name one: {named}"
        )
    state = folder / SAVED_STATE
    if not (state.is_file() and (folder / "dataset_info.json").is_file()):
        return []
    try:
        files = [folder / each["filename"] for each in json.loads(state.read_text())["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserMistake(f"{state} does not list the files of the dataset: {error!r}") from error
    if missing := [path.name for path in files if not path.is_file()]:
        raise UserMistake(f"{folder}: {missing[0]} is missing, which {SAVED_STATE} lists")
    return files


def _of_stdlib(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = {*folders} - STDLIB_WITHOUT
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def held_out(names: Sequence[str], data: DataSpec) -> list[bool]:
    """Return which files are held out; of several files at least one, and never all."""
    drawn = [
        int.from_bytes(hashlib.blake2b(os.fsencode(f"{data.seed}:{name}"), digest_size=8).digest())
        for name in names
    ]
    bound = data.heldout_percent / 100 * 2**64
    bound = min(max(bound, min(drawn) + 1), max(drawn))
    return [number < bound for number in drawn]


def _is_binary(file: SourceFile) -> bool:
    try:
        with file.open("rb") as stream:
            return b"\0" in stream.read(SNIFFED_BYTES)
    except OSError:
        return False  # to be read and reported with all others that cannot be
