"""The sources of tokens: text files, folders and globs, Parquet files, the standard library."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake

Tokens = NDArray[np.unsignedinteger[Any]]
"""Token ids, [length], in the smallest unsigned type that holds the vocabulary."""
Pieces: TypeAlias = Iterator[Tokens]
"""An iterator over consecutive tokens."""
BYTES = 256
"""The vocabulary of text: a token is a byte."""
SEPARATOR = 0
"""The byte between two documents of text; text itself has none."""
STDLIB = "python-stdlib"
"""A source name: the interpreter's own standard library, some 14 MB on every machine."""
STDLIB_WITHOUT = frozenset({"site-packages", "dist-packages", "test", "__pycache__"})
"""Folders left out: installed packages, and `test`, which many distributions do not ship."""
PARQUET = frozenset({".parquet", ".pq"})
PIECE_BYTES, PIECE_ROWS = 2**24, 2**13
"""The part of a file that is in memory at once: bytes of a text, rows of a table."""
SNIFFED_BYTES = 8000
"""Bytes that are searched for a byte 0, which marks a binary file; git has the same rule."""


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The source of the tokens and how they are handed out: the table `[data]`."""

    source: str
    """A text file, a folder (with all below it), a glob, Parquet files, or "python-stdlib"."""
    column: str | None
    """The Parquet column to read."""
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


def find_source(data: DataSpec) -> list[Path]:
    """Return the source's files without reading any.

    Errors: `UserMistake` if there are none.
    """
    return root_and_files(data)[1]


def root_and_files(data: DataSpec) -> tuple[Path, list[Path]]:
    """Return the source's root and its files, sorted; hidden files and folders are left out.

    Errors: `UserMistake` if there are none.
    """
    if data.source == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        return root, sorted(_of_stdlib(root))
    path = Path(data.source).expanduser()
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        root, found = path, path.rglob("*")
    elif glob.has_magic(data.source):
        fixed = path.parts[: [glob.has_magic(part) for part in path.parts].index(True)]
        root, found = Path(*fixed), (Path(p) for p in glob.glob(str(path), recursive=True))
    else:
        raise UserMistake(
            f"data.source = {data.source!r}: there is no such file or folder (looked in "
            f"{Path.cwd()}): name a file, a folder, a glob, or {STDLIB!r}"
        )
    files = sorted(
        p
        for p in found
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(root).parts)
    )
    tables = [p for p in files if p.suffix in PARQUET]
    wants_tables = bool(tables) or data.column is not None
    files = tables if wants_tables else [p for p in files if not _is_binary(p)]
    if not files:
        wanted = "Parquet file (data.column is set)" if wants_tables else "text file"
        raise UserMistake(f"data.source = {data.source!r} is empty: no {wanted} is below it")
    return root, files


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


def is_parquet(path: Path, data: DataSpec) -> bool:
    """Return whether a file is read as Parquet."""
    return path.suffix in PARQUET or data.column is not None


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(SNIFFED_BYTES)
    except OSError:
        return False  # to be read and reported with all others that cannot be


def tokens_of(path: Path, data: DataSpec, vocabulary: int, start: float, stop: float) -> Pieces:
    """Yield the share [start, stop) of a file's bytes or rows as tokens, some at a time.

    Documents of text end with a separator, unless the file is empty; rows of token ids are joined
    as they are.

    Errors: `OSError`; `UserMistake` if a column is missing, or holds something else.
    """
    if is_parquet(path, data):
        rows = _rows(path, data, vocabulary, start, stop)
        yield from rows if data.tokens else _separated(rows)
    else:
        yield from _ended(_bytes(path, start, stop))


def _bytes(path: Path, start: float, stop: float) -> Pieces:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        place, end = file.seek(round(start * size)), round(stop * size)
        while place < end and (read := file.read(min(PIECE_BYTES, end - place))):
            place += len(read)
            yield np.frombuffer(read, np.uint8)


def _ended(pieces: Pieces) -> Pieces:
    has_bytes = False
    for piece in pieces:
        has_bytes = has_bytes or len(piece) > 0
        yield piece
    if has_bytes:
        yield np.full(1, SEPARATOR, np.uint8)


def _separated(batches: Iterator[list[bytes]]) -> Pieces:
    """Yield rows of text with a separator between them, and one at the end."""
    first, has_bytes = True, False
    for rows in batches:
        joined = bytes([SEPARATOR]).join(rows if first else [b"", *rows])
        first, has_bytes = first and not rows, has_bytes or len(joined) > 0
        yield np.frombuffer(joined, np.uint8)
    if has_bytes:
        yield np.full(1, SEPARATOR, np.uint8)


def _rows(path: Path, data: DataSpec, vocabulary: int, start: float, stop: float) -> Iterator[Any]:
    """Yield the rows that are not null: text as lists of bytes, token ids as arrays."""
    # Import by name, since pyarrow has no types, and late: it takes a third of a second, which text
    # does not need.
    pa: Any = import_module("pyarrow")
    ds: Any = import_module("pyarrow.dataset")
    try:
        table = ds.dataset(str(path), format="parquet")
        names: list[str] = table.schema.names
        if data.column is None or data.column not in names:
            complaint = "data.column is not set" if data.column is None else f"no {data.column!r}"
            raise UserMistake(f"{path}: {complaint}; its columns are {', '.join(names)}")
        _of_rows(pa.array([], table.schema.field(data.column).type), path, data, vocabulary)
        first, last = 0, sys.maxsize
        if (start, stop) != (0, 1):
            count = table.count_rows(filter=ds.field(data.column).is_valid())
            first, last = round(start * count), round(stop * count)
        row = 0
        options = {"batch_size": PIECE_ROWS, "batch_readahead": 1, "fragment_readahead": 1}
        for batch in table.to_batches(columns=[data.column], **options):
            column = batch.column(0).drop_null()
            begin, end = max(0, first - row), min(len(column), last - row)
            row += len(column)
            if begin < end:
                yield _of_rows(column.slice(begin, end - begin), path, data, vocabulary)
    except (pa.ArrowException, OSError) as error:
        kind = "lists of token ids" if data.tokens else "text (for ids set data.tokens = true)"
        problem = f"column {data.column!r} cannot be read as {kind}"
        raise UserMistake(f"{path}: {problem}: {error}") from error


def _of_rows(column: Any, path: Path, data: DataSpec, vocabulary: int) -> Any:
    pa: Any = import_module("pyarrow")
    pc: Any = import_module("pyarrow.compute")
    if not data.tokens:
        return column.cast(pa.large_binary()).to_pylist()
    ids: NDArray[np.integer[Any]] = pc.list_flatten(column).to_numpy(False)
    if ids.dtype.kind not in "iu":
        problem = f"holds {ids.dtype} values or nulls in its lists, not token ids"
        raise UserMistake(f"{path}: column {data.column!r} {problem}")
    if len(ids) and not 0 <= (low := ids.min()) <= (high := ids.max()) < vocabulary:
        problem = f"token ids run from {low} to {high}, the vocabulary from 0 to {vocabulary - 1}"
        raise UserMistake(f"{path}: {problem}: take the tokenizer that the task was made for")
    return ids.astype(dtype_of(vocabulary))


def dtype_of(vocabulary: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type that holds the vocabulary."""
    return np.min_scalar_type(vocabulary - 1)
