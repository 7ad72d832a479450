"""The reading of a corpus: its checks, its held-out part, and the tokens mapped from files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordinator.errors import UserMistake
from islands import token_files
from islands.corpus import Corpus, windows_in
from islands.sources import (
    BYTES,
    DataSpec,
    Pieces,
    Tokens,
    dtype_of,
    held_out,
    is_parquet,
    root_and_files,
    tokens_of,
)

PROBLEMS_SHOWN = 5


def read_corpus(data: DataSpec, vocabulary: int = BYTES) -> Corpus:
    """Map the source into memory and split off the held-out part.

    Files are held out whole, by a hash of their path below the source and the seed. A single file
    is held out by its tail: the last bytes of a text, the last rows of a Parquet file. Documents of
    text end with a byte 0, except a single text; rows of token ids are joined as they are.

    Errors: `UserMistake` with all problems found:

    - the source is missing, unreadable or empty
    - a column is missing or holds something else
    - an id is outside the vocabulary
    - there are fewer windows than one lease (training) or than one (held out)
    - there is no room for the tokens
    """
    problems = _impossible(data, vocabulary)
    root, files = Path(), list[Path]()
    try:
        root, files = root_and_files(data)
    except UserMistake as error:
        problems.append(str(error))
    _refuse(problems)
    try:
        if len(files) == 1 and not is_parquet(files[0], data):
            train, heldout = _one_text(files[0], data)
        else:
            train, heldout = _tokens(root, files, data, vocabulary)
    except OSError as error:
        raise UserMistake(f"data.source = {data.source!r}: {error}") from error
    corpus = Corpus(data, train, heldout)
    _refuse(_too_small(corpus))
    return corpus


def _one_text(path: Path, data: DataSpec) -> tuple[Tokens, Tokens]:
    """Return both parts of a single text, mapped where it is."""
    tokens = token_files.mapped(path, np.dtype(np.uint8))
    cut = round((1 - data.heldout_percent / 100) * len(tokens))
    return tokens[:cut], tokens[cut:]


def _tokens(
    root: Path, files: Sequence[Path], data: DataSpec, vocabulary: int
) -> tuple[Tokens, Tokens]:
    """Return both parts of several files, or rows, which are written once as they lie in memory.

    Errors: `UserMistake` for problems with the files; `OSError` if there is no room.
    """
    names = [path.relative_to(root).as_posix() for path in files]
    dtype, alone = dtype_of(vocabulary), len(files) == 1
    kept = 1 - data.heldout_percent / 100
    sides = [False] if alone else held_out(names, data)

    def write(to: token_files.Writing) -> None:
        problems: list[str] = []
        for path, outside in zip(files, sides, strict=True):
            shares = [(to.heldout if outside else to.train, 0.0, 1.0)]
            if alone:
                shares = [(to.train, 0.0, kept), (to.heldout, kept, 1.0)]
            for file, start, stop in shares:
                pieces = tokens_of(path, data, vocabulary, start, stop)
                while (piece := _read(pieces, problems)) is not None:
                    file.write(piece.astype(dtype).tobytes())
        _refuse(problems)

    key = token_files.key_of(files, replace(data, window=0, lease_windows=0), vocabulary, *names)
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


def _impossible(data: DataSpec, vocabulary: int) -> list[str]:
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
        (
            data.tokens or vocabulary >= BYTES,
            f"text is read as {BYTES} bytes, the task has a vocabulary of {vocabulary}: "
            "give token ids (data.tokens = true) or take a task for bytes",
        ),
    ]
    return [problem for is_kept, problem in rules if not is_kept]


def _too_small(corpus: Corpus) -> list[str]:
    window, needed = corpus.spec.window, corpus.spec.lease_windows
    counts = corpus.windows, windows_in(corpus.heldout, window)
    return [
        f"data.source = {corpus.spec.source!r} is too small: {count} {use} windows of {window} "
        f"tokens, {least} needed: give more text, or lower {remedy}"
        for count, least, use, remedy in (
            (counts[0], needed, "training", "data.window or data.lease_windows"),
            (counts[1], 1, "held-out", "data.window, or raise data.heldout_percent"),
        )
        if count < least
    ]
