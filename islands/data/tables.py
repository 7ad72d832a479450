"""Columns of Parquet and Arrow files, from any row on; only some rows are in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.data.buckets import SourceFile
from islands.data.damage import Damage, DamageKind
from islands.data.formats import PARQUET, FileFormat
from islands.data.json_lines import LARGEST_DOCUMENT_BYTES

BATCH_BYTES, BATCH_ROWS = 2**23, 2**13
"""The bytes that a batch of rows should have, and the most rows of one."""
MAGIC = b"ARROW1"
"""The first bytes of an Arrow file; a stream has others."""
TAIL_SHOWN = 200
"""Characters of an error of Arrow that a message shows."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRows:
    """Consecutive rows of one column."""

    column: Any
    """A `pyarrow.Array`, nulls included."""
    start: int
    """The number of the first row in the file."""

    @property
    def stop(self) -> int:
        """The number of the row behind the last one."""
        return self.start + len(self.column)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet or Arrow file, and the column of it that is read."""

    file: SourceFile
    format: FileFormat
    column: str | None

    def rows(self, start: int, stop: int, damage: Damage) -> Iterator[ColumnRows]:
        """Yield the rows from `start` to `stop`, some at a time.

        Errors: `OSError`; `UserMistake` if the file or the column cannot be read; the errors of
        `Damage.found`.
        """
        read = _parquet_rows if self.format is FileFormat.PARQUET else _arrow_rows
        for rows in read(self, start, stop, damage):
            begin, end = max(0, start - rows.start), min(len(rows.column), stop - rows.start)
            if begin < end:
                yield ColumnRows(rows.column.slice(begin, end - begin), rows.start + begin)

    def count(self) -> int:
        """Return the number of rows.

        Errors: `OSError`; `UserMistake` if it is no such file.
        """
        if self.format is FileFormat.PARQUET:
            with _parquet(self) as table:
                return table.metadata.num_rows
        pa: Any = import_module("pyarrow")
        found = 0
        with _arrow(self) as (_, batches):
            try:
                for batch in batches:
                    found += batch.num_rows
            except (pa.ArrowException, OSError):
                return found + 1  # there are more rows, and `rows` reports the damage
        return found

    def valid(self, damage: Damage) -> int:
        """Return the number of rows that are not null; it reads the column.

        Errors: the errors of `rows`.
        """
        everything = self.rows(0, self.count(), damage)
        return sum(len(rows.column) - rows.column.null_count for rows in everything)

    def checked(self, names: list[str]) -> str:
        """Return the column, which must be one of these.

        Errors: `UserMistake`.
        """
        if self.column is None or self.column not in names:
            missing = "data.column is not set" if self.column is None else f"no {self.column!r}"
            raise UserMistake(f"{self.file}: {missing}; its columns are {', '.join(names)}")
        return self.column


@contextmanager
def _plainly(file: SourceFile, what: str) -> Generator[None]:
    pa: Any = import_module("pyarrow")
    try:
        yield
    except pa.ArrowException as error:
        raise UserMistake(f"{file} cannot be read as {what}: {_short(error)}") from error


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= TAIL_SHOWN else text[:TAIL_SHOWN] + " ..."


@contextmanager
def _parquet(table: TableFile) -> Generator[Any]:
    pq: Any = import_module("pyarrow.parquet")
    suffix, what = table.file.suffix, "Parquet"
    if suffix.lower() not in PARQUET:
        what = f"Parquet, as which a file {suffix or 'without a suffix'} is read (for JSON lines "
        what += "name it .jsonl, for Arrow .arrow)"
    with ExitStack() as stack:
        stream = stack.enter_context(table.file.open("rb"))
        with _plainly(table.file, what):
            found = pq.ParquetFile(stream, page_checksum_verification=True)
        yield found


def _parquet_rows(table: TableFile, start: int, stop: int, damage: Damage) -> Iterator[ColumnRows]:
    pa: Any = import_module("pyarrow")
    with _parquet(table) as parquet:
        column = table.checked(parquet.schema_arrow.names)
        first = 0
        for group in range(parquet.metadata.num_row_groups):
            facts = parquet.metadata.row_group(group)
            begin, first = first, first + facts.num_rows
            if first <= start or begin >= stop:
                continue
            size = min(BATCH_ROWS, max(1, BATCH_BYTES * facts.num_rows // _bytes(facts, column)))
            row = begin
            batches = parquet.iter_batches(size, row_groups=[group], columns=[column])
            while True:
                try:
                    batch = next(batches, None)
                except (pa.ArrowException, OSError) as error:
                    damage.found(
                        DamageKind.ROW_GROUP,
                        f"{table.file}: row group {group} (rows {begin:,} to {first - 1:,}) is "
                        f"damaged from row {row:,} on: {_short(error)}",
                    )
                    break
                if batch is None:
                    break
                yield ColumnRows(batch.column(0), row)
                row += batch.num_rows


def _bytes(group: Any, column: str) -> int:
    """Return the bytes of a column in a row group, decoded."""
    found = [group.column(number) for number in range(group.num_columns)]
    return 1 + sum(
        each.total_uncompressed_size
        for each in found
        if each.path_in_schema == column or each.path_in_schema.startswith(f"{column}.")
    )


@contextmanager
def _arrow(table: TableFile) -> Generator[tuple[list[str], Iterator[Any]]]:
    """Open an Arrow file or stream: its columns, and its record batches."""
    pa: Any = import_module("pyarrow")
    ipc: Any = import_module("pyarrow.ipc")
    file = table.file
    with ExitStack() as stack, _plainly(file, "Arrow"):
        if isinstance(file, Path):
            stream = stack.enter_context(pa.memory_map(str(file)))  # rows that no one needs stay
        else:
            stream = stack.enter_context(file.open("rb"))
        is_file = stream.read(len(MAGIC)) == MAGIC
        stream.seek(0)
        reader = ipc.open_file(stream) if is_file else ipc.open_stream(stream)
        batches = (
            (reader.get_batch(number) for number in range(reader.num_record_batches))
            if is_file
            else iter(reader)
        )
        yield reader.schema.names, batches


def _arrow_rows(table: TableFile, start: int, stop: int, damage: Damage) -> Iterator[ColumnRows]:
    """Yield rows; nothing behind a damaged batch can be found, so it ends the file."""
    pa: Any = import_module("pyarrow")
    with _arrow(table) as (names, batches):
        column, row = table.checked(names), 0
        while row < stop:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                damage.found(
                    DamageKind.BATCH,
                    f"{table.file}: the record batch at row {row:,} is damaged: {_short(error)}",
                )
                return
            if batch is None:
                return
            if row + batch.num_rows > start:
                whole = batch.column(batch.schema.get_field_index(column))
                size = max(1, BATCH_BYTES * len(whole) // (1 + whole.nbytes))
                size = min(BATCH_ROWS, size)
                for begin in range(0, len(whole), size):
                    yield ColumnRows(whole.slice(begin, size), row + begin)
            row += batch.num_rows


def check_type(table: TableFile, *, tokens: bool) -> None:
    """Check that the column holds text, or lists of token ids.

    Errors: `UserMistake`; `OSError`.
    """
    pa: Any = import_module("pyarrow")
    if table.format is FileFormat.PARQUET:
        with _parquet(table) as parquet:
            schema = parquet.schema_arrow
            kind = schema.field(table.checked(schema.names)).type
    else:
        with _arrow(table) as (names, batches):
            batch = next(batches, None)
            column = table.checked(names)
            if batch is None:
                return
            kind = batch.schema.field(column).type
    empty = ColumnRows(pa.array([], kind), 0)
    ids(table.file, table.column, empty) if tokens else text_rows(table, empty, Damage(skip=True))


def text_rows(table: TableFile, rows: ColumnRows, damage: Damage) -> list[tuple[int, bytes]]:
    """Return the texts that are not null, each with the number of the row behind it.

    ColumnRows that are too large are damage.

    Errors: `UserMistake` if the column holds no text; the errors of `Damage.found`.
    """
    pa: Any = import_module("pyarrow")
    pc: Any = import_module("pyarrow.compute")
    try:
        column = rows.column.cast(pa.large_binary())
    except pa.ArrowException as error:
        problem = f"column {table.column!r} cannot be read as text (for ids set data.tokens = true)"
        raise UserMistake(f"{table.file}: {problem}: {_short(error)}") from error
    sizes = pc.binary_length(column)
    if (pc.max(sizes).as_py() or 0) <= LARGEST_DOCUMENT_BYTES:
        texts = column.to_pylist()
        ends = range(rows.start + 1, rows.stop + 1)
        return [(end, text) for end, text in zip(ends, texts, strict=True) if text is not None]
    found: list[tuple[int, bytes]] = []
    for number, size in enumerate(sizes.to_pylist()):
        row = rows.start + number
        if size is None:
            continue
        if size > LARGEST_DOCUMENT_BYTES:
            damage.found(
                DamageKind.TOO_LARGE,
                f"{table.file}: row {row:,} has {size:,} bytes, more than "
                f"{LARGEST_DOCUMENT_BYTES:,}",
            )
        else:
            found.append((row + 1, column[number].as_py()))
    return found


def ids(
    file: SourceFile, column: str | None, rows: ColumnRows
) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Return the token ids of the rows that are not null, joined, and the length of each row.

    Errors: `UserMistake` if the column holds something else.
    """
    pa: Any = import_module("pyarrow")
    pc: Any = import_module("pyarrow.compute")
    try:
        lists = rows.column.drop_null()
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        found: NDArray[np.integer[Any]] = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        problem = f"column {column!r} cannot be read as lists of token ids"
        raise UserMistake(f"{file}: {problem}: {_short(error)}") from error
    if found.dtype.kind not in "iu":
        problem = f"holds {found.dtype} values or nulls in its lists, not token ids"
        raise UserMistake(f"{file}: column {column!r} {problem}")
    return found, lengths
