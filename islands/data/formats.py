"""The formats of a source's files, and which format a file has."""

from __future__ import annotations

from enum import StrEnum

from islands.data.buckets import SourceFile

PARQUET = frozenset({".parquet", ".pq"})
ARROW = frozenset({".arrow", ".feather", ".ipc"})
JSON_LINES = frozenset({".jsonl", ".ndjson"})


class FileFormat(StrEnum):
    """The format of a file of a source."""

    TEXT = "text"
    """One document of bytes."""
    JSON_LINES = "JSON lines"
    """A JSON object on each line."""
    PARQUET = "Parquet"
    ARROW = "Arrow"
    """Record batches, as a file or as a stream."""


def format_of(file: SourceFile, column: str | None) -> FileFormat:
    """Return the format of a file.

    JSON lines without a column are text. A file with another suffix is text without a column, and
    Parquet with one.
    """
    suffix = file.suffix.lower()
    if suffix in PARQUET:
        return FileFormat.PARQUET
    if suffix in ARROW:
        return FileFormat.ARROW
    if column is None:
        return FileFormat.TEXT
    return FileFormat.JSON_LINES if suffix in JSON_LINES else FileFormat.PARQUET


def is_table(file: SourceFile, column: str | None) -> bool:
    """Return whether a file of this suffix is read by rows, and not as text."""
    suffix = file.suffix.lower()
    return suffix in PARQUET | ARROW or (column is not None and suffix in JSON_LINES)
