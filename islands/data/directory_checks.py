"""The checks of a token directory against the settings of a task."""

from __future__ import annotations

from islands.data.text_tokens import BYTES, SEPARATOR, encoder_of, tokenizer_bytes
from islands.data.token_index import TokenDirectory
from islands.sources import DataSpec


def unfit(directory: TokenDirectory, data: DataSpec, vocabulary: int) -> list[str]:
    """Return why a token directory is none for this task; empty if it is one."""
    index, name = directory.index, directory.name
    found: list[str] = []
    if index.vocabulary > vocabulary:
        found.append(
            f"data.source = {name!r} has token ids from 0 to {index.vocabulary - 1:,}, which needs "
            f"a vocabulary of {index.vocabulary:,}, and the task has one of {vocabulary:,}: set "
            "the task's vocabulary (task.options), or tokenize with the task's tokenizer"
        )
    if data.column is not None or data.tokens:
        found.append(
            f"data.source = {name!r} is a token directory, which has no columns: leave out "
            "data.column and data.tokens"
        )
    end = data.end_token if isinstance(data.end_token, int) else None
    if data.tokenizer is not None:
        given = encoder_of(tokenizer_bytes(data.tokenizer), data.tokenizer, data.end_token)
        end = given.end_token if data.end_token is not None else None
        if given.sha256 != index.tokenizer_sha256:
            kept = index.tokenizer_sha256 or "none"
            found.append(
                f"data.source = {name!r} was made with another tokenizer (SHA-256 {kept[:12]}) "
                f"than data.tokenizer = {data.tokenizer!r} ({given.sha256[:12]}): leave that key "
                "out, or tokenize the source with it"
            )
    ended_by_us = index.tokenizer is not None or (index.vocabulary, index.end_token) == (
        BYTES,
        SEPARATOR,
    )
    if end is not None and ended_by_us and end != index.end_token:
        found.append(
            f"data.end_token = {data.end_token!r}: the documents of {name!r} end with the token "
            f"{index.end_token}: leave that key out"
        )
    elif end is not None and not ended_by_us:
        found += end_outside(end, index.vocabulary)
    return found


def end_outside(end_token: int, vocabulary: int) -> list[str]:
    """Return why an id cannot end documents of a vocabulary; empty if it can."""
    if end_token < vocabulary:
        return []
    return [
        f"data.end_token = {end_token}: no document ends with it, as ids run from 0 to "
        f"{vocabulary - 1:,}: name the id of the token that ends each document"
    ]
