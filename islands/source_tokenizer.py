"""The tokenizer of a source: one way from its text to token ids, also for a mixture.

A token directory has its tokenizer, on this machine or in a bucket. A mixture has one if all its
sources have the same.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from coordinator.errors import UserMistake
from islands.data import token_index
from islands.data.buckets import in_bucket, plain_uri
from islands.data.text_tokens import BYTES, SEPARATOR, TOKENIZER, tokenizer_bytes
from islands.data.token_index import TokenDirectory
from islands.sources import STDLIB, DataSpec, parts_of

SHOWN = 12
"""The digits of a digest in messages."""


@dataclass(frozen=True, slots=True)
class SourceTokenizer:
    """The tokenizer of a source."""

    content: bytes
    """The content of its file."""
    name: str
    """The file, or the token directory, for messages."""
    end_token: int | str | None
    """The id or text of the token that ends each document; None: the tokenizer's own."""
    file: Path | None
    """The file on this machine; None: it is in a bucket."""

    @property
    def sha256(self) -> str:
        """The digest of the file."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class ByteTokens:
    """Tokens that are the bytes of a text."""


@dataclass(frozen=True, slots=True)
class NoTokenizer:
    """Token ids whose text cannot be known."""

    why: str
    """The reason, and the remedy."""
    end_token: int | None = None
    """The id behind each document, if it is known."""


TokenMeaning: TypeAlias = SourceTokenizer | ByteTokens | NoTokenizer
"""The way from the text of a source to its token ids."""


def tokenizer_of(data: DataSpec, vocabulary: int) -> TokenMeaning:
    """Return the way from the text of a source to its token ids.

    `vocabulary`: that of the model. A larger one than that of bytes does not show that the tokens
    are bytes if the source is no longer on this machine.

    Errors: `UserMistake` if a tokenizer or a token directory cannot be read.
    """
    if data.tokenizer is not None:
        given = Path(data.tokenizer).expanduser()
        file = given / TOKENIZER if given.is_dir() else given
        content = tokenizer_bytes(data.tokenizer)
        return SourceTokenizer(content, data.tokenizer, data.end_token, file)
    if data.mixture:
        return _common(parts_of(data), vocabulary)
    if (directory := token_index.opened(data.source)) is not None:
        return _of_directory(directory, data)
    end = data.end_token if isinstance(data.end_token, int) else None
    if data.tokens:
        return NoTokenizer(_without(data.source), end)
    if vocabulary > BYTES and _is_missing(data.source):
        return NoTokenizer(
            f"data.source = {data.source!r} is not on this machine, and it may have a tokenizer: "
            "run this command where the source is, or copy it there",
            end,
        )
    return ByteTokens()


def _of_directory(directory: TokenDirectory, data: DataSpec) -> TokenMeaning:
    index = directory.index
    end = index.end_token if data.end_token is None else data.end_token
    if directory.tokenizer is None:
        if (index.vocabulary, index.end_token) == (BYTES, SEPARATOR):
            return ByteTokens()
        return NoTokenizer(_without(directory.name), end if isinstance(end, int) else None)
    try:
        with directory.tokenizer.open("rb") as stream:
            content: bytes = stream.read()
    except OSError as error:
        raise UserMistake(
            f"{directory.tokenizer}, the tokenizer of a token directory, cannot be read: {error}"
        ) from error
    if hashlib.sha256(content).hexdigest() != index.tokenizer_sha256:
        raise UserMistake(
            f"{directory.tokenizer} is not the tokenizer that made the tokens of {directory.name} "
            f"(SHA-256 {(index.tokenizer_sha256 or 'none')[:SHOWN]} in its index): restore it"
        )
    file = directory.tokenizer if isinstance(directory.tokenizer, Path) else None
    return SourceTokenizer(content, directory.name, end, file)


def _common(parts: Sequence[DataSpec], vocabulary: int) -> TokenMeaning:
    """Return the way that all sources of a mixture share."""
    found = [tokenizer_of(part, vocabulary) for part in parts]
    for each in found:
        if isinstance(each, NoTokenizer):
            return replace(each, why=f"data.mixture: {each.why}")
    if len({_digest(each) for each in found}) == 1:
        return found[0]
    listed = ", ".join(
        f"{plain_uri(part.source)!r} has {_described(each)}"
        for part, each in zip(parts, found, strict=True)
    )
    return NoTokenizer(
        f"data.mixture: its sources have different tokenizers ({listed}), so an id has no single "
        "text: tokenize all sources with one tokenizer (archipelago data tokenize --tokenizer "
        "FILE), and train on those"
    )


def _digest(found: TokenMeaning) -> str | None:
    return found.sha256 if isinstance(found, SourceTokenizer) else None


def _described(found: TokenMeaning) -> str:
    if isinstance(found, SourceTokenizer):
        return f"a tokenizer with SHA-256 {found.sha256[:SHOWN]}"
    return "bytes"


def _without(source: str) -> str:
    return (
        f"data.source = {plain_uri(source)!r} holds token ids, and no tokenizer is known for them: "
        "train on text with data.tokenizer, or on a directory of `archipelago data tokenize "
        "--tokenizer FILE`, which keep it"
    )


def _is_missing(source: str) -> bool:
    if source == STDLIB or in_bucket(source) or glob.has_magic(source):
        return False
    return not Path(source).expanduser().exists()


def other_source(data: DataSpec, source: str, vocabulary: int) -> DataSpec:
    """Return the settings that read another source as the tokens of a model of `data`.

    The source is a token directory with the tokenizer of `data`, or files, which are encoded with
    that tokenizer. Columns are those of `data`.

    Errors: `UserMistake` if the source has another tokenizer, or its text cannot be encoded.
    """
    own = tokenizer_of(data, vocabulary)
    columns = {(part.column, part.tokens) for part in parts_of(data)} or {
        (data.column, data.tokens)
    }
    column, tokens = columns.pop() if len(columns) == 1 else (None, False)
    other = replace(data, source=source, column=column, tokens=tokens, mixture=())
    if (directory := token_index.opened(source)) is not None:
        _same_tokenizer(own, directory)
        return replace(other, column=None, tokens=False)
    match own:
        case SourceTokenizer() if data.tokenizer is None and own.file is None:
            raise UserMistake(
                f"--data {plain_uri(source)!r} would be read as bytes, and the tokenizer of the "
                f"model is in a bucket ({own.name}/{TOKENIZER}): copy that file here, use "
                "`archipelago data tokenize SOURCE OUT --tokenizer FILE`, and name OUT"
            )
        case SourceTokenizer():
            return replace(
                other, tokenizer=data.tokenizer or str(own.file), end_token=own.end_token
            )
        case NoTokenizer() if not tokens:
            raise UserMistake(
                f"--data {plain_uri(source)!r} would be read as bytes, and the tokens of the model "
                f"are none: {own.why}. Name a token directory with the ids of its tokenizer"
            )
        case ByteTokens() | NoTokenizer():
            return other


def _same_tokenizer(own: TokenMeaning, directory: TokenDirectory) -> None:
    there = directory.index.tokenizer_sha256
    if isinstance(own, NoTokenizer) or there == _digest(own):
        return
    name = "bytes" if there is None else f"a tokenizer with SHA-256 {there[:SHOWN]}"
    remedy = "without a tokenizer"
    if isinstance(own, SourceTokenizer):
        remedy = f"--tokenizer {own.file or f'{own.name}/{TOKENIZER}'}"
    raise UserMistake(
        f"--data {directory.name!r} has {name}, and the model was trained with {_described(own)}: "
        f"tokenize the text with that of the model (archipelago data tokenize SOURCE OUT, {remedy})"
    )
