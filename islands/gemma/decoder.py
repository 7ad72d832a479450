"""A Gemma model one token at a time, with the keys and values of the tokens before.

Layers with shared keys and values keep none of their own. The layers are written out one after
another, so the time to compile grows with their number. Shapes in comments are those of
`islands.gemma.layers`, with S for the tokens that a decoder can keep.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from islands.cached_decoder import CachedDecoder
from islands.gemma import forward, layers
from islands.gemma.forward import LAYER_SCALARS
from islands.gemma.layers import KeysValues, Positions, Rotation
from islands.gemma.parameters import GemmaParams
from islands.gemma.spec import LOCAL, SHARED, GemmaSpec
from islands.sources import DataSpec
from islands.text_model import SourceCodec, TextModel

LayerCache: TypeAlias = tuple[KeysValues, ...]
"""Keys and values of each layer that has its own, [1, S, M, K] each."""


def text_model(spec: GemmaSpec, data: DataSpec) -> TextModel:
    """Return a Gemma model as a model of the text of a source."""
    frozen = forward.frozen_of(spec)
    return TextModel(
        codec=SourceCodec(data, spec.vocabulary),
        logits=lambda params, tokens: forward.forward(spec, params, tokens, frozen).logits,
        decoder=lambda: GemmaDecoder(spec, data.window),
    )


class GemmaDecoder(CachedDecoder[LayerCache]):
    """A decoder of a Gemma model, for at most as many tokens as a window of the data has."""

    def __init__(self, spec: GemmaSpec, window: int) -> None:
        super().__init__(spec.vocabulary, window)
        self._spec = spec

    def _blank(self) -> LayerCache:
        spec, dtype = self._spec, jnp.dtype(self._spec.compute_dtype)
        kinds = spec.kinds[: spec.layers - spec.shared_kv_layers]
        zeros = [
            jnp.zeros((1, self._window, heads.keys, heads.size), dtype)
            for heads in map(spec.heads_of, kinds)
        ]
        return tuple(KeysValues(each, each) for each in zeros)

    def _next(
        self, params: GemmaParams, cache: LayerCache, token: jax.Array, position: Any
    ) -> tuple[jax.Array, LayerCache]:
        """Return the scores after a token at this position, [V], and the cache with that token."""
        spec, kept = self._spec, [*cache]
        dtype, tokens = jnp.dtype(spec.compute_dtype), token[None, None]
        x = layers.embed(params["embedding"], tokens, dtype)  # [1, 1, D]
        inputs = None
        if spec.per_layer_size:
            inputs = layers.per_layer_inputs(spec, params["per_layer"], x, tokens)
        frozen = forward.frozen_of(spec)
        where = {kind: self._place(kind, position) for kind in {*spec.kinds}}
        last = {kind: number for number, kind in enumerate(spec.kinds[: len(cache)])}
        for section in spec.sections:
            for own, kind in enumerate(section.kinds):
                number, row = section.first + own, section.row(own)
                stack = params[section.name][kind]
                layer = forward.cast(jax.tree.map(lambda leaf, n=row: leaf[n], stack), dtype)
                normed = layers.norm(spec, x, layer["attention"]["norm"])
                if section.name != SHARED:
                    rotation = where[kind].rotation
                    kept[number] = self._kept(layer, kind, normed, rotation, kept[number], position)
                seen = kept[last[kind] if section.name == SHARED else number]
                heads = spec.heads_of(kind)
                mixed, _ = layers.attend(spec, layer["attention"], normed, heads, where[kind], seen)
                scalar = None if frozen is None else jnp.asarray(frozen[LAYER_SCALARS][number])
                per_layer = None if inputs is None else inputs[:, :, number]
                x, _ = forward.finished(spec, layer, x, mixed, scalar, per_layer)
        return forward.scored(spec, params, x)[0, 0], tuple(kept)

    def _kept(
        self,
        layer: Any,
        kind: str,
        normed: jax.Array,
        rotation: Rotation,
        before: KeysValues,
        position: Any,
    ) -> KeysValues:
        """Return the keys and values of a layer with those of the token at this position."""
        heads = self._spec.heads_of(kind)
        new = layers.keys_and_values(self._spec, layer["attention"], normed, heads, rotation)
        return KeysValues(
            *(old.at[:, position].set(each[:, 0]) for old, each in zip(before, new, strict=True))
        )

    def _place(self, kind: str, position: Any) -> Positions:
        """Return the rotation of one position, and the positions that it attends to, [1, S]."""
        turns = layers.rotation(self._spec, kind, self._window)
        behind = position - jnp.arange(self._window)
        seen = behind >= 0
        if kind == LOCAL:
            seen = seen & (behind < self._spec.window)
        here = Rotation(turns.cosine[position][None], turns.sine[position][None])
        return Positions(here, seen[None])
