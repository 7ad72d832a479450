"""Text in pieces, and JSON lines, from any byte of a file on; only one piece is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from islands.data.buckets import SourceFile, size_of
from islands.data.damage import Damage, DamageKind

PIECE_BYTES = 2**20
"""Bytes that are read at once."""
LARGEST_DOCUMENT_BYTES = 2**26
"""The size above which a line or a row is damage and no document: 64 MiB.

A file without line ends, or with the wrong column, is found by it before it fills the memory.
"""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Consecutive bytes of a document."""

    content: bytes
    end: int
    """The byte of the file behind the piece."""
    is_last: bool
    """Whether the document ends here."""


def text_pieces(
    file: SourceFile, start: int, stop: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[TextPiece]:
    """Yield a text from byte `start` to `stop` in pieces that end behind a line.

    A line that is longer than a piece is cut behind a space, or else behind a character.

    Errors: `OSError`.
    """
    with file.open("rb") as stream:
        place, rest = stream.seek(start), b""
        while place < stop:
            read = stream.read(min(piece_bytes, stop - place))
            if not read:
                raise OSError(f"{file} ends at byte {place}, before byte {stop}")
            place, rest = place + len(read), rest + read
            if place >= stop:
                break
            if cut := _cut(rest):
                yield TextPiece(rest[:cut], place - len(rest) + cut, is_last=False)
                rest = rest[cut:]
        if stop > start:
            yield TextPiece(rest, stop, is_last=True)


def _cut(text: bytes) -> int:
    """Return where to cut: behind the last line, else behind a space, else before a character."""
    for separator in (b"\n", b" "):
        if cut := text.rfind(separator) + 1:
            return cut
    cut = len(text)
    while cut and len(text) - cut < 4 and text[cut - 1] & 0xC0 == 0x80:  # inside a character
        cut -= 1
    return max(0, cut - 1)


def line_start(file: SourceFile, place: int) -> int:
    """Return where the first line begins that starts at this byte or behind it.

    Errors: `OSError`.
    """
    size = size_of(file)
    if place <= 0:
        return 0
    with file.open("rb") as stream:
        stream.seek(min(place, size) - 1)
        position = min(place, size) - 1
        while read := stream.read(PIECE_BYTES):
            if (found := read.find(b"\n")) >= 0:
                return position + found + 1
            position += len(read)
    return size


def lines(
    file: SourceFile, start: int, stop: int, damage: Damage, piece_bytes: int = PIECE_BYTES
) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the lines from byte `start` to `stop` in lists, each line with the byte behind it.

    `start` is where a line begins. Lines that are too large are damage.

    Errors: `OSError`; the errors of `Damage.found`.
    """
    with file.open("rb") as stream:
        place, line_start = stream.seek(start), start
        rest, skipping, skipped = list[bytes](), False, 0
        while place < stop and (read := stream.read(min(piece_bytes, stop - place))):
            place += len(read)
            head, newline, tail = read.rpartition(b"\n")
            found = list[tuple[int, bytes]]()
            for line in b"".join([*rest, head]).split(b"\n") if newline else []:
                begin, line_start = line_start, line_start + skipped + len(line) + 1
                if skipping:  # the end of a line that is damage already
                    skipping, skipped = False, 0
                elif len(line) > LARGEST_DOCUMENT_BYTES:
                    _too_large(file, begin, damage)
                elif line.strip():
                    found.append((line_start, line))
            if found:
                yield found
            rest = [tail] if newline else [*rest, tail]
            if not skipping and place - line_start > LARGEST_DOCUMENT_BYTES:
                _too_large(file, line_start, damage)
                skipping = True
            if skipping:
                skipped, rest = skipped + sum(map(len, rest)), []
        if not skipping and (line := b"".join(rest)).strip():
            yield [(place, line)]


def _too_large(file: SourceFile, begins: int, damage: Damage) -> None:
    damage.found(
        DamageKind.TOO_LARGE,
        f"{file}: the line at byte {begins:,} has more than {LARGEST_DOCUMENT_BYTES:,} bytes",
    )


def value_of(file: SourceFile, end: int, line: bytes, column: str, damage: Damage) -> Any:
    """Return the value of a field of a line; None for null, and for damage that is skipped.

    Errors: the errors of `Damage.found`.
    """
    where = f"{file}: the line that ends at byte {end:,}"
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        damage.found(DamageKind.NOT_UTF8, f"{where} is not UTF-8: {error.reason}")
        return None
    except (ValueError, RecursionError) as error:
        damage.found(DamageKind.NOT_JSON, f"{where} is not JSON: {error}")
        return None
    if not isinstance(row, dict) or column not in row:
        fields = f"its fields are {', '.join(row)}" if isinstance(row, dict) else "it is no object"
        damage.found(DamageKind.NOT_JSON, f"{where} has no field {column!r}; {fields}")
        return None
    return row[column]


def text_of(file: SourceFile, end: int, value: object, damage: Damage) -> bytes | None:
    """Return the text of a value as UTF-8; None for null, and for damage that is skipped.

    Errors: the errors of `Damage.found`.
    """
    if value is None:
        return None
    where = f"{file}: the line that ends at byte {end:,}"
    if not isinstance(value, str):
        kind = type(value).__name__
        damage.found(DamageKind.NOT_JSON, f"{where} has a {kind} in the field, not text")
        return None
    try:
        return value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        damage.found(DamageKind.NOT_UTF8, f"{where} is not UTF-8: {error.reason}")
        return None


def ids_of(file: SourceFile, end: int, value: object, damage: Damage) -> Any:
    """Return the token ids of a value as int64; None for null, and for damage that is skipped.

    Errors: the errors of `Damage.found`.
    """
    if value is None:
        return None
    is_list = isinstance(value, list) and all(type(each) is int for each in value)
    if not is_list:
        where = f"{file}: the line that ends at byte {end:,}"
        damage.found(DamageKind.NOT_JSON, f"{where} has no list of token ids in the field")
        return None
    try:
        return np.array(value, np.int64)
    except OverflowError:
        where = f"{file}: the line that ends at byte {end:,}"
        damage.found(DamageKind.NOT_JSON, f"{where} has a token id of more than 64 bits")
        return None
