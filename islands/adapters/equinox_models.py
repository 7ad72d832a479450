"""Tasks of Equinox models.

Floating-point arrays, of JAX or NumPy, are parameters, and the values of `equinox.nn.State` are
state. All else is static: each process makes it for itself. Other arrays are refused by their
path.

State travels in float32. Booleans and integers, such as the counter of a `BatchNorm`, are rounded
back to their types, so the mean of several islands has the type of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from coordinator.errors import UserMistake
from islands.adapters.leaf_trees import branches, fitted, leaves_of
from islands.adapters.model_parts import (
    LossInputs,
    ModelParts,
    TaskData,
    library,
    split_result,
    task_of,
)
from islands.nested_leaves import nested
from islands.sources import DataSpec
from islands.state_tree import KEY
from islands.task import Task, leaf_path
from islands.task_helpers import NamedArrays
from islands.user_code import asked
from islands.user_lines import place_of

MakeModel = Callable[[jax.Array], Any]
"""A JAX key -> the model, an `equinox.Module`."""
HALF = 0.5


def equinox_task(
    make_model: MakeModel,
    loss: Callable[..., Any],
    data: DataSpec,
    *,
    examples: Callable[[], NamedArrays] | None = None,
    classes: int | None = None,
    vocabulary: int = 256,
    name: str = "equinox",
    stacked: Sequence[str] = (),
    frozen: Callable[[], Any] | None = None,
    text: Callable[..., Any] | None = None,
) -> Task:
    """Return the task of an Equinox model.

    Its floating-point arrays are trained and merged, and the values of its `equinox.nn.State` are
    state (`Task.init_state`). In an evaluation, the model is in inference mode, and the key is
    constant.

    Args:
        make_model: A JAX key -> the model. Each process calls it to get the model's static parts.
        loss: (model, batch) -> the mean loss, a float32 scalar, or a pair of it and a mapping of
            named scalars. It may also have the arguments `key` and `frozen` of `Task.loss`. The
            loss of a model with `equinox.nn.StateIndex` is (model, state, batch) -> (loss, (state,
            metrics)).
        data: The argument of the task's function.
        examples: Arrays by name, as for `supervised_task`. None: the text of the table `[data]`, as
            for `text_task`.
        classes: Number of classes of the examples.
        vocabulary: Number of tokens of a text.
        name: The name in messages.
        stacked: The beginnings of the paths of leaves whose first axis stacks layers.
        frozen: As in `Task.frozen`.
        text: (model, tokens int [B, T]) -> the scores of the token after each position, [B, T, V],
            for a model of text, in inference mode; (model, state, tokens) for a model with state.
            None: it cannot be sampled.

    Raises:
        UserMistake: If Equinox is not installed, `make_model` raises, or the model has an array
            that cannot be trained.
    """
    given = TaskData(data, examples, classes, vocabulary).checked(name, text)
    structure = _Structure.of(make_model, f"task {name}:")

    def call(inputs: LossInputs) -> tuple[Any, Any, Any]:
        evaluates = inputs.key is None
        model, state = structure.built(inputs.params, inputs.state, evaluates=evaluates)
        named = dict(inputs.named)
        if KEY in named and evaluates:
            named[KEY] = jax.random.key(0)
        if not structure.states:
            number, metrics = split_result(loss(model, inputs.batch, **named))
            return number, {}, metrics
        number, beside = split_result(loss(model, state, inputs.batch, **named))
        after, metrics = beside if isinstance(beside, tuple) else (beside, {})
        return number, nested(structure.values_of(after)), metrics

    def scores(params: Any, values: Any, tokens: jax.Array) -> Any:
        assert text is not None
        model, state = structure.built(params, values, evaluates=True)
        return text(model, state, tokens) if structure.states else text(model, tokens)

    parts = ModelParts(
        init=lambda key: nested(structure.initial(key)[0]),
        init_state=(lambda key: nested(structure.initial(key)[1])) if structure.states else None,
        loss=call,
        user_loss=loss,
        loss_inputs=3 if structure.states else 2,
        user_init=make_model,
        embeddings=lambda path: path in structure.embeddings,
        text=None if text is None else scores,
    )
    return task_of(parts, given, name=name, stacked=stacked, frozen=frozen)


def equinox_model(make_model: MakeModel, params: Mapping[str, Any]) -> Any:
    """Return the Equinox model with the parameters of a run, in inference mode.

    A model with state is returned as a pair of the model and its `equinox.nn.State`, as from
    `equinox.nn.make_with_state`.

    Args:
        make_model: As for `equinox_task`.
        params: Arrays by path, from `Run.params()`, `RunResult.parameters()` or a saved model.

    Raises:
        UserMistake: If leaves are missing, unknown or of another shape.
    """
    structure = _Structure.of(make_model, "equinox_model:")
    values, stats = branches(params)
    floats = {path: jax.ShapeDtypeStruct(x.shape, jnp.float32) for path, x in structure.states}
    model, state = structure.built(
        nested(fitted(structure.params, values, "parameters")),
        nested(fitted(floats, stats, "values of its state")),
        evaluates=True,
    )
    return (model, state) if structure.states else model


@dataclass(frozen=True, slots=True, eq=False)
class _Structure:
    """The static parts of a model, and the paths of its arrays."""

    equinox: Any
    """The module `equinox`."""
    make: MakeModel
    """A key -> the model and its state, as two trees."""
    abstract: Any
    """The model and its state, with shapes in place of arrays."""
    params: Mapping[str, Any]
    """The shapes of the parameters, by path, in the order of the model."""
    states: Sequence[tuple[str, Any]]
    """Path and shape of each value of the state, in the order of the state."""
    embeddings: frozenset[str]
    """The paths of the weights of `equinox.nn.Embedding` modules."""

    @classmethod
    def of(cls, make_model: MakeModel, setting: str) -> _Structure:
        """Trace `make_model` for its structure; nothing is computed.

        Errors: `UserMistake` if it raises, or returns what cannot be trained.
        """
        equinox = library("equinox", "Equinox", "equinox")
        make, key = equinox.nn.make_with_state(make_model), jax.random.key(0)

        place = place_of(make_model)

        def trace() -> tuple[Any, Any]:
            whole = equinox.filter_eval_shape(make_model, key)
            return whole, equinox.filter_eval_shape(make, key)

        whole, (model, state) = asked(f"{setting} make_model", trace, place=place)
        arrays = {path: leaf for path, leaf in leaves_of(model).items() if _is_array(leaf)}
        wrong = [
            f"{place}{setting} {path or 'the model'} is {leaf.dtype}{list(leaf.shape)}: only "
            "floating-point arrays are trained; make it a static field, or compute it in the call"
            for path, leaf in arrays.items()
            if not jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        names = _state_paths(equinox, whole)
        values = jax.tree.leaves(state)
        wrong += [
            f"{place}{setting} {path} is state of type {leaf.dtype}: only numbers and booleans can "
            "be merged; make random keys from the argument `key` of the loss"
            for path, leaf in zip(names, values, strict=True)
            if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_)
        ]
        if wrong:
            raise UserMistake("\n".join(wrong))
        return cls(
            equinox=equinox,
            make=make,
            abstract=(model, state),
            params=arrays,
            states=[*zip(names, values, strict=True)],
            embeddings=_embeddings(equinox, model),
        )

    def initial(self, key: jax.Array) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the initial parameters and values of the state, by path."""
        model, state = self.make(key)
        leaves = leaves_of(model)
        return {path: leaves[path] for path in self.params}, self.values_of(state)

    def built(self, params: Any, state: Any, *, evaluates: bool) -> tuple[Any, Any]:
        """Return the model and its state with these values."""
        model, like = self.abstract
        given, values = leaves_of(params), leaves_of(state)
        built = jax.tree_util.tree_map_with_path(
            lambda keys, leaf: jnp.asarray(given[leaf_path(keys)]) if _is_array(leaf) else leaf,
            model,
        )
        typed = [_typed(values[path], leaf.dtype) for path, leaf in self.states]
        if evaluates:
            built = self.equinox.nn.inference_mode(built)
        return built, jax.tree.unflatten(jax.tree.structure(like), typed)

    def values_of(self, state: Any) -> dict[str, Any]:
        """Return the values of an `equinox.nn.State` in float32, by path.

        Errors: `ValueError` if it is not the state of this model.
        """
        if not isinstance(state, self.equinox.nn.State):
            raise ValueError(
                f"the loss returns a {type(state).__name__} beside the number: a model with state "
                "needs (loss, (state, metrics)) with its equinox.nn.State"
            )
        leaves = jax.tree.leaves(state)
        if len(leaves) != len(self.states):
            raise ValueError(f"a state of {len(self.states)} values, and {len(leaves)} after")
        return {
            path: jnp.asarray(leaf, jnp.float32)
            for (path, _), leaf in zip(self.states, leaves, strict=True)
        }


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _typed(value: Any, dtype: Any) -> jax.Array:
    """Return a value of the state in its own type; half and more is true."""
    if dtype == jnp.bool_:
        return value >= HALF
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.rint(value).astype(dtype)
    return jnp.asarray(value, dtype)


def _state_paths(equinox: Any, model: Any) -> list[str]:
    """Return the path of each value of the state, in the order of `equinox.nn.State`."""
    index, seen, paths = equinox.nn.StateIndex, set[Any](), list[str]()
    flat, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda x: isinstance(x, index))
    for keys, each in flat:
        if isinstance(each, index) and each.marker not in seen:
            seen.add(each.marker)
            inner, _ = jax.tree_util.tree_flatten_with_path(each.init)
            paths += [leaf_path([*keys, *below]) for below, _ in inner]
    return paths


def _embeddings(equinox: Any, model: Any) -> frozenset[str]:
    kind = equinox.nn.Embedding
    flat, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda x: isinstance(x, kind))
    return frozenset(
        f"{leaf_path(keys)}/weight".lstrip("/") for keys, each in flat if isinstance(each, kind)
    )
