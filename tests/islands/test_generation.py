"""Tokens from a trained model: the decoder agrees with the model, and choices follow the scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from islands import model
from islands.model import ModelSpec
from islands.model_decoder import ModelDecoder
from islands.text_model import Bytes, Sampling, chosen, generated, texts

WINDOW = 12
SPEC = ModelSpec(vocabulary=30, width=16, layers=3, heads=2, hidden=24)


@pytest.fixture(scope="module")
def params() -> model.ModelParams:
    """Return parameters whose leaves are all random, so that each of them counts."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype("f4"), model.init(SPEC, 0)
    )


@pytest.mark.long
@pytest.mark.parametrize("first", [1, 5, WINDOW])
def test_decoder_gives_the_scores_of_the_model(params: model.ModelParams, first: int) -> None:
    tokens = np.random.default_rng(first).integers(0, 30, WINDOW).tolist()
    wanted = np.asarray(model.logits(SPEC, params, jnp.asarray([tokens], jnp.int32)))[0]
    decoder = ModelDecoder(SPEC, WINDOW)
    found = [decoder.read(params, tokens[:first])]
    found += [decoder.step(params, token) for token in tokens[first:]]
    np.testing.assert_allclose(found, wanted[first - 1 :], rtol=1e-4, atol=1e-4)
    assert np.abs(wanted).max() > 0.5


def test_reading_forgets_what_was_before(params: model.ModelParams) -> None:
    decoder = ModelDecoder(SPEC, WINDOW)
    first = decoder.read(params, [1, 2, 3])
    decoder.read(params, [7] * WINDOW)
    np.testing.assert_array_equal(decoder.read(params, [1, 2, 3]), first)


def test_decoder_that_is_full_or_empty_says_so(params: model.ModelParams) -> None:
    decoder = ModelDecoder(SPEC, WINDOW)
    with pytest.raises(ValueError, match="read first"):
        decoder.step(params, 1)
    decoder.read(params, [1] * WINDOW)
    with pytest.raises(ValueError, match="12 tokens are kept of at most 12"):
        decoder.step(params, 1)


@pytest.mark.long
def test_greedy_tokens_are_those_of_the_whole_model(params: model.ModelParams) -> None:
    prompt, count = [3, 1, 4], WINDOW - 3
    greedy = Sampling(temperature=0)
    found = [*generated(ModelDecoder(SPEC, WINDOW), params, prompt, count, greedy)]
    tokens = [*prompt]
    for _ in range(count):
        scores = model.logits(SPEC, params, jnp.asarray([tokens], jnp.int32))[0, -1]
        tokens.append(int(jnp.argmax(scores)))
    assert found == tokens[3:]


@pytest.mark.long
def test_generation_goes_on_beyond_the_window(params: model.ModelParams) -> None:
    count, sampling = 3 * WINDOW, Sampling(seed=5)
    once = [*generated(ModelDecoder(SPEC, WINDOW), params, [1] * 20, count, sampling)]
    again = [*generated(ModelDecoder(SPEC, WINDOW), params, [1] * 20, count, sampling)]
    assert len(once) == count
    assert once == again
    other = Sampling(seed=6)
    assert once != [*generated(ModelDecoder(SPEC, WINDOW), params, [1] * 20, count, other)]


def test_choices_follow_the_scores_the_temperature_and_the_best() -> None:
    scores = np.log(np.asarray([0.5, 0.3, 0.15, 0.05], np.float32))

    def shares(sampling: Sampling) -> list[float]:
        rng = np.random.default_rng(0)
        drawn = [chosen(scores, sampling, rng) for _ in range(4000)]
        return [drawn.count(token) / 4000 for token in range(4)]

    np.testing.assert_allclose(shares(Sampling(1.0)), [0.5, 0.3, 0.15, 0.05], atol=0.03)
    np.testing.assert_allclose(shares(Sampling(1.0, top_k=2)), [0.625, 0.375, 0, 0], atol=0.03)
    cold = np.asarray([0.5, 0.3, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(shares(Sampling(0.5)), cold / cold.sum(), atol=0.03)
    assert shares(Sampling(0.0)) == [1, 0, 0, 0]


def test_text_comes_in_whole_characters() -> None:
    text = "für 10 € naïve"
    pieces = [*texts(Bytes(), iter(text.encode()))]
    assert "".join(pieces) == text
    assert "€" in pieces
    cut = [*texts(Bytes(), islice(iter("a€".encode()), 3))]
    assert "".join(cut) == "a\ufffd"


class Words:
    """A codec of words, whose spaces are left out at the beginning, as in many tokenizers."""

    def __init__(self, *words: str) -> None:
        self.words, self.decoded = words, 0

    def encode(self, text: str) -> list[int]:
        return [self.words.index(f" {word}") for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        self.decoded += len(tokens)
        return "".join(self.words[token] for token in tokens).removeprefix(" ")


def test_space_between_a_prompt_and_its_continuation_is_kept() -> None:
    codec = Words(" my", " dear", " friend", "", "s", " ")
    prompt, more = codec.encode("my dear"), [2, 3, 4, 5, 2, 3]
    assert "".join(texts(codec, iter(more), prompt)) == " friends  friend"
    assert "".join(texts(codec, iter(more))) == "friends  friend"


def test_time_of_a_text_grows_with_its_length() -> None:
    codec = Words(" my", " dear")
    assert len("".join(texts(codec, iter([0, 1] * 500)))) == 500 * len(" my dear") - 1
    assert codec.decoded < 10 * 1000
