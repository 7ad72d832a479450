"""Text out of a trained language model: its next tokens, one at a time, and the loss of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.data.text_tokens import (
    BYTES,
    TOKENIZER,
    HuggingFaceEncoder,
    encoder_of,
    tokenizer_bytes,
)
from islands.sources import DataSpec

Scores = NDArray[np.float32]
"""The scores of all tokens of the vocabulary as the next one, [V]; logits, not normalised."""
INCOMPLETE = "\ufffd"
"""The mark of bytes that are no text, or not yet."""


class TextCodec(Protocol):
    """The way from text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; what is no text is U+FFFD."""
        ...


class Bytes:
    """The codec of models whose tokens are the bytes of UTF-8."""

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return [*text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of these bytes."""
        return bytes(token for token in tokens if token < BYTES).decode(errors="replace")


@dataclass(frozen=True)
class TokenizerCodec:
    """The codec of a tokenizer's file, which is read at the first use."""

    path: str
    """The file, or a folder with a `tokenizer.json`."""
    end_token: int | str | None = None

    @cached_property
    def _encoder(self) -> HuggingFaceEncoder:
        return encoder_of(tokenizer_bytes(self.path), self.path, self.end_token)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, after those that begin each document."""
        found = self._encoder.tokenizer.encode(text, add_special_tokens=False)
        return [*self._encoder.start, *found.ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens, without those that begin or end documents."""
        return str(self._encoder.tokenizer.decode([*tokens]))


@dataclass(frozen=True, slots=True)
class UnknownCodec:
    """The codec of token ids that came without a tokenizer: there is none."""

    source: str

    def encode(self, text: str) -> list[int]:
        """Refuse.

        Errors: `UserMistake`, always.
        """
        raise UserMistake(
            f"data.source = {self.source!r} holds token ids, and no tokenizer is known for them: "
            "set data.tokenizer to the file of the one that made them"
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Refuse, as `encode` does.

        Errors: `UserMistake`, always.
        """
        del tokens
        self.encode("")
        return ""


def codec_of(data: DataSpec) -> TextCodec:
    """Return the codec of a source: its tokenizer, or the bytes of its text."""
    if data.tokenizer is not None:
        return TokenizerCodec(data.tokenizer, data.end_token)
    if (Path(data.source).expanduser() / TOKENIZER).is_file():
        return TokenizerCodec(data.source, data.end_token)
    return UnknownCodec(data.source) if data.tokens else Bytes()


class Decoder(Protocol):
    """A model that takes one token after another, and keeps what it has computed for them."""

    @property
    def most(self) -> int:
        """Tokens that it can keep."""
        ...

    def read(self, params: Any, tokens: Sequence[int]) -> Scores:
        """Forget everything, take these tokens, and return the scores of the next one."""
        ...

    def step(self, params: Any, token: int) -> Scores:
        """Take one more token, and return the scores of the next one."""
        ...


@dataclass(frozen=True, slots=True)
class TextModel:
    """Codec, logits and decoder of a model of text (`Task.text`)."""

    codec: TextCodec
    logits: Callable[[Any, jax.Array], jax.Array]
    """(parameters, tokens int [B, T]) -> scores of the token after each position, [B, T, V]."""
    decoder: Callable[[], Decoder]
    """() -> a new decoder."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The choice of the next token from its scores."""

    temperature: float = 0.8
    """The scores are divided by it; 0 always takes the best one."""
    top_k: int = 0
    """The best tokens that can be chosen; 0 for all."""
    seed: int = 0
    """The seed of the choices."""


def generated(
    decoder: Decoder, params: Any, prompt: Sequence[int], count: int, sampling: Sampling
) -> Iterator[int]:
    """Yield the next `count` tokens after a prompt of at least one token.

    When the decoder is full, it reads the newer half of its tokens again and continues from there.
    """
    rng = np.random.default_rng(sampling.seed)
    history = [*prompt]
    scores = decoder.read(params, history[-decoder.most :])
    kept = min(len(history), decoder.most)
    for _ in range(count):
        token = chosen(scores, sampling, rng)
        yield token
        history.append(token)
        if kept < decoder.most:
            scores, kept = decoder.step(params, token), kept + 1
        else:
            kept = max(1, decoder.most // 2)
            scores = decoder.read(params, history[-kept:])


def chosen(scores: Scores, sampling: Sampling, rng: np.random.Generator) -> int:
    """Return a token, drawn with the probabilities that its scores give."""
    if sampling.temperature == 0:
        return int(np.argmax(scores))
    scaled = np.asarray(scores, np.float64) / sampling.temperature
    if 0 < sampling.top_k < scaled.size:
        least = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        scaled = np.where(scaled < least, -np.inf, scaled)
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(scaled.size, p=weights / weights.sum()))


def texts(codec: TextCodec, tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of tokens piece by piece, each character once it is complete."""
    taken, shown = list[int](), ""
    for token in tokens:
        taken.append(token)
        text = codec.decode(taken)
        if not text.endswith(INCOMPLETE) and text.startswith(shown):
            yield text[len(shown) :]
            shown = text
    rest = codec.decode(taken)
    if rest.startswith(shown) and len(rest) > len(shown):
        yield rest[len(shown) :]
