"""Text out of a trained language model: its next tokens, one at a time, and the loss of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.data.text_tokens import BYTES, HuggingFaceEncoder, encoder_of
from islands.source_tokenizer import ByteTokens, NoTokenizer, SourceTokenizer, tokenizer_of
from islands.sources import DataSpec

Scores = NDArray[np.float32]
"""The scores of all tokens of the vocabulary as the next one, [V]; logits, not normalised."""
Logits: TypeAlias = Callable[[Any, jax.Array], jax.Array]
"""(parameters, tokens int [B, T]) -> scores of the token after each position, [B, T, V]."""
INCOMPLETE = "\ufffd"
"""The mark of bytes that are no text, or not yet."""
CONTEXT = 8
"""Tokens of a prompt that the first generated token is decoded with."""


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


@dataclass(frozen=True, slots=True)
class TokenizerCodec:
    """The codec of a tokenizer."""

    encoder: HuggingFaceEncoder

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, after those that begin each document."""
        found = self.encoder.tokenizer.encode(text, add_special_tokens=False)
        return [*self.encoder.start, *found.ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens, without those that begin or end documents."""
        return str(self.encoder.tokenizer.decode([*tokens]))


@dataclass(frozen=True, slots=True)
class UnknownCodec:
    """The codec of token ids without one tokenizer: there is none."""

    why: str
    """The reason, and the remedy."""

    def encode(self, text: str) -> list[int]:
        """Refuse.

        Errors: `UserMistake`, always.
        """
        raise UserMistake(self.why)

    def decode(self, tokens: Sequence[int]) -> str:
        """Refuse, as `encode` does.

        Errors: `UserMistake`, always.
        """
        del tokens
        raise UserMistake(self.why)


@dataclass(frozen=True)
class SourceCodec:
    """The codec of a source, which is opened at the first use."""

    data: DataSpec
    vocabulary: int
    """The vocabulary of the model."""

    @cached_property
    def found(self) -> TextCodec:
        """The codec.

        Errors: `UserMistake` if a tokenizer or a token directory cannot be read.
        """
        return codec_of(self.data, self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self.found.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return self.found.decode(tokens)


def codec_of(data: DataSpec, vocabulary: int) -> TextCodec:
    """Return the codec of a source: its tokenizer, the bytes of its text, or a refusal.

    `vocabulary`: that of the model.

    Errors: `UserMistake` if a tokenizer or a token directory cannot be read.
    """
    match tokenizer_of(data, vocabulary):
        case SourceTokenizer() as own:
            return TokenizerCodec(encoder_of(own.content, own.name, own.end_token))
        case ByteTokens():
            return Bytes()
        case NoTokenizer() as none:
            return UnknownCodec(none.why)


def reads_bytes(codec: TextCodec) -> bool:
    """Return whether the tokens of a codec are bytes.

    Errors: the errors of `codec_of`.
    """
    return isinstance(codec.found if isinstance(codec, SourceCodec) else codec, Bytes)


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
    logits: Logits
    """(parameters, tokens int [B, T]) -> scores of the token after each position, [B, T, V]."""
    decoder: Callable[[], Decoder]
    """() -> a new decoder."""

    @classmethod
    def of_logits(cls, logits: Logits, data: DataSpec, vocabulary: int = BYTES) -> TextModel:
        """Return a model of the text of a source from its logits alone.

        Its decoder keeps nothing that the model computes, so each token costs the scores of a whole
        window.

        Args:
            logits: As the field. The scores at a position must depend on no later token.
            data: The argument of the task's function.
            vocabulary: Number of tokens.
        """
        codec = SourceCodec(data, vocabulary)
        return cls(codec, logits, lambda: WindowDecoder(logits, data.window))


class WindowDecoder:
    """A decoder that computes the scores of a whole window for each token."""

    def __init__(self, logits: Logits, window: int) -> None:
        """Create the decoder; `window`: the tokens of the model's windows."""
        self._window, self._tokens = window, list[int]()

        def last(params: Any, tokens: jax.Array, position: Any) -> jax.Array:
            scores = logits(params, tokens)
            if scores.ndim != 3 or scores.shape[:2] != tokens.shape:
                raise UserMistake(
                    f"the logits of the task have the shape {[*scores.shape]} for tokens "
                    f"{[*tokens.shape]}: they must be [batch, tokens, vocabulary]"
                )
            return scores[0, position].astype(np.float32)

        self._last = jax.jit(last)

    @property
    def most(self) -> int:
        """Tokens that it can keep."""
        return self._window

    def read(self, params: Any, tokens: Sequence[int]) -> Scores:
        """Forget everything, take these tokens, and return the scores of the next one.

        Errors: `UserMistake` if the logits have another shape than [B, T, V].
        """
        self._tokens = [*tokens]
        padded = np.zeros((1, self._window), np.int32)
        padded[0, : len(tokens)] = tokens
        return np.asarray(self._last(params, padded, len(tokens) - 1))

    def step(self, params: Any, token: int) -> Scores:
        """Take one more token, and return the scores of the next one."""
        return self.read(params, [*self._tokens, token])


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


def texts(codec: TextCodec, tokens: Iterator[int], before: Sequence[int] = ()) -> Iterator[str]:
    """Yield the text of tokens piece by piece, each character once it is complete.

    `before`: the tokens whose text comes before, such as a prompt. A token may have another text at
    the beginning, such as a word without the space before it. So each piece is decoded together
    with the tokens of the one before it, and not with all tokens.
    """
    recent = [*before[-CONTEXT:]]
    shown = codec.decode(recent) if recent else ""
    old = len(recent)
    for token in tokens:
        recent.append(token)
        text = codec.decode(recent)
        if len(text) > len(shown) and not text.endswith(INCOMPLETE):
            yield text[len(shown) :]
            recent, old = recent[old:], len(recent) - old
            shown = codec.decode(recent)
    yield from filter(None, [codec.decode(recent)[len(shown) :]])
