"""The tokenizer of a run, as files that transformers reads beside an exported model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.storage.files import json_bytes
from islands.data import token_index
from islands.data.chat import SETTINGS, TEMPLATE
from islands.data.text_tokens import (
    BYTES,
    TOKENIZER,
    HuggingFaceEncoder,
    encoder_of,
    tokenizer_bytes,
)
from islands.data.token_index import TokenDirectory
from islands.sources import DataSpec


@dataclass(frozen=True, slots=True)
class ExportedTokenizer:
    """The tokenizer of an exported model."""

    files: Mapping[str, bytes]
    """The content of each file by its name; empty for bytes, and if none is known."""
    special: Mapping[str, int | None]
    """The ids of special tokens by the keys of `config.json`; empty if they are not known."""


def exported_tokenizer(data: DataSpec, vocabulary: int) -> ExportedTokenizer:
    """Return the tokenizer of a source.

    Errors: `UserMistake` if `data.tokenizer` cannot be read.
    """
    content, folder = None, None
    if data.tokenizer is not None:
        content = tokenizer_bytes(data.tokenizer)
        given = Path(data.tokenizer).expanduser()
        folder = given if given.is_dir() else given.parent
    elif (directory := _directory(data)) is not None and directory.tokenizer is not None:
        with directory.tokenizer.open("rb") as stream:
            content = stream.read()
        folder = directory.tokenizer.parent if isinstance(directory.tokenizer, Path) else None
    if content is None:
        nothing = ("bos_token_id", "eos_token_id", "pad_token_id")
        return ExportedTokenizer({}, dict.fromkeys(nothing) if vocabulary == BYTES else {})
    encoder = encoder_of(content, data.tokenizer or data.source, data.end_token)
    files = {TOKENIZER: content, SETTINGS: _settings(encoder)}
    for name in (SETTINGS, TEMPLATE):
        if folder is not None and (folder / name).is_file():
            files[name] = (folder / name).read_bytes()
    return ExportedTokenizer(files, _special(encoder))


def _directory(data: DataSpec) -> TokenDirectory | None:
    """Return the token directory of a source; None if it is none, or several."""
    return None if data.mixture else token_index.opened(data.source)


def _special(encoder: HuggingFaceEncoder) -> dict[str, int | None]:
    return {
        "bos_token_id": encoder.start[0] if encoder.start else None,
        "eos_token_id": encoder.end_token,
        "pad_token_id": None,
    }


def _settings(encoder: HuggingFaceEncoder) -> bytes:
    """Return settings with which transformers loads the tokenizer as it is."""
    found: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": encoder.tokenizer.id_to_token(encoder.end_token),
        "clean_up_tokenization_spaces": False,
    }
    if encoder.start:
        found["bos_token"] = encoder.tokenizer.id_to_token(encoder.start[0])
    return json_bytes(found)
