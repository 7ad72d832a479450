"""The tokens of a file of a source, some at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from islands.data import tables
from islands.data.buckets import BucketFile, SourceFile
from islands.data.damage import Damage
from islands.data.documents import DocumentFile
from islands.data.encoding import dtype_of, encoded, numbered
from islands.data.formats import FileFormat
from islands.data.text_tokens import SEPARATOR, TextEncoder
from islands.sources import DataSpec, Tokens

Pieces: TypeAlias = Iterator[Tokens]
"""An iterator over consecutive tokens."""
PIECE_BYTES = 2**24
"""The bytes of a text that are in memory at once."""


def is_text(file: SourceFile, data: DataSpec) -> bool:
    """Return whether the tokens of a file are its bytes."""
    document = DocumentFile(file, data.column, data.tokens)
    return data.tokenizer is None and document.format is FileFormat.TEXT


def tokens_of(
    file: SourceFile,
    data: DataSpec,
    vocabulary: int,
    start: float,
    stop: float,
    damage: Damage,
    encoder: TextEncoder | None = None,
) -> Pieces:
    """Yield the share [start, stop) of a file's bytes, lines or rows as tokens, some at a time.

    Documents of text end with a separator, or with the end token of the encoder, unless the file is
    empty; rows of token ids are joined as they are.

    Errors: `OSError`; `UserMistake` if a column is missing, or holds something else; the errors of
    `Damage.found`.
    """
    if is_text(file, data):
        yield from _ended(_bytes(file, start, stop))
        return
    document = DocumentFile(file, data.column, data.tokens)
    document.check()
    first, last = _places(document, start, stop)
    if data.tokens:
        for batch in numbered(document, vocabulary, first, last, damage):
            yield batch.ids.astype(dtype_of(vocabulary))
    elif encoder is None:
        yield from _separated(batch.texts for batch in document.texts(first, last, damage))
    else:
        for batch in encoded(document, encoder, first, last, damage):
            yield batch.ids


def _places(document: DocumentFile, start: float, stop: float) -> tuple[int, int]:
    """Return the places of a share; rows are shared by the number of those that are not null."""
    if (start, stop) == (0, 1):
        return 0, document.extent()
    if document.is_lines:
        return document.place_at(start), document.place_at(stop)
    count = document.table.valid(Damage(skip=True))
    first = 0 if start == 0 else _row(document.table, round(start * count))
    last = document.extent() if stop == 1 else _row(document.table, round(stop * count))
    return first, last


def _row(table: tables.TableFile, valid: int) -> int:
    """Return the row behind this many rows that are not null."""
    if valid == 0:
        return 0
    for rows in table.rows(0, table.count(), Damage(skip=True)):
        here = len(rows.column) - rows.column.null_count
        if here >= valid:
            places: NDArray[np.int64] = np.flatnonzero(
                rows.column.is_valid().to_numpy(zero_copy_only=False)
            )
            return rows.start + int(places[valid - 1]) + 1
        valid -= here
    return table.count()


def _bytes(file: SourceFile, start: float, stop: float) -> Pieces:
    with file.open("rb") as stream:
        # Streams of GCS cannot be placed at their end.
        size = file.size if isinstance(file, BucketFile) else stream.seek(0, os.SEEK_END)
        place, end = stream.seek(round(start * size)), round(stop * size)
        while place < end and (read := stream.read(min(PIECE_BYTES, end - place))):
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
