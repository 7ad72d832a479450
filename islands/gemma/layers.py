"""The parts of a Gemma layer: norms, rotary positions, attention, gated MLP, embeddings per layer.

Shapes in comments: B batch, T time, D width, N query heads, M key heads, R = N / M, K head size, F
hidden, P per-layer size. Parameters are float32; each part computes in the type of its input, and
norms, attention weights and logits are float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from islands.gemma.spec import LOCAL, GemmaSpec, Heads
from islands.model import project

Layer: TypeAlias = Mapping[str, Any]
"""The parameters of one layer, or of a part of it."""


class Rotation(NamedTuple):
    """The cosine and sine of the angles of each position, each [T, 1, K / 2]."""

    cosine: jax.Array
    sine: jax.Array


class KeysValues(NamedTuple):
    """The keys (normed and rotated) and values of a layer, each [B, T, M, K]."""

    keys: jax.Array
    values: jax.Array


class Positions(NamedTuple):
    """The rotation and the mask of one kind of layer."""

    rotation: Rotation
    mask: jax.Array
    """Whether a position attends to another one, [T, T], or of each sequence [B, 1, 1, T, T]."""


def norm(spec: GemmaSpec, x: jax.Array, weight: Any = None) -> jax.Array:
    """Apply RMSNorm (arXiv:1910.07467) in float32 over the last axis; without a weight, unscaled.

    Gemma 3 multiplies by 1 + weight, Gemma 4 by the weight.
    """
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean_square + spec.norm_epsilon)
    if weight is not None:
        weight = jnp.asarray(weight).astype(jnp.float32)
        normed = normed * (1 + weight if spec.generation == 3 else weight)
    return normed.astype(x.dtype)


def positions(spec: GemmaSpec, kind: str, time: int) -> Positions:
    """Return the rotation and the causal mask of a kind of layer for sequences of this length."""
    behind = np.arange(time)[:, None] - np.arange(time)[None, :]
    mask = behind >= 0
    if kind == LOCAL:
        mask &= behind < spec.window
    return Positions(rotation(spec, kind, time), jnp.asarray(mask))


def within(where: Positions, segments: jax.Array | None) -> Positions:
    """Return positions that attend only within their segment: int [B, T], or None for one."""
    if segments is None:
        return where
    same = segments[:, :, None] == segments[:, None, :]
    return Positions(where.rotation, (where.mask & same)[:, None, None])


def rotation(spec: GemmaSpec, kind: str, time: int) -> Rotation:
    """Return the angles of rotary positions (RoPE, arXiv:2104.09864).

    If only a share of the pairs is rotated, these are the first ones, at the speeds that they have
    in a head that is rotated whole. The other pairs have the angle 0.
    """
    size, pairs = spec.heads_of(kind).size, spec.rotated_pairs(kind)
    base = spec.local_rope_base if kind == LOCAL else spec.global_rope_base
    scale = 1.0 if kind == LOCAL else spec.global_rope_scale
    speeds = np.zeros(size // 2)
    speeds[:pairs] = base ** (-np.arange(0, 2 * pairs, 2) / size) / scale
    angles = (np.arange(time)[:, None] * speeds)[:, None, :]
    dtype = jnp.dtype(spec.compute_dtype)
    return Rotation(jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype))


def rotate(x: jax.Array, turns: Rotation) -> jax.Array:
    """Turn the pairs (i, i + K / 2) of each head by the angles of their position: [B, T, N, K]."""
    first, second = jnp.split(x, 2, axis=-1)
    turned = (
        first * turns.cosine - second * turns.sine,
        second * turns.cosine + first * turns.sine,
    )
    return jnp.concatenate(turned, axis=-1)


def keys_and_values(
    spec: GemmaSpec, layer: Layer, x: jax.Array, heads: Heads, turns: Rotation
) -> KeysValues:
    """Project normed inputs [B, T, D] to keys and values.

    Without a projection of its own, a value is the projected key before its norm and rotation. The
    values of Gemma 4 are normed without a scale.
    """
    shape = (*x.shape[:2], heads.keys, heads.size)
    projected = project(x, layer["key"]).reshape(shape)
    keys = rotate(norm(spec, projected, layer["key_norm"]), turns)
    values = project(x, layer["value"]).reshape(shape) if "value" in layer else projected
    if spec.generation == 4:
        values = norm(spec, values)
    return KeysValues(keys, values)


def attend(
    spec: GemmaSpec,
    layer: Layer,
    x: jax.Array,
    heads: Heads,
    where: Positions,
    shared: KeysValues | None,
) -> tuple[jax.Array, KeysValues]:
    """Apply causal self-attention with grouped queries to normed inputs: [B, T, D] -> [B, T, D].

    `shared`: keys and values of an earlier layer, for a layer that has none of its own. Returns the
    output and the keys and values that were used.
    """
    batch, time, _ = x.shape
    queries = project(x, layer["query"]).reshape(batch, time, heads.queries, heads.size)
    queries = rotate(norm(spec, queries, layer["query_norm"]), where.rotation)
    used = keys_and_values(spec, layer, x, heads, where.rotation) if shared is None else shared
    grouped = queries.reshape(batch, time, heads.keys, -1, heads.size)  # [B, T, M, R, K]
    scores = jnp.einsum("btmrk,bsmk->bmrts", grouped, used.keys, preferred_element_type=jnp.float32)
    scores = jnp.where(where.mask, scores * spec.score_scale, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bmrts,bsmk->btmrk", weights, used.values)
    return project(mixed.reshape(batch, time, -1), layer["output"]), used


def mlp(layer: Layer, x: jax.Array) -> jax.Array:
    """Apply the MLP gated by a GELU (GeGLU, arXiv:2002.05202): [B, T, D] -> [B, T, D]."""
    return project(gated(project(x, layer["gate"]), project(x, layer["up"])), layer["down"])


def gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    """Multiply by the GELU of a gate, in its approximation by tanh."""
    return jax.nn.gelu(gate, approximate=True) * up


def embed(table: Any, tokens: jax.Array, dtype: Any) -> jax.Array:
    """Look tokens up, scaled by the root of the row's length: int [B, T] -> [B, T, row].

    The factor is rounded to the type of the computation, as the published models were trained.
    """
    scale = jnp.asarray(math.sqrt(table.shape[-1]), dtype)
    return jnp.asarray(table)[tokens].astype(dtype) * scale


def per_layer_inputs(spec: GemmaSpec, layer: Layer, x: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the input of each layer's own embedding: [B, T, L, P], from embedded tokens `x`."""
    shape = (*tokens.shape, spec.layers, spec.per_layer_size)
    context = project(x, layer["projection"].astype(x.dtype)) * spec.width**-0.5
    context = norm(spec, context.reshape(shape), layer["norm"])
    own = layer["embedding"].reshape(-1, spec.layers, spec.per_layer_size)
    scale = jnp.asarray(math.sqrt(spec.per_layer_size), x.dtype)
    return (context + own[tokens].astype(x.dtype) * scale) * 2**-0.5


def add_per_layer(spec: GemmaSpec, layer: Layer, x: jax.Array, own: jax.Array) -> jax.Array:
    """Add a layer's own embedding of its tokens, [B, T, P], to the residual stream [B, T, D]."""
    projected = project(gated(project(x, layer["gate"]), own), layer["projection"])
    return x + norm(spec, projected, layer["norm"])


def capped(spec: GemmaSpec, logits: jax.Array) -> jax.Array:
    """Bound the logits smoothly, if the model does."""
    return spec.softcap * jnp.tanh(logits / spec.softcap) if spec.softcap else logits
