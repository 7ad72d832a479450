"""The reading of a corpus: its checks, its held-out part, and the tokens mapped from files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coordinator.errors import SourceMistake, UserMistake
from islands import token_files
from islands.corpus import Corpus, windows_in
from islands.data import text_tokens, token_index
from islands.data.buckets import SourceFile, identity, names_below, plain_uri, size_of
from islands.data.damage import Damage
from islands.data.directory_checks import end_outside, unfit
from islands.data.encoding import dtype_of
from islands.data.joined_tokens import JoinedTokens, TokenPart, divided
from islands.data.mixture import MixedCorpus
from islands.data.text_tokens import BYTES, SEPARATOR, HuggingFaceEncoder, encoder_of, fits
from islands.data.token_index import TokenDirectory
from islands.source_tokens import Pieces, is_text, tokens_of
from islands.sources import DataSpec, Tokens, held_out, parts_of, root_and_files

log = logging.getLogger("archipelago.data")
PROBLEMS_SHOWN = 5
GB = 10**9


class _Read(NamedTuple):
    """The tokens of a source."""

    train: Tokens | JoinedTokens
    heldout: Tokens | JoinedTokens
    end_token: int | None
    """The id behind each document; None: it is not known."""
    masked: bool = False
    """Whether the tokens are marked with what the loss counts (`Corpus.masked`)."""


def open_corpus(data: DataSpec, vocabulary: int = BYTES) -> Corpus | MixedCorpus:
    """Do what `read_corpus` does, for a mixture as well."""
    if data.mixture:
        corpora = [read_corpus(part, vocabulary) for part in parts_of(data)]
        if any(corpus.masked for corpus in corpora):
            corpora = [replace(corpus, gives_mask=True) for corpus in corpora]
        return MixedCorpus(data, corpora, [part.weight for part in data.mixture])
    return read_corpus(data, vocabulary)


def read_corpus(data: DataSpec, vocabulary: int = BYTES) -> Corpus:
    """Open the source and split off the held-out part.

    A token directory, and text above `prepare_gb`, are read where they are: nothing but their index
    and sizes is read now. Any other source is written once for each machine as token files.

    Files are held out whole, by a hash of their path below the source and the seed. A single file
    is held out by its tail: the last bytes of a text, the last rows of a table. The last part of
    each shard of a token directory is held out. Documents of text end with a byte 0, except a
    single text, or with the end token of the tokenizer; rows of token ids are joined as they are.

    Errors: `UserMistake` with all problems found:

    - the source is missing, unreadable or empty
    - the source is too large to be written at the start
    - the tokenizer, or the token directory, does not fit the vocabulary
    - a column is missing or holds something else
    - an id is outside the vocabulary
    - there are fewer windows than one lease (training) or than one (held out)
    - there is no room for the tokens
    """
    problems = _impossible(data)
    read: _Read | None = None
    try:
        directory = token_index.opened(data.source)
        if directory is not None:
            problems += unfit(directory, data, vocabulary)
            read = None if problems else _of_directory(directory, data)
        else:
            read = _of_files(data, vocabulary, problems)
    except UserMistake as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"data.source = {plain_uri(data.source)!r}: {error}")
    if read is not None and data.separate_documents and read.end_token is None:
        problems.append(
            "data.separate_documents = true needs to find the end of each document: set "
            "data.end_token to the id that ends each one"
        )
    _refuse(problems)
    assert read is not None, "nothing is left out where nothing was found"
    corpus = Corpus(data, read.train, read.heldout, read.end_token, read.masked)
    if too_small := _too_small(corpus):
        raise SourceMistake("\n".join(too_small))
    return corpus


# --- token directories ----------------------------------------------------------------------------


def _of_directory(directory: TokenDirectory, data: DataSpec) -> _Read:
    index = directory.index
    dtype = np.dtype(index.dtype).newbyteorder("<")
    parts = [
        TokenPart(file, 0, shard.tokens, digest=shard.sha256)
        for file, shard in zip(directory.files, index.shards, strict=True)
    ]
    end = data.end_token if isinstance(data.end_token, int) else index.end_token
    ending = 2 * end if index.masked and end is not None else end  # a token that is not counted
    train, heldout = divided(parts, data.heldout_percent, ending)
    return _Read(JoinedTokens(train, dtype), JoinedTokens(heldout, dtype), end, index.masked)


# --- files ----------------------------------------------------------------------------------------


def _of_files(data: DataSpec, vocabulary: int, problems: list[str]) -> _Read | None:
    """Return the tokens of files; add problems of the settings, and return None if there are some.

    Errors: `UserMistake`; `OSError`.
    """
    encoder = None
    if data.tokenizer is not None and not data.tokens:
        encoder = encoder_of(
            text_tokens.tokenizer_bytes(data.tokenizer), data.tokenizer, data.end_token
        )
        problems += fits(encoder, data.tokenizer, vocabulary)
    elif not data.tokens and vocabulary < BYTES:
        problems.append(
            f"text is read as {BYTES} bytes, the task has a vocabulary of {vocabulary}: "
            "give token ids (data.tokens = true) or take a task for bytes"
        )
    end = data.end_token if isinstance(data.end_token, int) else None
    if data.tokens and end is not None:
        problems += end_outside(end, vocabulary)
    root, files = root_and_files(data)
    if problems:
        return None
    if not data.tokens:
        end = SEPARATOR if encoder is None else encoder.end_token
    are_texts = all(is_text(file, data) for file in files)
    if len(files) == 1 and are_texts:
        return _Read(*_one_text(files[0], data), end)
    size = sum(map(size_of, files))
    if size <= data.prepare_gb * GB:
        return _Read(*_written(root, files, data, vocabulary, encoder), end)
    if are_texts:
        return _Read(*_in_place(root, files, data), end)
    how = "--tokens --vocabulary N" if data.tokens else f"--tokenizer {data.tokenizer}"
    column = f" --column {data.column}" if data.column else ""
    how = "" if encoder is None and not data.tokens else f" {how}"
    raise UserMistake(
        f"data.source = {plain_uri(data.source)!r} has {size / GB:,.1f} GB, and more than "
        f"data.prepare_gb = {data.prepare_gb:g} is not tokenized at the start of a run: use "
        f"`archipelago data tokenize {plain_uri(data.source)} OUT{column}{how}`, and name OUT as "
        "data.source"
    )


def _one_text(
    file: SourceFile, data: DataSpec
) -> tuple[Tokens | JoinedTokens, Tokens | JoinedTokens]:
    """Return both parts of a single text, read where it is."""
    dtype = np.dtype(np.uint8)
    if not isinstance(file, Path):
        train, heldout = divided([TokenPart(file, 0, file.size)], data.heldout_percent)
        return JoinedTokens(train, dtype), JoinedTokens(heldout, dtype)
    tokens = token_files.mapped(file, dtype)
    cut = round((1 - data.heldout_percent / 100) * len(tokens))
    return tokens[:cut], tokens[cut:]


def _in_place(
    root: Path | str, files: Sequence[SourceFile], data: DataSpec
) -> tuple[JoinedTokens, JoinedTokens]:
    """Return both parts of several texts, read where they are."""
    parts = [TokenPart(file, 0, size, SEPARATOR) for file in files if (size := size_of(file))]
    outside = held_out(names_below(root, [part.file for part in parts]), data)
    found = [
        JoinedTokens(
            [part for part, is_out in zip(parts, outside, strict=True) if is_out is wanted],
            np.dtype(np.uint8),
        )
        for wanted in (False, True)
    ]
    return found[0], found[1]


def _written(
    root: Path | str,
    files: Sequence[SourceFile],
    data: DataSpec,
    vocabulary: int,
    encoder: HuggingFaceEncoder | None,
) -> tuple[Tokens, Tokens]:
    """Return both parts of several files, or rows, which are written once as they lie in memory.

    Errors: `UserMistake` for problems with the files; `OSError` if there is no room.
    """
    names = names_below(root, files)
    # A tokenizer may have fewer ids than the model, and its file then needs no more bytes.
    dtype, alone = dtype_of(vocabulary if encoder is None else encoder.vocabulary), len(files) == 1
    kept = 1 - data.heldout_percent / 100
    sides = [False] if alone else held_out(names, data)
    damage = Damage(data.skip_damaged)

    def write(to: token_files.Writing) -> None:
        problems: list[str] = []
        for path, outside in zip(files, sides, strict=True):
            shares = [(to.heldout if outside else to.train, 0.0, 1.0)]
            if alone:
                shares = [(to.train, 0.0, kept), (to.heldout, kept, 1.0)]
            for file, start, stop in shares:
                pieces = tokens_of(path, data, vocabulary, start, stop, damage, encoder)
                while (piece := _read(pieces, problems)) is not None:
                    file.write(piece.astype(dtype).tobytes())
        _refuse(problems)
        if damage.counts:
            log.warning("data.source = %r: left out: %s", plain_uri(data.source), damage.text)

    facts: list[Any] = [replace(data, window=0, lease_windows=0), vocabulary, *names]
    facts += [] if encoder is None else [encoder.sha256, encoder.end_token]
    key = token_files.key_of([identity(file) for file in files], *facts)
    return token_files.kept(key, dtype, write)


def _read(pieces: Pieces, problems: list[str]) -> Tokens | None:
    """Return the next piece; None if there is none, or it cannot be read.

    Problems of the source are collected here, so that they are not taken for problems of writing.
    """
    try:
        return next(pieces, None)
    except (OSError, UserMistake) as error:
        problems.append(str(error))
        return None


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        shown = [*problems[:PROBLEMS_SHOWN], *([f"... and {more} more"] if more > 0 else [])]
        raise UserMistake("\n".join(shown))


def _impossible(data: DataSpec) -> list[str]:
    rules = [
        (data.window >= 1, f"data.window = {data.window}: must be at least 1"),
        (data.lease_windows >= 1, f"data.lease_windows = {data.lease_windows}: at least 1"),
        (data.seed >= 0, f"data.seed = {data.seed}: must not be negative"),
        (
            0 < data.heldout_percent < 100,
            f"data.heldout_percent = {data.heldout_percent}: must lie between 0 and 100",
        ),
        (
            not data.tokens or data.column is not None,
            "data.tokens needs data.column: the Parquet column that holds the token ids",
        ),
        (not data.mixture, "data.mixture: this task reads one source; text_task reads a mixture"),
    ]
    return [problem for is_kept, problem in rules if not is_kept]


def _too_small(corpus: Corpus) -> list[str]:
    window, needed = corpus.spec.window, corpus.spec.lease_windows
    counts = corpus.windows, windows_in(corpus.heldout, window)
    return [
        f"data.source = {plain_uri(corpus.spec.source)!r} is too small: {count} {use} windows of "
        f"{window} tokens, {least} needed: give more text, or lower {remedy}"
        for count, least, use, remedy in (
            (counts[0], needed, "training", "data.window or data.lease_windows"),
            (counts[1], 1, "held-out", "data.window, or raise data.heldout_percent"),
        )
        if count < least
    ]
