"""The input of `archipelago data tokenize`: the files, the tokenizer, and its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordinator.errors import UserMistake
from islands.data import token_index
from islands.data.chat import ChatEncoder, template_of
from islands.data.damage import Damage
from islands.data.documents import DocumentFile
from islands.data.formats import FileFormat
from islands.data.text_tokens import (
    TOKENIZER,
    ByteEncoder,
    encoder_of,
    tokenizer_bytes,
    trained,
)
from islands.data.token_index import DTYPES
from islands.data.token_writer import SHARD_TOKENS, TokenizePlan, free_output, unfinished
from islands.sources import DataSpec, root_and_files

TRAIN_BYTES = 2**28
"""The most bytes of text that a tokenizer is trained on: 256 MiB, from all files alike."""
SMALLEST_SHARD = 1024
"""The smallest size of a shard, in tokens."""


@dataclass(frozen=True, slots=True)
class TokenizeOptions:
    """The options of the command."""

    train_vocabulary: int | None = None
    """Train a tokenizer with a vocabulary of this size; None: do not."""
    vocabulary: int | None = None
    """The vocabulary of documents that are token ids already."""
    shard_tokens: int = SHARD_TOKENS
    train_bytes: int = TRAIN_BYTES
    chat: bool = False
    """Whether the field holds conversations."""


def document_files(data: DataSpec) -> list[DocumentFile]:
    """Return the files of a source, with the keys that select their documents.

    Errors: `UserMistake` if there are none.
    """
    return [DocumentFile(file, data.column, data.tokens) for file in root_and_files(data)[1]]


def plan_of(data: DataSpec, options: TokenizeOptions, out: Path) -> TokenizePlan:
    """Return the plan; with `train_vocabulary` a tokenizer is trained now, unless it was before.

    Errors: `UserMistake` with all problems of the options; the errors of the source.
    """
    if problems := _impossible(data, options):
        raise UserMistake("\n".join(problems))
    free_output(out)
    if token_index.opened(data.source) is not None:
        raise UserMistake(f"{data.source} is a token directory already")
    files = document_files(data)
    for file in files:
        file.check()
    if options.chat:
        check_lines(files)
    content = None
    if options.train_vocabulary is not None:
        content = _trained(files, data, options, out)
    elif data.tokenizer is not None:
        content = tokenizer_bytes(data.tokenizer)
    encoder = None
    if not data.tokens:
        name = data.tokenizer or TOKENIZER
        encoder = ByteEncoder() if content is None else encoder_of(content, name, data.end_token)
    chat = None
    if options.chat and encoder is not None:
        chat = ChatEncoder(encoder, content, template_of(data.tokenizer))
    end = encoder.end_token if encoder is not None else data.end_token
    vocabulary = encoder.vocabulary if encoder is not None else options.vocabulary or 0
    assert not isinstance(end, str), "refused above"
    return TokenizePlan(
        files=tuple(files),
        encoder=encoder,
        vocabulary=vocabulary if chat is None else chat.vocabulary,
        end_token=end,
        tokenizer=content,
        shard_tokens=options.shard_tokens,
        skip_damaged=data.skip_damaged,
        trained=options.train_vocabulary,
        chat=chat,
    )


def check_lines(files: Sequence[DocumentFile]) -> None:
    """Check that files can hold conversations.

    Errors: `UserMistake` if one is no file of JSON lines.
    """
    if others := [str(each.file) for each in files if each.format is not FileFormat.JSON_LINES]:
        raise UserMistake(
            f"--chat reads conversations from JSON lines (.jsonl, .ndjson), and {others[0]} is "
            "another format: write each conversation as a line"
        )


def _impossible(data: DataSpec, options: TokenizeOptions) -> list[str]:
    encodes = data.tokenizer is not None or options.train_vocabulary is not None
    largest = int(np.iinfo(DTYPES[-1]).max) + 1
    rules = [
        (
            data.tokenizer is None or options.train_vocabulary is None,
            "--tokenizer and --train-vocab are both given: take a tokenizer, or train one",
        ),
        (
            not (data.tokens and encodes),
            "--tokens reads ids, and a tokenizer encodes text: leave one of them out",
        ),
        (
            not options.chat or not data.tokens,
            "--chat reads messages, and --tokens reads ids: leave one of them out",
        ),
        (
            not options.chat or options.train_vocabulary is None,
            "--chat needs a tokenizer that exists, or bytes: train one on the text first",
        ),
        (not data.tokens or data.column is not None, "--tokens needs --column: where the ids are"),
        (
            not data.tokens or options.vocabulary is not None,
            "--tokens needs --vocabulary: the number of distinct ids of the tokenizer that made "
            "them",
        ),
        (
            options.vocabulary is None or data.tokens,
            "--vocabulary is for ids (--tokens); text gets the one of its tokenizer",
        ),
        (
            options.vocabulary is None or 1 <= options.vocabulary <= largest,
            f"--vocabulary {options.vocabulary}: from 1 to {largest}",
        ),
        (
            encodes or not isinstance(data.end_token, str),
            "--end-token with a text needs a tokenizer; give the id of the token",
        ),
        (
            encodes or data.tokens or data.end_token is None,
            "--end-token is for a tokenizer or for ids; bytes end with a byte 0",
        ),
        (
            not isinstance(data.end_token, int) or data.end_token < (options.vocabulary or largest),
            f"--end-token {data.end_token}: must be less than --vocabulary {options.vocabulary}",
        ),
        (
            options.shard_tokens >= SMALLEST_SHARD,
            f"--shard-tokens {options.shard_tokens}: at least {SMALLEST_SHARD}",
        ),
    ]
    return [problem for is_kept, problem in rules if not is_kept]


def _trained(
    files: Sequence[DocumentFile], data: DataSpec, options: TokenizeOptions, out: Path
) -> bytes:
    """Return the tokenizer of an earlier call that was killed, or train one."""
    kept = unfinished(out) / TOKENIZER
    if kept.is_file():
        return kept.read_bytes()
    assert options.train_vocabulary is not None
    texts = sampled(files, Damage(data.skip_damaged), options.train_bytes)
    return trained(texts, options.train_vocabulary)


def sampled(files: Sequence[DocumentFile], damage: Damage, limit: int) -> Iterator[str]:
    """Yield the first texts of each file, until each has given its part of `limit` bytes.

    Errors: the errors of `DocumentFile.texts`.
    """
    each = max(1, limit // max(1, len(files)))
    for file in files:
        taken = 0
        for batch in file.texts(0, file.extent(), damage):
            for text in batch.texts:
                taken += len(text)
                yield text.decode(errors="ignore")
            if taken >= each:
                break
