"""Tokenizers in the format of Hugging Face (`tokenizer.json`): loaded, checked, trained.

The package `tokenizers` is in the extra `data`. It encodes on all cores of the machine;
`RAYON_NUM_THREADS` bounds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.package_extras import install_command

TOKENIZER = "tokenizer.json"
"""The file of a tokenizer in a folder."""
BYTES = 256
"""The vocabulary of text without a tokenizer: a token is a byte."""
SEPARATOR = 0
"""The byte between two documents of text; text itself has none."""
END_TOKENS = (
    "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "<|end▁of▁sentence|>", "<|eos|>", "[EOS]",
)  # fmt: skip
"""The texts of tokens that end a document in usual tokenizers, in the order of the search."""
LEAST_VOCABULARY = BYTES + 1
"""The smallest vocabulary that can be trained: all bytes, and the token that ends a document."""


class TextEncoder(Protocol):
    """An encoder of texts as token ids."""

    @property
    def vocabulary(self) -> int:
        """One more than the largest id that a text can have."""
        ...

    @property
    def end_token(self) -> int:
        """The id behind each document."""
        ...

    @property
    def start(self) -> tuple[int, ...]:
        """The ids before each document."""
        ...

    @property
    def needs_utf8(self) -> bool:
        """Whether texts must be UTF-8."""
        ...

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.integer[Any]]]:
        """Return the ids of each text, without start and end."""
        ...


@dataclass(frozen=True, slots=True)
class ByteEncoder:
    """The encoder of text without a tokenizer; documents end with a byte 0."""

    vocabulary: int = BYTES
    end_token: int = SEPARATOR
    start: tuple[int, ...] = ()
    needs_utf8: bool = False

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.integer[Any]]]:
        """Return the bytes of each text."""
        return [np.frombuffer(text, np.uint8) for text in texts]


@dataclass(frozen=True, slots=True, eq=False)
class HuggingFaceEncoder:
    """A tokenizer of the package `tokenizers`."""

    tokenizer: Any
    """The `tokenizers.Tokenizer`; it reads special tokens in a text as plain text."""
    vocabulary: int
    end_token: int
    start: tuple[int, ...]
    sha256: str
    """The digest of the tokenizer's file."""
    needs_utf8: bool = True

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.integer[Any]]]:
        """Return the ids of each text, which must be UTF-8."""
        given = [text.decode() for text in texts]
        found = self.tokenizer.encode_batch_fast(given, add_special_tokens=False)
        return [np.array(each.ids, np.uint32) for each in found]


def library() -> Any:
    """Return the package `tokenizers`.

    Errors: `UserMistake` if it is not installed.
    """
    try:
        return import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise UserMistake(
            "tokenizers of Hugging Face need the package tokenizers: on every node, "
            f"{install_command('data')}"
        ) from error


def tokenizer_bytes(path: str) -> bytes:
    """Return the content of a tokenizer's file; `path` may be a folder that has one.

    Errors: `UserMistake` if there is none.
    """
    given = Path(path).expanduser()
    file = given / TOKENIZER if given.is_dir() else given
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserMistake(
            f"the tokenizer {path!r} cannot be read: {error.strerror} (looked for {file.absolute()}"
            f"): name a {TOKENIZER}, or a folder with one"
        ) from error


def encoder_of(content: bytes, name: str, end_token: int | str | None = None) -> HuggingFaceEncoder:
    """Return the encoder of a tokenizer's file.

    Args:
        content: The content of the file.
        name: The name of the file, for messages.
        end_token: Id or text of the token that ends each document. None: the first of `END_TOKENS`
            that the tokenizer has.

    Errors: `UserMistake` if it is no tokenizer, or has no such token.
    """
    tokenizers = library()
    try:
        found = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises plain ones
        raise UserMistake(f"{name} is no tokenizer of Hugging Face: {error}") from error
    found.no_truncation()
    found.no_padding()
    start = _start(found)
    found.encode_special_tokens = True  # a text cannot contain the token that ends a document
    end = _end(found, name, end_token)
    added = found.get_added_tokens_decoder()
    special = {number for number, token in added.items() if token.special}
    plain = set(found.get_vocab(with_added_tokens=True).values()) - special
    largest = max([*plain, *start, end])
    return HuggingFaceEncoder(found, largest + 1, end, start, hashlib.sha256(content).hexdigest())


def _start(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that the tokenizer puts before a text, such as the one of `<bos>`."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for number in range(len(whole) - len(plain) + 1):
        if whole[number : number + len(plain)] == plain:
            return tuple(whole[:number])
    return ()


def _end(tokenizer: Any, name: str, wanted: int | str | None) -> int:
    if isinstance(wanted, int):
        if tokenizer.id_to_token(wanted) is None:
            raise UserMistake(
                f"data.end_token = {wanted}: {name} has no such id; its ids run from 0 to "
                f"{tokenizer.get_vocab_size() - 1}"
            )
        return wanted
    candidates = END_TOKENS if wanted is None else (wanted,)
    for text in candidates:
        if (found := tokenizer.token_to_id(text)) is not None:
            return found
    if wanted is None:
        raise UserMistake(
            f"{name} has none of the usual tokens that end a document ({', '.join(END_TOKENS)}): "
            "name its own with data.end_token, or --end-token"
        )
    raise UserMistake(f"data.end_token = {wanted!r}: {name} has no such token")


def fits(encoder: HuggingFaceEncoder, name: str, vocabulary: int) -> list[str]:
    """Return why the ids of a tokenizer do not fit a model's vocabulary; empty if they do."""
    if encoder.vocabulary <= vocabulary:
        return []
    return [
        f"data.tokenizer = {name!r} has ids from 0 to {encoder.vocabulary - 1:,}, which needs a "
        f"vocabulary of {encoder.vocabulary:,}, and the task has one of {vocabulary:,}: take the "
        "tokenizer that the task was made for, or set the task's vocabulary (task.options)"
    ]


def trained(texts: Iterator[str], vocabulary: int) -> bytes:
    """Return the file of a byte-level BPE tokenizer that is trained on these texts.

    It can encode every text. Its only special token is `<|endoftext|>`, with the id 0.

    Errors: `UserMistake` if the vocabulary is too small.
    """
    if vocabulary < LEAST_VOCABULARY:
        raise UserMistake(
            f"--train-vocab {vocabulary}: must be at least {LEAST_VOCABULARY}: all bytes, and the "
            "token that ends a document"
        )
    tokenizers = library()
    models, trainers, pre_tokenizers, decoders = (
        import_module(f"tokenizers.{name}")
        for name in ("models", "trainers", "pre_tokenizers", "decoders")
    )
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_TOKENS[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    text: str = made.to_str(pretty=True)
    return text.encode()
