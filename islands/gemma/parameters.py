"""The parameters of a Gemma model: their shapes, their initial values and their split over a mesh.

Layers of one kind are stacked in one leaf each, for example `layers/local/attention/query` of shape
[n, D, N * K]. Layers that use the keys and values of earlier ones have a section of their own,
`shared/...`, without leaves for keys and values. Shapes in comments: V vocabulary, D width, F
hidden, N heads, M key heads, K head size, E experts, H expert hidden, P per-layer size, L layers, n
the layers in a stack.

Parameters are float32 and come from NumPy, each leaf from its own generator, so that every machine
starts from the same bits and can draw single leaves.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from islands.gemma.spec import GLOBAL, LOCAL, SHARED, GemmaSpec, Section
from islands.nested_leaves import nested

GemmaParams: TypeAlias = Any
"""The tree of parameters: nested dictionaries of float32 arrays."""
LeafArray: TypeAlias = NDArray[np.float32]

OPEN = PartitionSpec.UNCONSTRAINED
"""An axis that may be split over fsdp; see `islands.mesh_shape.OPEN`."""
TENSOR, EXPERT = "tensor", "expert"
"""The axes of a mesh over which the work of a layer is split."""
EMBEDDINGS = ("embedding", "per_layer/embedding")
"""The leaves that are tables of tokens."""


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """One leaf: its shape, its initial values, and its split."""

    shape: tuple[int, ...]
    split: PartitionSpec
    deviation: float = 0.0
    """Standard deviation of the initial values; 0: they are all `constant`."""
    constant: float = 0.0


def init(spec: GemmaSpec, seed: int) -> GemmaParams:
    """Return initial parameters.

    Matrices are normal with a deviation of 1 / sqrt(inputs), and norms begin as the identity. In
    Gemma 4 the norms of queries and keys begin smaller, so that attention scores have a deviation
    of one although they are not scaled.
    """
    return _tree(spec, lambda path, plan: _drawn(path, plan, seed))


def init_leaf(spec: GemmaSpec, path: str, seed: int) -> LeafArray:
    """Return one leaf of `init`, drawn by itself."""
    return _drawn(path, leaf_plans(spec)[path], seed)


def shapes(spec: GemmaSpec) -> GemmaParams:
    """Return the result of `init` as `jax.ShapeDtypeStruct`, without drawing numbers."""
    return _tree(spec, lambda path, plan: jax.ShapeDtypeStruct(plan.shape, np.float32))


def sharding(spec: GemmaSpec, path: str) -> PartitionSpec | None:
    """Return how a leaf is split over an island's mesh; None for a leaf of another task.

    Heads and hidden units are split over `tensor`, experts over `expert`, and the rest over `fsdp`
    if that divides it.
    """
    plan = leaf_plans(spec).get(path)  # a task based on this one may have leaves of its own
    return None if plan is None else plan.split


def is_stacked(path: str) -> bool:
    """Return whether the first axis of a leaf stacks layers."""
    return path.startswith(("layers/", "shared/"))


@cache
def leaf_plans(spec: GemmaSpec) -> Mapping[str, LeafPlan]:
    """Return the plan of each leaf by its path."""
    tables = PartitionSpec(OPEN, OPEN)
    deviation = 1 / math.sqrt(spec.width)
    found = {
        "embedding": LeafPlan((spec.vocabulary, spec.width), tables, deviation),
        "norm": _norm(spec, (spec.width,)),
    }
    if size := spec.per_layer_size:
        wide = spec.layers * size
        found["per_layer/embedding"] = LeafPlan(
            (spec.vocabulary, wide), tables, 1 / math.sqrt(size)
        )
        found["per_layer/projection"] = LeafPlan((spec.width, wide), tables, deviation)
        found["per_layer/norm"] = _norm(spec, (size,))
    for section in spec.sections:
        for kind in (LOCAL, GLOBAL):
            if count := section.kinds.count(kind):
                found.update(
                    (f"{section.name}/{kind}/{path}", plan)
                    for path, plan in _layer(spec, section, kind, count)
                )
    return found


def _layer(
    spec: GemmaSpec, section: Section, kind: str, count: int
) -> Iterator[tuple[str, LeafPlan]]:
    """Yield the leaves of the layers of one kind in one section."""
    width, hidden, heads = spec.width, spec.hidden_of(section.name), spec.heads_of(kind)
    outputs, inputs = PartitionSpec(None, OPEN, TENSOR), PartitionSpec(None, TENSOR, OPEN)
    inwards = 1 / math.sqrt(width)
    queries, keys = heads.queries * heads.size, heads.keys * heads.size
    norm = _norm(spec, (count, width))
    yield "attention/norm", norm
    yield "attention/query", LeafPlan((count, width, queries), outputs, inwards)
    yield "attention/query_norm", _head_norm(spec, (count, heads.size))
    if section.name != SHARED:
        # one key head cannot be split over devices
        projected = outputs if heads.keys > 1 else PartitionSpec(None, OPEN, None)
        yield "attention/key", LeafPlan((count, width, keys), projected, inwards)
        yield "attention/key_norm", _head_norm(spec, (count, heads.size))
        if spec.has_values(kind):
            yield "attention/value", LeafPlan((count, width, keys), projected, inwards)
    yield "attention/output", LeafPlan((count, queries, width), inputs, 1 / math.sqrt(queries))
    yield "attention/post_norm", norm
    yield "mlp/norm", norm
    yield "mlp/gate", LeafPlan((count, width, hidden), outputs, inwards)
    yield "mlp/up", LeafPlan((count, width, hidden), outputs, inwards)
    yield "mlp/down", LeafPlan((count, hidden, width), inputs, 1 / math.sqrt(hidden))
    yield "mlp/post_norm", norm
    if spec.experts:
        yield from _experts(spec, count)
    if size := spec.per_layer_size:
        open_rows = PartitionSpec(None, OPEN, None)
        yield "per_layer/gate", LeafPlan((count, width, size), open_rows, inwards)
        yield (
            "per_layer/projection",
            LeafPlan((count, size, width), PartitionSpec(None, None, OPEN), 1 / math.sqrt(size)),
        )
        yield "per_layer/norm", norm


def _experts(spec: GemmaSpec, count: int) -> Iterator[tuple[str, LeafPlan]]:
    width, experts, hidden = spec.width, spec.experts, spec.expert_hidden
    inwards, norm = 1 / math.sqrt(width), _norm(spec, (count, width))
    outputs = PartitionSpec(None, EXPERT, OPEN, TENSOR)
    inputs = PartitionSpec(None, EXPERT, TENSOR, OPEN)
    small = PartitionSpec(None, None)
    # the router's input has the norm 1 (`layers.route`), so this gives scores of deviation 1
    yield "experts/router", LeafPlan((count, width, experts), PartitionSpec(None, OPEN, None), 1.0)
    yield "experts/router_scale", LeafPlan((count, width), small, constant=1.0)
    yield "experts/expert_scale", LeafPlan((count, experts), small, constant=1.0)
    yield "experts/norm", norm
    yield "experts/gate", LeafPlan((count, experts, width, hidden), outputs, inwards)
    yield "experts/up", LeafPlan((count, experts, width, hidden), outputs, inwards)
    yield (
        "experts/down",
        LeafPlan((count, experts, hidden, width), inputs, 1 / math.sqrt(hidden)),
    )
    yield "experts/post_norm", norm
    yield "experts/dense_post_norm", norm


def _norm(spec: GemmaSpec, shape: tuple[int, ...]) -> LeafPlan:
    constant = 0.0 if spec.generation == 3 else 1.0
    return LeafPlan(shape, PartitionSpec(*(None for _ in shape)), constant=constant)


def _head_norm(spec: GemmaSpec, shape: tuple[int, ...]) -> LeafPlan:
    """Return the plan of a norm of queries or keys; see `init`."""
    if spec.generation == 3:
        return _norm(spec, shape)
    gain = (spec.score_scale * math.sqrt(shape[-1])) ** -0.5
    return LeafPlan(shape, PartitionSpec(None, None), constant=gain)


def _drawn(path: str, plan: LeafPlan, seed: int) -> LeafArray:
    if not plan.deviation:
        return np.full(plan.shape, plan.constant, np.float32)
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(path.encode())]))
    drawn = rng.standard_normal(plan.shape, np.float32)
    drawn *= np.float32(plan.deviation)
    return drawn


def _tree(spec: GemmaSpec, leaf: Callable[[str, LeafPlan], Any]) -> GemmaParams:
    """Return the tree with the result of `leaf` for each leaf."""
    return nested({path: leaf(path, plan) for path, plan in leaf_plans(spec).items()})
