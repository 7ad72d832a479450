"""Parameters, memory and operations of a model, from its shape alone: no array is made.

Formulas, for each token of a sequence of T tokens:

- operations of a forward pass: 2 for each element of a matrix that multiplies the token, and 4 K
  for each query head and each position that it attends to (T. Kaplan et al., arXiv:2001.08361,
  table 1, with the mean number of positions in place of T)
- operations of a training step: 3 times those, or 4 times with `remat`; those of the logits once
  more with `logit_parts`
- activations: the inputs of each operation that the backward pass reads. They are kept for each
  layer, or with `remat` for one period of layers, beside the input of each period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from islands.gemma.parameters import leaf_plans
from islands.gemma.spec import LOCAL, SHARED, GemmaSpec
from islands.mesh_shape import filled_in, names_of
from islands.task import Task, leaf_path

FLOAT_BYTES = 4
SCORE_COPIES = 3
"""Arrays of attention scores that are alive at once, in float32: scores, weights, a gradient."""
LOGIT_COPIES = 3
"""Arrays of logits that are alive at once, in float32: logits, their exponentials, a gradient."""


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """The numbers of parameters of a model."""

    total: int
    """All parameters."""
    embedding: int
    """Parameters in tables of tokens."""
    active: int
    """Parameters that multiply each token: no experts that it does not use, no second table."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a training step on one device, in bytes."""

    parameters: int
    """Float32 parameters."""
    gradients: int
    """Float32 gradients."""
    moments: int
    """The optimizer's state."""
    activations: int
    """Activations of the device's part of the batch."""

    @property
    def total(self) -> int:
        """All of them together."""
        return self.parameters + self.gradients + self.moments + self.activations


def counted(spec: GemmaSpec) -> ParameterCounts:
    """Count the parameters of a Gemma model."""
    plans = leaf_plans(spec)
    sizes = {path: math.prod(plan.shape) for path, plan in plans.items()}
    tables = sum(size for path, size in sizes.items() if path.endswith("embedding"))
    unused = 0
    if spec.experts:
        idle = spec.experts - spec.experts_used
        unused = sum(
            size // spec.experts * idle
            for path, size in sizes.items()
            if path.endswith(("experts/gate", "experts/up", "experts/down"))
        )
    looked_up = sizes.get("per_layer/embedding", 0)
    total = sum(sizes.values())
    return ParameterCounts(total, tables, total - unused - looked_up)


def attended(spec: GemmaSpec, kind: str, time: int) -> float:
    """Return the mean number of positions that a position attends to, its own included."""
    window = min(time, spec.window) if kind == LOCAL else time
    return window * (time - (window - 1) / 2) / time


def forward_flops(spec: GemmaSpec, time: int) -> float:
    """Return the operations of a forward pass for each token of sequences of this length."""
    scores = sum(
        4 * heads.queries * heads.size * attended(spec, kind, time)
        for kind in spec.kinds
        for heads in [spec.heads_of(kind)]
    )
    return 2 * _multiplied(spec) + scores


def training_flops(spec: GemmaSpec, time: int) -> float:
    """Return the operations of a training step for each token of sequences of this length."""
    again = 2 * spec.width * spec.vocabulary if spec.logit_parts > 1 else 0
    return (4 if spec.remat else 3) * forward_flops(spec, time) + again


def _multiplied(spec: GemmaSpec) -> int:
    """Return the elements of the matrices that multiply a token."""
    plans = leaf_plans(spec)
    vectors = sum(
        math.prod(plan.shape) for path, plan in plans.items() if path.endswith(("norm", "_scale"))
    )
    return counted(spec).active - vectors


def activation_bytes(spec: GemmaSpec, sequences: int, time: int) -> int:
    """Return the bytes of activations of a step on so many sequences of this length."""
    each = 2 if spec.compute_dtype == "bfloat16" else FLOAT_BYTES
    layers: list[float] = []
    stream = each * spec.width
    periods = 0
    for section in spec.sections:
        layers += [
            each * _kept(spec, section.name, kind)
            + SCORE_COPIES * FLOAT_BYTES * spec.heads_of(kind).queries * time
            for kind in section.kinds
        ]
        periods += section.turns + len(section.rest)
    longest = max(section.period for section in spec.sections)
    inner = sum(sorted(layers)[-longest:]) + periods * stream if spec.remat else sum(layers)
    inputs = each * 2 * spec.layers * spec.per_layer_size
    logits = LOGIT_COPIES * FLOAT_BYTES * spec.vocabulary / spec.logit_parts
    return math.ceil(sequences * time * (inner + inputs + logits))


def _kept(spec: GemmaSpec, section: str, kind: str) -> int:
    """Return the elements that the backward pass reads of each token in a layer, but the scores."""
    heads, hidden = spec.heads_of(kind), spec.hidden_of(section)
    queries, keys = heads.queries * heads.size, heads.keys * heads.size
    found = 7 * spec.width + 4 * queries + 4 * hidden
    if section != SHARED:
        found += 5 * keys
    if spec.experts:
        found += spec.experts_used * (2 * spec.width + 4 * spec.expert_hidden) + 5 * spec.width
    if spec.per_layer_size:
        found += 3 * spec.width + 3 * spec.per_layer_size
    return found


def bytes_on_device(task: Task, tree: Any, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a tree like the parameters on one device of a mesh.

    A leaf is split as the parameter whose path its own ends in, as in `islands.mesh.Devices.alike`,
    and other leaves are repeated. `sizes`: the number of devices along each axis.
    """
    own = {leaf_path(keys): leaf for keys, leaf in _flat(task.shapes)}
    total = 0
    for keys, leaf in _flat(tree):
        path, shape = leaf_path(keys), tuple(leaf.shape)
        parameter = next((p for p in own if path == p or path.endswith(f"/{p}")), None)
        ways = 1
        if parameter is not None and own[parameter].shape == shape:
            split = filled_in(shape, task.sharding(parameter, shape), sizes)
            ways = math.prod(sizes[name] for part in split for name in names_of(part))
        total += math.prod(shape) * leaf.dtype.itemsize // ways
    return total


def memory_plan(
    task: Task, spec: GemmaSpec, moments: Any, sizes: Mapping[str, int], sequences: int, time: int
) -> MemoryPlan:
    """Return the memory of a training step on one device.

    Args:
        task: The task of the model.
        spec: Its shape.
        moments: The optimizer's state as `jax.ShapeDtypeStruct`.
        sizes: The number of devices along each axis of the mesh.
        sequences: Sequences of the island's batch that are computed at once.
        time: Tokens in each.
    """
    parameters = bytes_on_device(task, task.shapes, sizes)
    ways = math.prod(size for name, size in sizes.items() if name != "tensor")
    return MemoryPlan(
        parameters=parameters,
        gradients=parameters,
        moments=bytes_on_device(task, moments, sizes),
        activations=activation_bytes(spec, max(1, sequences // ways), time),
    )


def _flat(tree: Any) -> Sequence[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]
