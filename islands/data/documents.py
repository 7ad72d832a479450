"""The documents of a file, whatever its format, from any place of the file on.

A place is a byte of a text or of JSON lines, and a row of a table. Reading can begin again at the
place behind any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from islands.data import tables
from islands.data.buckets import SourceFile, size_of
from islands.data.damage import Damage
from islands.data.formats import FileFormat, format_of
from islands.data.json_lines import (
    TextPiece,
    ids_of,
    line_start,
    lines,
    text_of,
    text_pieces,
    value_of,
)
from islands.data.tables import TableFile


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Consecutive texts of a file."""

    texts: list[bytes]
    """Documents in order, or one piece of a document."""
    places: list[int]
    """The place of the file behind each text."""
    place: int
    """The place of the file behind the batch."""
    is_whole: bool
    """Whether these are whole documents, and not a piece of one."""
    begins: bool
    """Whether the first text begins a document."""
    ends: bool
    """Whether the last text ends its document."""


@dataclass(frozen=True, slots=True, eq=False)
class IdBatch:
    """Consecutive documents of a file that are token ids already."""

    ids: NDArray[np.integer[Any]]
    """The ids of all documents, joined."""
    lengths: NDArray[np.int64]
    """The number of ids of each document."""
    place: int
    """The place of the file behind the batch."""


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """A file of a source, with the keys of `[data]` that select its documents."""

    file: SourceFile
    column: str | None
    """The column or field with the documents; None: the file is one text."""
    tokens: bool
    """Whether it holds lists of token ids."""

    @property
    def format(self) -> FileFormat:
        """The format of the file."""
        return format_of(self.file, self.column)

    @property
    def is_lines(self) -> bool:
        """Whether places are bytes, and not rows."""
        return self.format in (FileFormat.TEXT, FileFormat.JSON_LINES)

    @property
    def table(self) -> TableFile:
        """The file as a table."""
        return TableFile(self.file, self.format, self.column)

    def extent(self) -> int:
        """Return the place behind the last document.

        Errors: `OSError`; `UserMistake` if the file cannot be read.
        """
        return size_of(self.file) if self.is_lines else self.table.count()

    def place_at(self, share: float) -> int:
        """Return the place at this share of the file, where a line or a row begins.

        Errors: the errors of `extent`.
        """
        place = round(share * self.extent())
        return line_start(self.file, place) if self.is_lines else place

    def check(self) -> None:
        """Check that the column is there and has the right type, if the file has a schema.

        Errors: `OSError`; `UserMistake`.
        """
        if not self.is_lines:
            tables.check_type(self.table, tokens=self.tokens)

    def texts(
        self, start: int, stop: int, damage: Damage, *, resumed: bool = False
    ) -> Iterator[TextBatch]:
        """Yield the texts between two places.

        `resumed`: `start` may lie within a document.

        Errors: `OSError`; `UserMistake` if the file cannot be read; the errors of `Damage.found`.
        """
        match self.format:
            case FileFormat.TEXT:
                if start == stop and not resumed:
                    damage.empty(1)
                begins = not resumed
                for piece in text_pieces(self.file, start, stop):
                    yield _piece(piece, begins=begins)
                    begins = False
            case FileFormat.JSON_LINES:
                for found in lines(self.file, start, stop, damage):
                    yield self._line_texts(found, damage)
            case FileFormat.PARQUET | FileFormat.ARROW:
                for rows in self.table.rows(start, stop, damage):
                    pairs = tables.text_rows(self.table, rows, damage)
                    yield _whole(pairs, rows.stop)

    def _line_texts(self, found: list[tuple[int, bytes]], damage: Damage) -> TextBatch:
        assert self.column is not None
        pairs = list[tuple[int, bytes]]()
        for end, line in found:
            value = value_of(self.file, end, line, self.column, damage)
            if (text := text_of(self.file, end, value, damage)) is not None:
                pairs.append((end, text))
        return _whole(pairs, found[-1][0])

    def values(
        self, start: int, stop: int, damage: Damage
    ) -> Iterator[tuple[list[Any], list[int], int]]:
        """Yield the values of the field of JSON lines, the byte behind each, and behind all.

        Errors: `OSError`; the errors of `Damage.found`.
        """
        assert self.column is not None, "lines have fields"
        for found in lines(self.file, start, stop, damage):
            pairs = [(value_of(self.file, e, line, self.column, damage), e) for e, line in found]
            kept = [pair for pair in pairs if pair[0] is not None]
            yield [value for value, _ in kept], [end for _, end in kept], found[-1][0]

    def ids(self, start: int, stop: int, damage: Damage) -> Iterator[IdBatch]:
        """Yield the documents of token ids between two places.

        Errors: the errors of `texts`.
        """
        if self.format is not FileFormat.JSON_LINES:
            for rows in self.table.rows(start, stop, damage):
                yield IdBatch(*tables.ids(self.file, self.column, rows), rows.stop)
            return
        assert self.column is not None
        for found in lines(self.file, start, stop, damage):
            arrays = list[NDArray[np.int64]]()
            for end, line in found:
                value = value_of(self.file, end, line, self.column, damage)
                if (each := ids_of(self.file, end, value, damage)) is not None:
                    arrays.append(each)
            joined = np.concatenate([np.zeros(0, np.int64), *arrays])
            lengths = np.array([len(each) for each in arrays], np.int64)
            yield IdBatch(joined, lengths, found[-1][0])


def _whole(pairs: list[tuple[int, bytes]], place: int) -> TextBatch:
    texts, places = [text for _, text in pairs], [end for end, _ in pairs]
    return TextBatch(texts, places, place, is_whole=True, begins=True, ends=True)


def _piece(piece: TextPiece, *, begins: bool) -> TextBatch:
    texts, places = [piece.content], [piece.end]
    return TextBatch(texts, places, piece.end, False, begins, piece.is_last)
