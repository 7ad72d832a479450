"""The built-in transformer one token at a time, with the keys and values of the tokens before.

Shapes in comments are those of `islands.model`, with S for the tokens that a decoder can keep.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from islands import model
from islands.cached_decoder import CachedDecoder
from islands.model import Attention, Blocks, ModelParams, ModelSpec
from islands.sources import DataSpec
from islands.text_model import SourceCodec, TextModel

Cache: TypeAlias = tuple[jax.Array, jax.Array]
"""Keys and values of all layers, [L, S, N, K] each."""


def text_model(spec: ModelSpec, data: DataSpec) -> TextModel:
    """Return the built-in transformer as a model of the text of a source."""
    return TextModel(
        codec=SourceCodec(data, spec.vocabulary),
        logits=lambda params, tokens: model.logits(spec, params, tokens),
        decoder=lambda: ModelDecoder(spec, data.window),
    )


class ModelDecoder(CachedDecoder[Cache]):
    """A decoder of the built-in transformer, for at most as many tokens as a window has."""

    def __init__(self, spec: ModelSpec, window: int) -> None:
        super().__init__(spec.vocabulary, window)
        self._spec = spec

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
        self, layer: Attention, x: jax.Array, cache: Cache, turns: model.CosSin, position: Any
    ) -> tuple[jax.Array, Cache]:
        """Attend from one token to itself and all before: [1, 1, D] -> [1, 1, D]."""
        heads, width = self._spec.heads, self._spec.width
        normed = model.norm(x, layer["norm"])

        def split(weights: model.ModelLeaf) -> jax.Array:
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
