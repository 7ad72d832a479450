"""The decoder-only transformer that comes with the project: plain functions on plain dicts.

It has pre-norm blocks (RMSNorm, arXiv:1910.07467) with rotary positions (RoPE, arXiv:2104.09864),
causal attention and a gated MLP (SwiGLU, arXiv:2002.05202). All layers are stacked in one leaf
each, and `lax.scan` walks over them. Shapes in comments: B batch, T time, V vocabulary, D width, F
hidden, L layers, N heads, K = D / N.

Parameters are float32 and come from NumPy, so that every machine starts from the same bits on any
accelerator. Norms keep their gain as an offset from one, so weight decay pulls them to the
identity. The head starts at zero: the first loss is ln V exactly.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from islands.data.segments import segments_of, tokens_of
from islands.masked_loss import mean_nats

ModelLeaf: TypeAlias = jax.Array | np.ndarray[tuple[int, ...], np.dtype[np.float32]]

CosSin: TypeAlias = tuple[jax.Array, jax.Array]
"""The cosine and sine of each position's angles, [T, 1, K / 2]."""

COMPUTE_DTYPES = ("float32", "bfloat16")
NORM_EPSILON = 1e-6
ROPE_BASE = 10_000.0
"""The longest wavelength of the rotary positions, in tokens over 2 pi (arXiv:2104.09864)."""

OPEN = PartitionSpec.UNCONSTRAINED
"""An axis that may be split over fsdp; see `islands.mesh_shape.OPEN`."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape of a model."""

    vocabulary: int = 256
    """Number of distinct tokens."""
    width: int = 128
    """Elements of the residual stream."""
    layers: int = 4
    """Number of layers."""
    heads: int = 2
    """Attention heads in each layer."""
    hidden: int = 448
    """Hidden units of each MLP."""
    compute_dtype: str = "float32"
    """The type of the computations: "float32", or "bfloat16" on accelerators."""

    def problems(self) -> list[str]:
        """Return why this shape cannot be built; empty if it can."""
        sizes = ("vocabulary", "width", "layers", "heads", "hidden")
        given = {name: getattr(self, name) for name in sizes}
        found = [f"{name} = {n}: must be at least 1" for name, n in given.items() if n < 1]
        if not found and self.width % (2 * self.heads):
            found.append(
                f"heads: width = {self.width} must be a multiple of 2 x heads = {2 * self.heads}"
            )
        if self.compute_dtype not in COMPUTE_DTYPES:
            found.append(f"compute_dtype = {self.compute_dtype!r}: {' or '.join(COMPUTE_DTYPES)}")
        return found


class Attention(TypedDict):
    """The parameters of attention, all layers stacked."""

    norm: ModelLeaf  # [L, D]
    query: ModelLeaf  # [L, D, D]
    key: ModelLeaf  # [L, D, D]
    value: ModelLeaf  # [L, D, D]
    output: ModelLeaf  # [L, D, D]


class Mlp(TypedDict):
    """The parameters of the gated MLPs, all layers stacked."""

    norm: ModelLeaf  # [L, D]
    gate: ModelLeaf  # [L, D, F]
    up: ModelLeaf  # [L, D, F]
    down: ModelLeaf  # [L, F, D]


class Blocks(TypedDict):
    """The parameters of all blocks."""

    attention: Attention
    mlp: Mlp


class ModelParams(TypedDict):
    """The parameters of the model."""

    embedding: ModelLeaf  # [V, D]
    blocks: Blocks
    norm: ModelLeaf  # [D]
    head: ModelLeaf  # [D, V]


def init(spec: ModelSpec, seed: int) -> ModelParams:
    """Return initial parameters: normal, of deviation 1/sqrt(inputs).

    The deviation of leaves that write to the residual is smaller by sqrt(2 L).
    """
    return _leaves(spec, lambda path, made: _drawn(path, made, seed))


def init_leaf(spec: ModelSpec, path: str, seed: int) -> ModelLeaf:
    """Return one leaf of `init`, drawn by itself."""
    return _drawn(path, _plan(spec)[path], seed)


def shapes(spec: ModelSpec) -> ModelParams:
    """Return the result of `init` as `jax.ShapeDtypeStruct`, without drawing numbers."""
    return _leaves(spec, lambda path, made: jax.ShapeDtypeStruct(made.shape, np.float32))


def sharding(spec: ModelSpec, path: str) -> PartitionSpec | None:
    """Return how a leaf is split over an island's mesh; None for a leaf of another task.

    Heads and hidden units are split over `tensor`, so that each layer is summed twice. The rest is
    split over `fsdp`, if that divides it.
    """
    made = _plan(spec).get(path)  # a task based on this one may have leaves of its own
    return None if made is None else made.split


@dataclass(frozen=True, slots=True)
class _Made:
    """A leaf of normal numbers."""

    shape: tuple[int, ...]
    deviation: float
    """Standard deviation; 0: the leaf is zero."""
    split: PartitionSpec
    """The split of the leaf over a mesh."""


def _drawn(path: str, made: _Made, seed: int) -> ModelLeaf:
    if made.deviation == 0:
        return np.zeros(made.shape, np.float32)
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(path.encode())]))
    drawn = rng.standard_normal(made.shape, np.float32)
    drawn *= np.float32(made.deviation)
    return drawn


def _leaves(spec: ModelSpec, leaf: Callable[[str, _Made], Any]) -> ModelParams:
    """Return the tree with the result of `leaf` for each leaf."""
    plan = _plan(spec)

    def of(path: str) -> Any:
        return leaf(path, plan[path])

    return {
        "embedding": of("embedding"),
        "blocks": {
            "attention": {
                "norm": of("blocks/attention/norm"),
                "query": of("blocks/attention/query"),
                "key": of("blocks/attention/key"),
                "value": of("blocks/attention/value"),
                "output": of("blocks/attention/output"),
            },
            "mlp": {
                "norm": of("blocks/mlp/norm"),
                "gate": of("blocks/mlp/gate"),
                "up": of("blocks/mlp/up"),
                "down": of("blocks/mlp/down"),
            },
        },
        "norm": of("norm"),
        "head": of("head"),
    }


@cache
def _plan(spec: ModelSpec) -> Mapping[str, _Made]:
    """Return each leaf by its path."""
    width, hidden, layers = spec.width, spec.hidden, spec.layers
    inwards, residual = 1 / math.sqrt(width), 1 / math.sqrt(2 * layers)
    square, wide = (layers, width, width), (layers, width, hidden)
    outputs, inputs = PartitionSpec(None, OPEN, "tensor"), PartitionSpec(None, "tensor", OPEN)
    gains, tables = PartitionSpec(None, None), PartitionSpec(OPEN, OPEN)
    return {
        "embedding": _Made((spec.vocabulary, width), 1.0, tables),
        "blocks/attention/norm": _Made((layers, width), 0.0, gains),
        "blocks/attention/query": _Made(square, inwards, outputs),
        "blocks/attention/key": _Made(square, inwards, outputs),
        "blocks/attention/value": _Made(square, inwards, outputs),
        "blocks/attention/output": _Made(square, inwards * residual, inputs),
        "blocks/mlp/norm": _Made((layers, width), 0.0, gains),
        "blocks/mlp/gate": _Made(wide, inwards, outputs),
        "blocks/mlp/up": _Made(wide, inwards, outputs),
        "blocks/mlp/down": _Made((layers, hidden, width), residual / math.sqrt(hidden), inputs),
        "norm": _Made((width,), 0.0, PartitionSpec(None)),
        "head": _Made((width, spec.vocabulary), 0.0, tables),
    }


def logits(
    spec: ModelSpec, params: ModelParams, tokens: jax.Array, segments: jax.Array | None = None
) -> jax.Array:
    """Return the scores of the next token after each position: int [B, T] -> float32 [B, T, V]."""
    dtype = jnp.dtype(spec.compute_dtype)
    turns = rotation(tokens.shape[1], spec.width // spec.heads, dtype)

    def block(x: jax.Array, layer: Blocks) -> tuple[jax.Array, None]:
        layer = jax.tree.map(lambda leaf: leaf.astype(dtype), layer)
        x = x + attend(layer["attention"], x, spec.heads, turns, segments)
        return x + mlp(layer["mlp"], x), None

    x = jnp.asarray(params["embedding"]).astype(dtype)[tokens]  # [B, T, D]
    x, _ = jax.lax.scan(block, x, params["blocks"], unroll=True)
    return project(norm(x, params["norm"]), params["head"].astype(dtype)).astype(jnp.float32)


def loss(spec: ModelSpec, params: ModelParams, batch: Any) -> jax.Array:
    """Return the mean nats per predicted token of windows [B, T + 1].

    Each position predicts its successor. The batch may have segments and a mask (`data.segments`).
    """
    tokens, segments = tokens_of(batch), segments_of(batch)
    seen = None if segments is None else segments[:, :-1]
    scores = logits(spec, params, tokens[:, :-1], seen)
    right = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    return mean_nats(jax.nn.logsumexp(scores, axis=-1) - right, batch)


def norm(x: jax.Array, gain: ModelLeaf) -> jax.Array:
    """Apply RMSNorm in float32; `gain` is an offset from one."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + NORM_EPSILON)
    return (wide * scale * (1 + gain)).astype(x.dtype)


def project(x: jax.Array, weights: ModelLeaf) -> jax.Array:
    """Compute [B, T, i] @ [i, o] as one flat product.

    XLA's batched product takes 1.5 times as long on CPU.
    """
    batch, time, inputs = x.shape
    return (x.reshape(batch * time, inputs) @ weights).reshape(batch, time, -1)


def attend(
    layer: Attention, x: jax.Array, heads: int, turns: CosSin, segments: jax.Array | None = None
) -> jax.Array:
    """Apply causal self-attention: [B, T, D] -> [B, T, D], within each of the segments [B, T]."""
    batch, time, width = x.shape
    normed = norm(x, layer["norm"])

    def split(weights: ModelLeaf) -> jax.Array:
        return project(normed, weights).reshape(batch, time, heads, width // heads)

    query, key = rotate(split(layer["query"]), turns), rotate(split(layer["key"]), turns)
    scores = jnp.einsum("btnk,bsnk->bnts", query, key, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((time, time), bool))
    if segments is not None:
        causal = causal & (segments[:, None, :, None] == segments[:, None, None, :])
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bnts,bsnk->btnk", weights, split(layer["value"]))
    return project(mixed.reshape(batch, time, width), layer["output"])


def mlp(layer: Mlp, x: jax.Array) -> jax.Array:
    """Apply SwiGLU: [B, T, D] -> [B, T, D]."""
    normed = norm(x, layer["norm"])
    gated = jax.nn.silu(project(normed, layer["gate"])) * project(normed, layer["up"])
    return project(gated, layer["down"])


def rotation(time: int, size: int, dtype: jnp.dtype) -> CosSin:
    """Return cosine and sine of RoPE's angles for heads of this size, which must be even."""
    speeds = ROPE_BASE ** (-np.arange(0, size, 2) / size)
    angles = (np.arange(time)[:, None] * speeds)[:, None, :]
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotate(x: jax.Array, turns: CosSin) -> jax.Array:
    """Turn the pairs (i, i + K / 2) of each head by their position's angles: [B, T, N, K]."""
    cosine, sine = turns
    first, second = jnp.split(x, 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1)
