"""The tokenizer of a run, as files that transformers reads beside an exported model.

A model of bytes gets a tokenizer of 256 entries, whose ids are the bytes of UTF-8. This tokenizer
has no special tokens, so generation does not end at an id that is a byte.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.storage.files import json_bytes
from islands.data.chat import SETTINGS, TEMPLATE
from islands.data.text_tokens import BYTES, TOKENIZER, HuggingFaceEncoder, encoder_of
from islands.source_tokenizer import ByteTokens, NoTokenizer, SourceTokenizer, tokenizer_of
from islands.sources import DataSpec

log = logging.getLogger("archipelago.export")
PRINTED = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))
"""The bytes that byte-level tokenizers write as the character with the same number."""
USUAL: Mapping[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
}
"""Settings with which transformers loads a tokenizer as it is."""


@dataclass(frozen=True, slots=True)
class ExportedTokenizer:
    """The tokenizer of an exported model."""

    files: Mapping[str, bytes]
    """The content of each file by its name; empty if no tokenizer is known."""
    special: Mapping[str, int | None]
    """The ids of special tokens by the keys of `config.json`; None: there is no such token."""


def exported_tokenizer(data: DataSpec, vocabulary: int) -> ExportedTokenizer:
    """Return the tokenizer of a source.

    `vocabulary`: that of the model.

    Errors: `UserMistake` if a tokenizer or a token directory cannot be read.
    """
    match tokenizer_of(data, vocabulary):
        case SourceTokenizer() as own:
            encoder = encoder_of(own.content, own.name, own.end_token)
            files = {TOKENIZER: own.content, SETTINGS: _settings(encoder)}
            folder = None if own.file is None else own.file.parent
            for name in (SETTINGS, TEMPLATE):
                if folder is not None and (folder / name).is_file():
                    files[name] = (folder / name).read_bytes()
            start = encoder.start[0] if encoder.start else None
            return ExportedTokenizer(files, special_ids(start, encoder.end_token))
        case ByteTokens():
            return ExportedTokenizer(
                {TOKENIZER: byte_tokenizer(), SETTINGS: json_bytes(USUAL)}, special_ids()
            )
        case NoTokenizer(why, end):
            log.warning("the export has no tokenizer: %s", why)
            return ExportedTokenizer({}, special_ids(end=end))


def byte_tokenizer() -> bytes:
    """Return the file of a tokenizer whose ids are the bytes of UTF-8."""
    printed = {byte for part in PRINTED for byte in part}
    others = [byte for byte in range(BYTES) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed}
    letters |= {byte: chr(BYTES + place) for place, byte in enumerate(others)}
    level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
    }  # fmt: skip
    return json_bytes(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {letters[byte]: byte for byte in range(BYTES)},
                "merges": [],
            },
        }
    )


def special_ids(start: int | None = None, end: int | None = None) -> dict[str, int | None]:
    """Return the ids of special tokens by the keys of `config.json`."""
    return {"bos_token_id": start, "eos_token_id": end, "pad_token_id": None}


def _settings(encoder: HuggingFaceEncoder) -> bytes:
    """Return the settings of a tokenizer with special tokens."""
    found = {**USUAL, "eos_token": encoder.tokenizer.id_to_token(encoder.end_token)}
    if encoder.start:
        found["bos_token"] = encoder.tokenizer.id_to_token(encoder.start[0])
    return json_bytes(found)
