"""The mixture of experts of Gemma 4, beside the dense MLP of the layer.

The router reads the residual stream before the MLP. Each token goes to its best experts and no
token is dropped: tokens are sorted by expert, and each expert multiplies its own rows
(`jax.lax.ragged_dot`). Shapes: S = B * T tokens, D width, E experts, H expert hidden, U experts
used.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from islands.gemma import layers
from islands.gemma.layers import Layer
from islands.gemma.spec import GemmaSpec


class Routing(NamedTuple):
    """The experts of each token."""

    probabilities: jax.Array
    """Softmax over all experts, float32 [S, E]."""
    weights: jax.Array
    """Weight of each expert used, float32 [S, U]."""
    experts: jax.Array
    """The experts used, int32 [S, U]."""


def feed_forward(
    spec: GemmaSpec, layer: Layer, residual: jax.Array, dense: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the dense and the expert path, [B, T, D], and the load-balance loss.

    `residual`: the residual stream before the MLP; `dense`: the output of the dense MLP.
    """
    flat = residual.reshape(-1, residual.shape[-1])
    routing = route(spec, layer, flat)
    computed = compute(spec, layer, layers.norm(spec, flat, layer["norm"]), routing)
    sparse = layers.norm(spec, computed.reshape(residual.shape), layer["post_norm"])
    return layers.norm(spec, dense, layer["dense_post_norm"]) + sparse, balance(spec, routing)


def route(spec: GemmaSpec, layer: Layer, residual: jax.Array) -> Routing:
    """Choose the experts of each token: [S, D] -> routing.

    The weights of the experts used add up to one before each is multiplied by its expert's scale.
    """
    scaled = layers.norm(spec, residual) * layer["router_scale"] * spec.width**-0.5
    scores = (scaled @ layer["router"]).astype(jnp.float32)
    probabilities = jax.nn.softmax(scores, axis=-1)
    weights, experts = jax.lax.top_k(probabilities, spec.experts_used)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights * layer["expert_scale"].astype(jnp.float32)[experts]
    return Routing(probabilities, weights, experts)


def compute(spec: GemmaSpec, layer: Layer, x: jax.Array, routing: Routing) -> jax.Array:
    """Return the weighted sum of the outputs of each token's experts: [S, D] -> [S, D]."""
    chosen = routing.experts.reshape(-1)
    order = jnp.argsort(chosen)
    token = order // spec.experts_used
    rows = jnp.bincount(chosen, length=spec.experts).astype(jnp.int32)
    inputs = x[token]
    gate = jax.lax.ragged_dot(inputs, layer["gate"], rows)
    up = jax.lax.ragged_dot(inputs, layer["up"], rows)
    outputs = jax.lax.ragged_dot(layers.gated(gate, up), layer["down"], rows)
    weighted = outputs * routing.weights.reshape(-1)[order][:, None].astype(x.dtype)
    return jnp.zeros_like(x).at[token].add(weighted)


def balance(spec: GemmaSpec, routing: Routing) -> jax.Array:
    """Return the load-balance loss, a scalar: one if all experts have equal load.

    It is E * sum over e of (share of the tokens' choices) * (mean probability), as in equation 4 of
    arXiv:2101.03961.
    """
    chosen = jax.nn.one_hot(routing.experts, spec.experts, dtype=jnp.float32)
    load = jnp.mean(chosen, axis=(0, 1))
    return spec.experts * jnp.sum(load * jnp.mean(routing.probabilities, axis=0))
