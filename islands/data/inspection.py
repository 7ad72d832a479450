"""The figures and the problems of a source: `archipelago data inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from coordinator.errors import UserMistake
from islands.data import token_index
from islands.data.buckets import SourceFile, plain_uri, size_of
from islands.data.chat import ChatEncoder, template_of
from islands.data.damage import Damage
from islands.data.documents import DocumentFile
from islands.data.encoding import EncodedBatch, conversed, encoded, numbered
from islands.data.text_tokens import (
    BYTES,
    ByteEncoder,
    HuggingFaceEncoder,
    TextEncoder,
    encoder_of,
    tokenizer_bytes,
)
from islands.data.token_index import DTYPES, TokenDirectory
from islands.data.tokenize_plan import check_lines, document_files
from islands.sources import DataSpec

READ_BYTES = 2**26
"""Bytes of a source that are read, unless all are wanted: 64 MiB."""
SAMPLES, SAMPLE_CHARACTERS, SAMPLE_TOKENS = 3, 160, 64
"""Documents that are shown, the characters of each, and the ids of each."""
LARGEST_ID = int(np.iinfo(DTYPES[-1]).max)


@dataclass(slots=True)
class SourceFacts:
    """The facts of a source."""

    source: str
    kind: str
    """The format of the files, or "token directory"."""
    files: int
    bytes: int
    """Bytes of all files."""
    complete: bool = True
    """Whether everything was read; else the other figures are those of the part that was."""
    documents: int = 0
    """Documents, without the empty ones."""
    tokens: int = 0
    """Token ids: bytes without a tokenizer, with one token behind each document."""
    longest_document: int = 0
    """Tokens of the longest document."""
    largest_id: int = 0
    """The largest id that was found, or in a token directory the largest possible one."""
    answers: int | None = None
    """Tokens that the loss counts; None: it counts all."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Empty and damaged parts, by kind, with their number."""
    problems: list[str] = field(default_factory=list[str])
    """Messages about damaged parts and files; at most a few of each."""
    samples: list[str] = field(default_factory=list[str])
    """The beginnings of the first documents."""

    @property
    def masked_share(self) -> float | None:
        """The share of the tokens that the loss does not count; None: it counts all."""
        return None if self.answers is None else 1 - self.answers / max(1, self.tokens)


def inspected(data: DataSpec, *, everything: bool = False, chat: bool = False) -> SourceFacts:
    """Return the facts of a source; `chat`: its field holds conversations.

    Of a token directory the index is read, and with `everything` also the digests are checked. Of
    other sources `READ_BYTES` are read, or with `everything` all bytes.

    Errors: `UserMistake` if there is no such source, or its column or tokenizer cannot be read.
    """
    if (directory := token_index.opened(data.source)) is not None:
        return _of_directory(directory, data, everything=everything)
    files = document_files(data)
    sizes = [size_of(file.file) for file in files]
    kinds = sorted({file.format.value for file in files})
    facts = SourceFacts(plain_uri(data.source), ", ".join(kinds), len(files), sum(sizes))
    encoder: TextEncoder = ByteEncoder()
    content = None if data.tokenizer is None else tokenizer_bytes(data.tokenizer)
    if content is not None and data.tokenizer is not None:
        encoder = encoder_of(content, data.tokenizer, data.end_token)
    of_chat = None
    if chat:
        check_lines(files)
        of_chat, facts.answers = ChatEncoder(encoder, content, template_of(data.tokenizer)), 0
    damage = Damage(skip=True)
    left = facts.bytes if everything else READ_BYTES
    for file, size in zip(files, sizes, strict=True):
        if left <= 0:
            facts.complete = False
            break
        try:
            file.check()
            batches = _batches(file, file.extent(), encoder, of_chat, damage)
            left = _count(facts, file, size, left, batches, encoder)
        except (UserMistake, OSError) as error:
            facts.problems.append(str(error))
    facts.left_out = dict(damage.counts)
    facts.problems += damage.messages
    return facts


def _count(
    facts: SourceFacts,
    file: DocumentFile,
    size: int,
    left: int,
    batches: Iterator[EncodedBatch],
    encoder: TextEncoder,
) -> int:
    """Add a file to the facts; return how many bytes are left to read."""
    extent, begun = file.extent(), 0
    for batch in batches:
        if facts.answers is not None and batch.answers is not None:
            facts.answers += int(np.count_nonzero(batch.answers))
        facts.documents += len(batch.ends)
        facts.tokens += len(batch.ids)
        facts.largest_id = max(facts.largest_id, int(batch.ids.max(initial=0)))
        lengths = np.diff(batch.ends, prepend=-begun)
        facts.longest_document = max(facts.longest_document, int(lengths.max(initial=0)))
        begun = (
            begun + len(batch.ids) if not len(batch.ends) else int(len(batch.ids) - batch.ends[-1])
        )
        facts.longest_document = max(facts.longest_document, begun)
        if len(facts.samples) < SAMPLES:
            facts.samples += _samples(batch, encoder, tokens=file.tokens)
            del facts.samples[SAMPLES:]
        if size * batch.place > left * max(1, extent) and batch.place < extent:
            facts.complete = False
            return 0
    return left - size


def _batches(
    file: DocumentFile,
    extent: int,
    encoder: TextEncoder,
    chat: ChatEncoder | None,
    damage: Damage,
) -> Iterator[EncodedBatch]:
    if chat is not None:
        return conversed(file, chat, 0, extent, damage)
    if file.tokens:
        return numbered(file, LARGEST_ID, 0, extent, damage)
    return encoded(file, encoder, 0, extent, damage)


def _samples(batch: EncodedBatch, encoder: TextEncoder, *, tokens: bool) -> list[str]:
    bounds = [0, *batch.ends[:SAMPLES].tolist()]
    if len(bounds) == 1:
        bounds.append(len(batch.ids))
    found: list[str] = []
    for start, stop in pairwise(bounds):
        ids = batch.ids[start : min(stop, start + SAMPLE_TOKENS)].tolist()
        found.append(" ".join(map(str, ids)) if tokens else _text(ids, encoder))
    return found


def _text(ids: list[int], encoder: TextEncoder) -> str:
    ids = [each for each in ids if each != encoder.end_token]
    if isinstance(encoder, HuggingFaceEncoder):
        text: str = encoder.tokenizer.decode(ids)
    else:
        text = bytes(ids).decode(errors="replace")
    return " ".join(text.split())[:SAMPLE_CHARACTERS]


# --- token directories ----------------------------------------------------------------------------


def _of_directory(directory: TokenDirectory, data: DataSpec, *, everything: bool) -> SourceFacts:
    index = directory.index
    width = np.dtype(index.dtype).itemsize
    facts = SourceFacts(
        source=directory.name,
        kind="token directory",
        files=len(index.shards),
        bytes=index.tokens * width,
        complete=everything,
        documents=index.documents,
        tokens=index.tokens,
        largest_id=index.vocabulary - 1,
        answers=index.answers if index.masked else None,
        left_out=dict(index.left_out),
    )
    try:
        facts.problems += directory.damaged() if everything else []
        first = _first_documents(directory)
        if everything:
            facts.longest_document = _longest(directory)
    except OSError as error:
        facts.problems.append(f"{directory.name} cannot be read: {error}")
        return facts
    encoder = _encoder(directory, replace(data, end_token=index.end_token))
    ids_only = encoder is None
    facts.samples = _samples(first, encoder or ByteEncoder(), tokens=ids_only)[:SAMPLES]
    return facts


def _first_documents(directory: TokenDirectory) -> EncodedBatch:
    """Return the beginnings of the first documents."""
    dtype = np.dtype(directory.index.dtype).newbyteorder("<")
    bounds = [0, *_ends(directory.ends[0])[:SAMPLES].tolist()]
    if len(bounds) == 1:
        bounds.append(directory.index.shards[0].tokens)
    parts: list[Any] = []
    with directory.files[0].open("rb") as stream:
        for start, stop in pairwise(bounds):
            stream.seek(start * dtype.itemsize)
            count = min(stop - start, SAMPLE_TOKENS)
            parts.append(np.frombuffer(stream.read(count * dtype.itemsize), dtype))
    ids: Any = np.concatenate(parts) >> int(directory.index.masked)
    return EncodedBatch(ids, np.cumsum([len(part) for part in parts]), 0)


def _ends(file: SourceFile) -> Any:
    with file.open("rb") as stream:
        return np.frombuffer(stream.read(), "<i8")


def _longest(directory: TokenDirectory) -> int:
    """Return the tokens of the longest document; one may begin in an earlier shard."""
    longest, begun = 0, 0
    for shard, file in zip(directory.index.shards, directory.ends, strict=True):
        ends = _ends(file)
        longest = max(longest, int(np.diff(ends, prepend=-begun).max(initial=0)))
        begun = begun + shard.tokens if not len(ends) else shard.tokens - int(ends[-1])
    return max(longest, begun)


def _encoder(directory: TokenDirectory, data: DataSpec) -> TextEncoder | None:
    """Return the encoder of the directory; None if its tokens came as ids, or none is installed."""
    if directory.tokenizer is None:
        return (
            ByteEncoder()
            if directory.index.end_token == 0 and directory.index.vocabulary == BYTES
            else None
        )
    try:
        with directory.tokenizer.open("rb") as stream:
            return encoder_of(stream.read(), str(directory.tokenizer), data.end_token)
    except UserMistake:
        return None
