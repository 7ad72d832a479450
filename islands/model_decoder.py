"""The built-in transformer one token at a time, with the keys and values of the tokens before.

Shapes in comments are those of `islands.model`, with S for the tokens that a decoder can keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from islands import model
from islands.model import Attention, Blocks, ModelParams, ModelSpec
from islands.sources import DataSpec
from islands.text_model import Scores, TextModel, codec_of

Cache: TypeAlias = tuple[jax.Array, jax.Array]
"""Keys and values of all layers, [L, S, N, K] each."""


def text_model(spec: ModelSpec, data: DataSpec) -> TextModel:
    """Return the built-in transformer as a model of the text of a source."""
    return TextModel(
        codec=codec_of(data),
        logits=lambda params, tokens: model.logits(spec, params, tokens),
        decoder=lambda: ModelDecoder(spec, data.window),
    )


class ModelDecoder:
    """A decoder of the built-in transformer, for at most as many tokens as a window has."""

    def __init__(self, spec: ModelSpec, window: int) -> None:
        self._spec, self._window, self._count = spec, window, 0
        self._cache: Cache | None = None

    @property
    def most(self) -> int:
        """Tokens that it can keep."""
        return self._window

    def read(self, params: Any, tokens: Sequence[int]) -> Scores:
        """Forget everything, take these tokens, and return the scores of the next one."""
        if not 1 <= len(tokens) <= self._window:
            raise ValueError(f"{len(tokens)} tokens, 1 to {self._window} can be read")
        padded = np.zeros(self._window, np.int32)
        padded[: len(tokens)] = tokens
        scores, self._cache = self._read(params, padded, len(tokens))
        self._count = len(tokens)
        return np.asarray(scores)

    def step(self, params: Any, token: int) -> Scores:
        """Take one more token, and return the scores of the next one."""
        if self._cache is None or self._count >= self._window:
            raise ValueError(f"{self._count} tokens are kept of at most {self._window}: read first")
        scores, self._cache = self._step(params, self._cache, np.int32(token), self._count)
        self._count += 1
        return np.asarray(scores)

    @cached_property
    def _step(self) -> Any:
        return jax.jit(self._next, donate_argnums=1)

    @cached_property
    def _read(self) -> Any:
        def read(params: ModelParams, tokens: jax.Array, count: int) -> tuple[jax.Array, Cache]:
            def one(i: int, carried: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
                return self._next(params, carried[1], tokens[i], i)

            blank = jnp.zeros(self._spec.vocabulary, jnp.float32), self._blank()
            return jax.lax.fori_loop(0, count, one, blank)

        return jax.jit(read)

    def _blank(self) -> Cache:
        spec, dtype = self._spec, jnp.dtype(self._spec.compute_dtype)
        size = spec.layers, self._window, spec.heads, spec.width // spec.heads
        return jnp.zeros(size, dtype), jnp.zeros(size, dtype)

    def _next(
        self, params: ModelParams, cache: Cache, token: jax.Array, position: Any
    ) -> tuple[jax.Array, Cache]:
        """Return the scores after a token at this position, [V], and the cache with that token."""
        spec, dtype = self._spec, jnp.dtype(self._spec.compute_dtype)
        turns = model.rotation(self._window, spec.width // spec.heads, dtype)
        here = turns[0][position][None], turns[1][position][None]

        def block(x: jax.Array, layer: tuple[Blocks, Cache]) -> tuple[jax.Array, Cache]:
            weights = jax.tree.map(lambda leaf: leaf.astype(dtype), layer[0])
            mixed, kept = self._attend(weights["attention"], x, layer[1], here, position)
            x = x + mixed
            return x + model.mlp(weights["mlp"], x), kept

        x = jnp.asarray(params["embedding"]).astype(dtype)[token][None, None]  # [1, 1, D]
        x, cache = jax.lax.scan(block, x, (params["blocks"], cache))
        head = jnp.asarray(params["head"]).astype(dtype)
        scores = model.project(model.norm(x, params["norm"]), head)
        return scores[0, 0].astype(jnp.float32), cache

    def _attend(
        self, layer: Attention, x: jax.Array, cache: Cache, turns: model.Rotation, position: Any
    ) -> tuple[jax.Array, Cache]:
        """Attend from one token to itself and all before: [1, 1, D] -> [1, 1, D]."""
        heads, width = self._spec.heads, self._spec.width
        normed = model.norm(x, layer["norm"])

        def split(weights: model.Leaf) -> jax.Array:
            return model.project(normed, weights).reshape(1, 1, heads, width // heads)

        query = model.rotate(split(layer["query"]), turns)[0, 0]  # [N, K]
        key = model.rotate(split(layer["key"]), turns)[0, 0]
        keys = cache[0].at[position].set(key)
        values = cache[1].at[position].set(split(layer["value"])[0, 0])
        scores = jnp.einsum("nk,snk->ns", query, keys, preferred_element_type=jnp.float32)
        scores = scores / math.sqrt(width // heads)
        seen = jnp.arange(self._window) <= position
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(x.dtype)
        mixed = jnp.einsum("ns,snk->nk", weights, values)
        return model.project(mixed.reshape(1, 1, width), layer["output"]), (keys, values)
