"""The forward pass of a Gemma model: tokens to logits.

Each section of layers is one `lax.scan` over its periods, for example over groups of five local
layers and a global one. Layers after the last whole period follow. With `remat` the scan is a loop
of one compiled period. Without it all layers are written out: a loop would copy all activations
that the backward pass needs, and take 1.4 times as long on a CPU and 1.5 to 2 times as long on an
H100 (docs/lab/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from islands.gemma import experts, layers
from islands.gemma.layers import KeysValues, Positions
from islands.gemma.parameters import GemmaParams
from islands.gemma.spec import SHARED, GemmaSpec, Section

Frozen: TypeAlias = Mapping[str, Any]
"""The arrays that are never trained: `layer_scalars`, float32 [L]."""
LAYER_SCALARS = "layer_scalars"


def frozen_of(spec: GemmaSpec) -> Frozen | None:
    """Return the frozen arrays of a shape; None if all layer scalars are one."""
    if not spec.layer_scalars:
        return None
    return {LAYER_SCALARS: np.asarray(spec.layer_scalars, np.float32)}


class GemmaOutput(NamedTuple):
    """The result of a forward pass."""

    logits: jax.Array
    """Scores of the next token after each position, float32 [B, T, V]."""
    balance: jax.Array
    """Load-balance loss, the mean of all layers; 0 without experts."""


class _Carry(NamedTuple):
    """The values that go from layer to layer."""

    x: jax.Array
    """The residual stream, [B, T, D]."""
    kept: dict[str, KeysValues]
    """Keys and values of the last layer of each kind, if later layers share them."""
    balance: jax.Array
    """Sum of the load-balance losses."""


class _LayerInputs(NamedTuple):
    """The inputs of some layers beside the residual stream."""

    stacks: Mapping[str, Any]
    """Parameters of each kind of layer, stacked."""
    scalars: jax.Array | None
    """The layer scalars."""
    own: jax.Array | None
    """The inputs of the layers' own embeddings, [layers, B, T, P]."""


def forward(
    spec: GemmaSpec,
    params: GemmaParams,
    tokens: jax.Array,
    frozen: Frozen | None = None,
    segments: jax.Array | None = None,
) -> GemmaOutput:
    """Compute the logits for int tokens [B, T].

    `frozen`: the constants of the layers; None: all are one. `segments`: the document of each token
    [B, T], across which attention does not go; None: all are of one.
    """
    x, balance = residual_stream(spec, params, tokens, frozen, segments)
    return GemmaOutput(scored(spec, params, x), balance)


def residual_stream(
    spec: GemmaSpec,
    params: GemmaParams,
    tokens: jax.Array,
    frozen: Frozen | None,
    segments: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Compute all layers; the arguments are those of `forward`.

    Returns the residual stream behind the last layer, [B, T, D], and the load-balance loss.
    """
    dtype = jnp.dtype(spec.compute_dtype)
    x = layers.embed(params["embedding"], tokens, dtype)
    own = None
    if spec.per_layer_size:
        per_layer = layers.per_layer_inputs(spec, params["per_layer"], x, tokens)
        own = jnp.moveaxis(per_layer, 2, 0)
    scalars = None if frozen is None else jax.lax.stop_gradient(frozen[LAYER_SCALARS])
    where = {
        kind: layers.within(layers.positions(spec, kind, tokens.shape[1]), segments)
        for kind in {*spec.kinds}
    }
    kept = _blank(spec, x) if spec.shared_kv_layers else {}
    carry = _Carry(x, kept, jnp.float32(0))
    for section in spec.sections:
        end = section.first + len(section.kinds)
        inputs = _LayerInputs(
            params[section.name],
            None if scalars is None else scalars[section.first : end],
            None if own is None else own[section.first : end],
        )
        carry = _section(spec, section, carry, inputs, where)
    return carry.x, carry.balance / spec.layers


def scored(spec: GemmaSpec, params: GemmaParams, x: jax.Array) -> jax.Array:
    """Return the scores of all tokens from the residual stream: [B, T, D] -> float32 [B, T, V]."""
    x = layers.norm(spec, x, params["norm"])
    table = jnp.asarray(params["embedding"]).astype(x.dtype)
    logits = jnp.einsum("btd,vd->btv", x, table, preferred_element_type=jnp.float32)
    return layers.capped(spec, logits)


def _blank(spec: GemmaSpec, x: jax.Array) -> dict[str, KeysValues]:
    """Return keys and values of zeros, which the first layer of each kind replaces."""
    found: dict[str, KeysValues] = {}
    for kind in dict.fromkeys(spec.kinds):
        heads = spec.heads_of(kind)
        zeros = jnp.zeros((*x.shape[:2], heads.keys, heads.size), x.dtype)
        found[kind] = KeysValues(zeros, zeros)
    return found


def _section(
    spec: GemmaSpec,
    section: Section,
    carry: _Carry,
    inputs: _LayerInputs,
    where: Mapping[str, Positions],
) -> _Carry:
    """Compute the layers of a section: a scan over whole periods, then the rest."""

    def some(kinds: Sequence[str], carry: _Carry, inputs: _LayerInputs) -> _Carry:
        number = 0
        for kind, run in groupby(kinds):
            count, row = len([*run]), kinds[:number].count(kind)
            stack = jax.tree.map(lambda leaf, a=row, n=count: leaf[a : a + n], inputs.stacks[kind])
            carry = equal(kind, carry, stack, *_rows(inputs, number, number + count))
            number += count
        return carry

    def equal(kind: str, carry: _Carry, stack: Any, scalars: Any, own: Any) -> _Carry:
        """Compute consecutive layers of one kind."""

        def one(carry: _Carry, each: Any) -> tuple[_Carry, None]:
            return _layer(spec, section.name, kind, carry, where[kind], *each), None

        return jax.lax.scan(one, carry, (stack, scalars, own), unroll=True)[0]

    period, turns = section.kinds[: section.period], section.turns

    def body(carry: _Carry, inputs: _LayerInputs) -> tuple[_Carry, None]:
        return some(period, carry, inputs), None

    repeated, rest = _parted(section, inputs)
    if spec.remat:
        body = jax.checkpoint(body, prevent_cse=False)
    unroll = 1 if spec.remat else turns
    carry, _ = jax.lax.scan(body, carry, repeated, length=turns, unroll=unroll)
    return some(section.rest, carry, rest) if section.rest else carry


def _rows(inputs: _LayerInputs, start: int, end: int) -> tuple[Any, Any]:
    """Return the scalars and the layers' own inputs of some layers."""
    parts = [None if x is None else x[start:end] for x in (inputs.scalars, inputs.own)]
    return parts[0], parts[1]


def _parted(section: Section, inputs: _LayerInputs) -> tuple[_LayerInputs, _LayerInputs]:
    """Return the inputs of the whole periods, [turns, layers of a period, ...], and of the rest."""
    turns, period = section.turns, section.kinds[: section.period]

    def repeated(tree: Any, each: int) -> Any:
        return jax.tree.map(
            lambda leaf: leaf[: turns * each].reshape(turns, each, *leaf.shape[1:]), tree
        )

    def behind(tree: Any, each: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[turns * each :], tree)

    parts = [
        _LayerInputs(
            {kind: cut(stack, period.count(kind)) for kind, stack in inputs.stacks.items()},
            cut(inputs.scalars, len(period)),
            cut(inputs.own, len(period)),
        )
        for cut in (repeated, behind)
    ]
    return parts[0], parts[1]


def _layer(
    spec: GemmaSpec,
    section: str,
    kind: str,
    carry: _Carry,
    where: Positions,
    layer: Any,
    scalar: jax.Array | None,
    own: jax.Array | None,
) -> _Carry:
    """Compute one layer."""
    x, kept, cost = carry
    layer = cast(layer, x.dtype)
    attention = layer["attention"]
    normed = layers.norm(spec, x, attention["norm"])
    shared = kept[kind] if section == SHARED else None
    mixed, used = layers.attend(spec, attention, normed, spec.heads_of(kind), where, shared)
    if kept:
        kept = {**kept, kind: used}
    x, balance = finished(spec, layer, x, mixed, scalar, own)
    return _Carry(x, kept, cost + balance)


def cast(layer: Any, dtype: Any) -> Any:
    """Return a layer with its matrices in the type of the computation; its norms stay float32."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.ndim > 1 else leaf, layer)


def finished(
    spec: GemmaSpec,
    layer: Any,
    x: jax.Array,
    mixed: jax.Array,
    scalar: jax.Array | None,
    own: jax.Array | None,
) -> tuple[jax.Array, jax.Array | float]:
    """Compute the rest of a layer behind its attention.

    `x`: the residual stream before the layer, [B, T, D]; `mixed`: the output of the attention.
    Returns the residual stream behind the layer, and the load-balance loss.
    """
    mlp, balance = layer["mlp"], 0.0
    x = x + layers.norm(spec, mixed, layer["attention"]["post_norm"])
    hidden = layers.mlp(mlp, layers.norm(spec, x, mlp["norm"]))
    if spec.experts:
        hidden, balance = experts.feed_forward(spec, layer["experts"], x, hidden)
    x = x + layers.norm(spec, hidden, mlp["post_norm"])
    if own is not None:
        x = layers.add_per_layer(spec, layer["per_layer"], x, own)
    if scalar is not None:
        x = x * scalar.astype(x.dtype)
    return x, balance
