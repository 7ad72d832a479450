"""The documents of a file as token ids, with the ends of the documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.data.chat import ChatEncoder, Unfit
from islands.data.damage import UNANSWERED, Damage, DamageKind
from islands.data.documents import DocumentFile, IdBatch, TextBatch
from islands.data.text_tokens import TextEncoder


@dataclass(frozen=True, slots=True, eq=False)
class EncodedBatch:
    """Consecutive token ids of a file."""

    ids: NDArray[np.unsignedinteger[Any]]
    """Token ids, joined."""
    ends: NDArray[np.int64]
    """The places in `ids` behind the documents that end here."""
    place: int
    """The place of the file behind them."""
    answers: NDArray[np.bool_] | None = None
    """Whether the loss counts each token; None: it counts all."""


def dtype_of(vocabulary: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type that holds the vocabulary."""
    return np.min_scalar_type(vocabulary - 1)


def encoded(
    file: DocumentFile,
    encoder: TextEncoder,
    start: int,
    stop: int,
    damage: Damage,
    *,
    resumed: bool = False,
) -> Iterator[EncodedBatch]:
    """Yield the texts between two places as token ids; each document ends with the end token.

    `resumed`: `start` may lie within a document. Empty documents are counted, and have no token.

    Errors: `OSError`; `UserMistake` if the file cannot be read; the errors of `Damage.found`.
    """
    dtype = dtype_of(encoder.vocabulary)
    begun = np.array(encoder.start, dtype)
    ending = np.array([encoder.end_token], dtype)
    for batch in file.texts(start, stop, damage, resumed=resumed):
        parts, ends, size = list[NDArray[Any]](), list[int](), 0
        texts = _valid(file, batch, damage) if encoder.needs_utf8 else batch.texts
        if batch.is_whole:
            kept = [text for text in texts if text]
            damage.empty(len(texts) - len(kept))
            texts = kept
        for ids in encoder.encode(texts):
            parts += [begun, ids] if batch.begins else [ids]
            size += len(ids) + (len(begun) if batch.begins else 0)
            if batch.ends:
                parts.append(ending)
                size += 1
                ends.append(size)
        joined = np.concatenate([np.zeros(0, dtype), *parts], dtype=dtype, casting="unsafe")
        yield EncodedBatch(joined, np.array(ends, np.int64), batch.place)


def conversed(
    file: DocumentFile, encoder: ChatEncoder, start: int, stop: int, damage: Damage
) -> Iterator[EncodedBatch]:
    """Yield the conversations between two places as token ids, with the tokens of the answers.

    Conversations without an answer are left out and counted.

    Errors: the errors of `encoded`.
    """
    dtype = dtype_of(encoder.vocabulary)
    for values, places, place in file.values(start, stop, damage):
        texts, unanswered = list[tuple[str, list[tuple[int, int]]]](), 0
        for value, end in zip(values, places, strict=True):
            try:
                text, spans = encoder.written(value)
            except Unfit as error:
                where = f"{file.file}: the conversation that ends at byte {end:,}"
                damage.found(DamageKind.NO_CHAT, f"{where} cannot be used: {error}")
                continue
            unanswered += not spans
            texts += [(text, spans)] if spans else []
        damage.empty(unanswered, UNANSWERED)
        found = encoder.encoded(texts)
        ids = np.concatenate([np.zeros(0, np.int64), *(each.ids for each in found)])
        answers = np.concatenate([np.zeros(0, bool), *(each.answers for each in found)])
        ends = np.cumsum([len(each.ids) for each in found], dtype=np.int64)
        if len(ids) and (largest := int(ids.max())) >= encoder.vocabulary:
            raise UserMistake(
                f"{file.file}: the chat template writes the id {largest:,}, and neither text nor "
                f"template has one above {encoder.vocabulary - 1:,}: name the special token in the "
                "template"
            )
        yield EncodedBatch(ids.astype(dtype), ends, place, answers)


def _valid(file: DocumentFile, batch: TextBatch, damage: Damage) -> list[bytes]:
    """Return the texts that are UTF-8; the others are damage. A piece is left empty."""
    found = list[bytes]()
    for text, place in zip(batch.texts, batch.places, strict=True):
        try:
            text.decode()
        except UnicodeDecodeError as error:
            byte = f"byte {error.start:,} of the document"
            where = f"row {place - 1:,}"
            if file.is_lines:
                byte = f"byte {place - len(text) + error.start:,}"
                where = "the document" if not batch.is_whole else f"the line before byte {place:,}"
            damage.found(
                DamageKind.NOT_UTF8,
                f"{file.file}: {where} is not UTF-8 at {byte} (0x{text[error.start]:02x}): convert "
                "it, for example with iconv",
            )
            found += [] if batch.is_whole else [b""]
        else:
            found.append(text)
    return found


def numbered(
    file: DocumentFile, vocabulary: int, start: int, stop: int, damage: Damage
) -> Iterator[EncodedBatch]:
    """Yield the documents between two places that are token ids already.

    Errors: the errors of `encoded`; `UserMistake` if an id is outside the vocabulary.
    """
    dtype = dtype_of(vocabulary)
    for batch in file.ids(start, stop, damage):
        if problem := outside(batch, vocabulary):
            raise UserMistake(f"{file.file}: {problem}")
        damage.empty(int(np.count_nonzero(batch.lengths == 0)))
        ends = np.cumsum(batch.lengths[batch.lengths > 0])
        yield EncodedBatch(batch.ids.astype(dtype), ends, batch.place)


def outside(batch: IdBatch, vocabulary: int) -> str:
    """Return the problem if an id is outside the vocabulary; empty if none is."""
    if not len(batch.ids):
        return ""
    low, high = int(batch.ids.min()), int(batch.ids.max())
    if low >= 0 and high < vocabulary:
        return ""
    return (
        f"token ids run from {low} to {high}, the vocabulary from 0 to {vocabulary - 1}: "
        "take the tokenizer that the task was made for"
    )
