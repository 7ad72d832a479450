"""The weights of a Gemma model by the names and shapes of Hugging Face's transformers, both ways.

Its linear layers are [outputs, inputs], ours [inputs, outputs], and its layers are numbered, ours
stacked. The gate and the up projection of the experts are one tensor there. This module does not
import transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.gemma.forward import LAYER_SCALARS, frozen_of
from islands.gemma.parameters import LeafArray, leaf_plans
from islands.gemma.spec import GemmaSpec
from islands.nested_leaves import nested
from islands.task import leaf_path

HEAD = "lm_head.weight"
"""The name of the output head, which is the embedding."""
NAMED = 5
"""Tensors that a message names before it only counts them."""

FORMS = {
    "attention/norm": "input_layernorm.weight",
    "attention/query": "self_attn.q_proj.weight",
    "attention/query_norm": "self_attn.q_norm.weight",
    "attention/key": "self_attn.k_proj.weight",
    "attention/key_norm": "self_attn.k_norm.weight",
    "attention/value": "self_attn.v_proj.weight",
    "attention/output": "self_attn.o_proj.weight",
    "attention/post_norm": "post_attention_layernorm.weight",
    "mlp/norm": "pre_feedforward_layernorm.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
    "mlp/post_norm": "post_feedforward_layernorm.weight",
    "experts/router": "router.proj.weight",
    "experts/router_scale": "router.scale",
    "experts/expert_scale": "router.per_expert_scale",
    "experts/norm": "pre_feedforward_layernorm_2.weight",
    "experts/gate": "experts.gate_up_proj",
    "experts/up": "experts.gate_up_proj",
    "experts/down": "experts.down_proj",
    "experts/post_norm": "post_feedforward_layernorm_2.weight",
    "experts/dense_post_norm": "post_feedforward_layernorm_1.weight",
    "per_layer/gate": "per_layer_input_gate.weight",
    "per_layer/projection": "per_layer_projection.weight",
    "per_layer/norm": "post_per_layer_input_norm.weight",
}
"""Each leaf of a layer, and the end of its name in transformers."""
TOP = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "per_layer/embedding": "model.embed_tokens_per_layer.weight",
    "per_layer/projection": "model.per_layer_model_projection.weight",
    "per_layer/norm": "model.per_layer_projection_norm.weight",
}
"""Each leaf outside the layers, and its name in transformers."""
TABLES = ("embedding", "per_layer/embedding")
"""The leaves whose rows are tokens in both; they are not transposed."""


class TensorPart(Enum):
    """The part of a tensor of transformers that is a leaf of ours."""

    WHOLE = auto()
    FIRST = auto()
    """The first half of its rows."""
    SECOND = auto()
    """The second half of its rows."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a leaf, or of one of its rows, in the tensors of transformers."""

    path: str
    """Path of our leaf."""
    row: int | None
    """Row of the stack; None for a leaf that is not stacked."""
    name: str
    """Name of the tensor."""
    shape: tuple[int, ...]
    """Shape of the tensor."""
    transposed: bool
    """Whether its last two axes are exchanged."""
    part: TensorPart

    def take(self, tensor: NDArray[Any]) -> NDArray[np.float32]:
        """Return our leaf, or its row, from the tensor."""
        if self.part is not TensorPart.WHOLE:
            half = self.shape[-2] // 2
            tensor = (
                tensor[..., half:, :] if self.part is TensorPart.SECOND else tensor[..., :half, :]
            )
        tensor = np.asarray(tensor, np.float32)
        return tensor.swapaxes(-1, -2) if self.transposed else tensor


def places(spec: GemmaSpec) -> Iterator[TensorPlace]:
    """Yield the place of each leaf, and of each row of a stacked leaf."""
    for path, plan in leaf_plans(spec).items():
        if path in TOP:
            transposed = len(plan.shape) == 2 and path not in TABLES
            yield _place(path, None, TOP[path], plan.shape, transposed)
            continue
        section_name, kind, form = path.split("/", 2)
        section = next(each for each in spec.sections if each.name == section_name)
        for number, own in enumerate(section.kinds):
            if own == kind:
                name = f"model.layers.{section.first + number}.{FORMS[form]}"
                shape = plan.shape[1:]
                yield _place(path, section.row(number), name, shape, len(shape) > 1)


def _place(
    path: str, row: int | None, name: str, shape: tuple[int, ...], transposed: bool
) -> TensorPlace:
    """Return the place of a leaf whose block is of this shape."""
    part = TensorPart.WHOLE
    if transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    if path.endswith("experts/gate"):
        part = TensorPart.FIRST
    elif path.endswith("experts/up"):
        part = TensorPart.SECOND
    if part is not TensorPart.WHOLE:
        shape = (*shape[:-2], 2 * shape[-2], shape[-1])
    return TensorPlace(path, row, name, shape, transposed, part)


def scalar_name(layer: int) -> str:
    """Return the name of a layer's scalar in transformers."""
    return f"model.layers.{layer}.layer_scalar"


def tensor_shapes(spec: GemmaSpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each tensor that transformers has of such a model."""
    found = {place.name: place.shape for place in places(spec)}
    if spec.generation == 4:
        found |= {scalar_name(layer): (1,) for layer in range(spec.layers)}
    return found


def problems_of(spec: GemmaSpec, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return why tensors of these names and shapes are not this model; empty if they are."""
    wanted = tensor_shapes(spec)
    missing = [name for name in wanted if name not in shapes]
    unknown = [name for name in shapes if name not in wanted and name != HEAD]
    other = [
        f"{name} is {list(shapes[name])}, and the model has {list(shape)}"
        for name, shape in wanted.items()
        if name in shapes and tuple(shapes[name]) != shape
    ]
    problems = [f"no tensor {_name_list(missing)}"] if missing else []
    problems += [f"the model has no {_name_list(unknown)}"] if unknown else []
    return [*problems, *other[:NAMED]]


def from_transformers(
    spec: GemmaSpec, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], NDArray[Any]]
) -> tuple[Any, dict[str, NDArray[np.float32]]]:
    """Return the parameters and the frozen arrays from the tensors of transformers.

    Args:
        spec: The model.
        shapes: The shape of each tensor there is.
        read: The name of a tensor -> its values; it is called for one tensor at a time.

    Errors: `UserMistake` if a tensor is missing, unknown or of another shape.
    """
    if problems := problems_of(spec, shapes):
        raise UserMistake("\n".join(f"weights of transformers: {each}" for each in problems))
    leaves = {path: np.empty(p.shape, np.float32) for path, p in leaf_plans(spec).items()}
    for place in places(spec):
        leaves[place.path][... if place.row is None else place.row] = place.take(read(place.name))
    return nested(leaves), {LAYER_SCALARS: np.asarray(scalars_of(spec, read), np.float32)}


def scalars_of(spec: GemmaSpec, read: Callable[[str], NDArray[Any]]) -> tuple[float, ...]:
    """Return the scalar of each layer; all are one in Gemma 3, which has no such tensors."""
    if spec.generation == 3:
        return (1.0,) * spec.layers
    values = (np.asarray(read(scalar_name(layer)), np.float32) for layer in range(spec.layers))
    return tuple(value.item() for value in values)


def to_transformers(
    spec: GemmaSpec, params: Any, frozen: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the name and the values of each tensor of transformers, one at a time.

    `params`: a tree of arrays like `parameters.init`; `frozen`: the layer scalars, or None for
    those of the shape.
    """
    frozen = frozen_of(spec) if frozen is None else frozen
    leaves: dict[str, LeafArray] = {
        leaf_path(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    halves: dict[str, NDArray[np.float32]] = {}
    for place in places(spec):
        block = np.asarray(
            leaves[place.path] if place.row is None else leaves[place.path][place.row]
        )
        block = block.swapaxes(-1, -2) if place.transposed else block
        if place.part is not TensorPart.WHOLE:
            if (other := halves.pop(place.name, None)) is None:
                halves[place.name] = block
                continue
            both = (other, block) if place.part is TensorPart.SECOND else (block, other)
            block = np.concatenate(both, axis=-2)
        yield place.name, np.ascontiguousarray(block, np.float32)
    if spec.generation == 4:
        scalars = np.ones(spec.layers) if frozen is None else np.asarray(frozen[LAYER_SCALARS])
        for layer in range(spec.layers):
            yield scalar_name(layer), np.full(1, scalars[layer], np.float32)


def _name_list(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
