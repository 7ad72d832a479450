"""The checks of a token directory against the settings of a task."""

from __future__ import annotations

from islands.data.text_tokens import encoder_of, tokenizer_bytes
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
    if data.tokenizer is not None:
        given = encoder_of(tokenizer_bytes(data.tokenizer), data.tokenizer, data.end_token)
        if given.sha256 != index.tokenizer_sha256:
            kept = index.tokenizer_sha256 or "none"
            found.append(
                f"data.source = {name!r} was made with another tokenizer (SHA-256 {kept[:12]}) "
                f"than data.tokenizer = {data.tokenizer!r} ({given.sha256[:12]}): leave that key "
                "out, or tokenize the source with it"
            )
    return found
