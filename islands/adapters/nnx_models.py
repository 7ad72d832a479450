"""Tasks of Flax NNX models.

`nnx.Param` variables are parameters, and `nnx.BatchStat` variables are state. The keys of random
streams are folded from the key of the step and their paths, and their counts start from 0 at each
step. All other variables and arrays are refused by their path. The rest of the model is static, and
each process makes it for itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

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
from islands.adapters.value_origins import is_other, origins
from islands.nested_leaves import nested
from islands.sources import DataSpec
from islands.task import Task
from islands.task_helpers import NamedArrays
from islands.user_code import asked
from islands.user_lines import place_of

MakeModel = Callable[[Any], Any]
"""`nnx.Rngs` -> the model, an `nnx.Module`."""
ADVICE = (
    "only nnx.Param is trained, nnx.BatchStat is merged as state, and random streams come from "
    "nnx.Rngs; make it one of these, or compute it in the call"
)


def nnx_task(
    make_model: MakeModel,
    loss: Callable[..., Any],
    data: DataSpec,
    *,
    examples: Callable[[], NamedArrays] | None = None,
    classes: int | None = None,
    vocabulary: int = 256,
    name: str = "nnx",
    stacked: Sequence[str] = (),
    frozen: Callable[[], Any] | None = None,
    text: Callable[..., Any] | None = None,
) -> Task:
    """Return the task of a Flax NNX model.

    `nnx.Param` variables are trained and merged, and `nnx.BatchStat` variables are state
    (`Task.init_state`). Random streams such as those of `nnx.Dropout` get another key at each step
    of each island. The model is in training mode in a step, and in evaluation mode in an
    evaluation.

    Args:
        make_model: `nnx.Rngs` -> the model. Each process calls it to get the model's structure.
        loss: (model, batch) -> the mean loss, a float32 scalar, or a pair of it and a mapping of
            named scalars. It may also have the arguments `key` and `frozen` of `Task.loss`.
        data: The argument of the task's function.
        examples: Arrays by name, as for `supervised_task`. None: the text of the table `[data]`, as
            for `text_task`.
        classes: Number of classes of the examples.
        vocabulary: Number of tokens of a text.
        name: The name in messages.
        stacked: The beginnings of the paths of leaves whose first axis stacks layers.
        frozen: As in `Task.frozen`.
        text: (model, tokens int [B, T]) -> the scores of the token after each position, [B, T, V],
            for a model of text, in evaluation mode. None: it cannot be sampled.

    Raises:
        UserMistake: If Flax is not installed, `make_model` raises, or the model has a variable that
            is neither a parameter, batch statistics nor random state.
    """
    given = TaskData(data, examples, classes, vocabulary).checked(name, text)
    model = _Structure.of(make_model, f"task {name}:")

    def call(step: LossInputs) -> tuple[Any, Any, Any]:
        built = model.built(step.params, step.state, step.key)
        number, metrics = split_result(loss(built, step.batch, **step.named))
        if model.may_be_assigned(built, step.params):

            def after(params: Any) -> dict[str, Any]:
                traced = model.built(params, step.state, step.key)
                loss(traced, step.batch, **step.named)
                return model.params_of(traced)

            refuse_assigned(after, step.params)
        return number, nested(model.stats_of(built)), metrics

    parts = ModelParts(
        init=lambda key: nested(model.initial(key, "Param")),
        init_state=(lambda key: nested(model.initial(key, "BatchStat"))) if model.stats else None,
        loss=call,
        user_loss=loss,
        loss_inputs=2,
        user_init=make_model,
        embeddings=lambda path: path in model.embeddings,
        text=None
        if text is None
        else lambda params, state, tokens: text(model.built(params, state, None), tokens),
    )
    return task_of(parts, given, name=name, stacked=stacked, frozen=frozen)


def nnx_model(make_model: MakeModel, params: Mapping[str, Any]) -> Any:
    """Return the Flax NNX model with the parameters of a run, in evaluation mode.

    Args:
        make_model: As for `nnx_task`.
        params: Arrays by path, from `Run.params()`, `RunResult.parameters()` or a saved model.

    Raises:
        UserMistake: If leaves are missing, unknown or of another shape.
    """
    model = _Structure.of(make_model, "nnx_model:")
    values, stats = branches(params)
    return model.built(
        nested(fitted(model.params, values, "parameters")),
        nested(fitted(model.stats, stats, "batch statistics")),
        None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Structure:
    """The static part of a model, and the paths of its variables."""

    nnx: Any
    """The module `flax.nnx`."""
    make_model: MakeModel
    """`nnx.Rngs` -> the model."""
    graph: Any
    """The model without its variables, an `nnx.GraphDef`."""
    variables: Mapping[tuple[Any, ...], Any]
    """All variables, with shapes as values, by their paths in Flax."""
    params: Mapping[str, Any]
    """The shapes of the parameters, by path."""
    stats: Mapping[str, Any]
    """The shapes of the batch statistics, by path."""
    embeddings: frozenset[str]
    """The paths of the weights of `nnx.Embed` modules."""

    @classmethod
    def of(cls, make_model: MakeModel, setting: str) -> _Structure:
        """Trace `make_model` for its structure; nothing is computed.

        Errors: `UserMistake` if it raises, or returns what cannot be trained.
        """
        nnx, place = library("flax.nnx", "Flax", "flax"), place_of(make_model)
        model = asked(
            f"{setting} make_model",
            lambda: nnx.eval_shape(lambda: make_model(nnx.Rngs(jax.random.key(0)))),
            place=place,
        )
        if not isinstance(model, nnx.Module):
            raise UserMistake(
                f"{place}{setting} make_model returns a {type(model).__name__}, and must return an "
                "nnx.Module"
            )
        graph, state = nnx.split(model)
        variables = dict(nnx.to_flat_state(state))
        if problems := [*_problems(nnx, variables), *_bare_arrays(nnx, model)]:
            raise UserMistake("\n".join(f"{place}{setting} {problem}" for problem in problems))
        embeds = [path for path, node in nnx.iter_graph(model) if isinstance(node, nnx.Embed)]
        return cls(
            nnx=nnx,
            make_model=make_model,
            graph=graph,
            variables=variables,
            params=_values(variables, nnx.Param),
            stats=_values(variables, nnx.BatchStat),
            embeddings=frozenset(_joined((*path, "embedding")) for path in embeds),
        )

    def initial(self, key: jax.Array, kind: str) -> dict[str, Any]:
        """Return the initial values of the variables of this kind, by path."""
        model = self.make_model(self.nnx.Rngs(key))
        state = self.nnx.state(model, getattr(self.nnx, kind))
        return {_joined(path): each.get_value() for path, each in self.nnx.to_flat_state(state)}

    def built(self, params: Any, state: Any, key: jax.Array | None) -> Any:
        """Return the model with these values; in evaluation mode if there is no key."""
        values = {**leaves_of(params), **leaves_of(state)}
        draw = jax.random.key(0) if key is None else key
        filled = [
            (path, each.replace(self._value(each, _joined(path), values, draw)))
            for path, each in self.variables.items()
        ]
        model = self.nnx.merge(self.graph, self.nnx.from_flat_state(filled))
        if key is None:
            model.eval()
        else:
            model.train()
        return model

    def _value(self, variable: Any, path: str, values: Mapping[str, Any], key: jax.Array) -> Any:
        if isinstance(variable, self.nnx.RngKey):
            own = jax.random.fold_in(key, zlib.crc32(path.encode()))
            shape = variable.get_value().shape
            return jax.random.split(own, shape) if shape else own
        if isinstance(variable, self.nnx.RngCount):
            return jnp.zeros_like(variable.get_value())
        return values[path]

    def stats_of(self, model: Any) -> dict[str, Any]:
        """Return the batch statistics of a model by path."""
        stats = self.nnx.state(model, self.nnx.BatchStat)
        return _values(dict(self.nnx.to_flat_state(stats)), self.nnx.BatchStat)

    def params_of(self, model: Any) -> dict[str, Any]:
        """Return the parameters of a model by path, as they are stored: without hooks."""
        flat = self.nnx.to_flat_state(self.nnx.state(model, self.nnx.Param))
        return {_joined(path): each.get_raw_value() for path, each in flat}

    def may_be_assigned(self, model: Any, params: Any) -> bool:
        """Return whether a parameter has another value than before, or only another tracer."""
        before = leaves_of(params)
        return any(value is not before.get(path) for path, value in self.params_of(model).items())


def refuse_assigned(after: Callable[[Any], dict[str, Any]], params: Any) -> None:
    """Check that a loss computes no value of a parameter; other changes are discarded.

    Transforms of Flax write all variables back as new tracers, so only the jaxpr shows which of
    them are computed.

    `after`: parameters -> the values of all parameters after the loss, by path.

    Errors: `UserMistake` if the loss assigns a computed value to a parameter.
    """
    leaves = leaves_of(params)
    shapes = {path: jax.ShapeDtypeStruct(each.shape, each.dtype) for path, each in leaves.items()}

    def in_order(leaves: dict[str, Any]) -> list[Any]:
        values = after(nested(leaves))
        return [values[path] for path in sorted(values)]

    found = origins(jax.make_jaxpr(in_order)(shapes))  # JAX sorts the paths of a dictionary, too
    paths = sorted(shapes)
    wrong = (path for i, path in enumerate(paths) if is_other(found[i], i))
    if assigned := next(wrong, None):
        raise UserMistake(
            f"the loss assigns the parameter {assigned}: only its gradient changes a parameter; "
            "make it an nnx.BatchStat"
        )


def _problems(nnx: Any, variables: Mapping[tuple[Any, ...], Any]) -> list[str]:
    """Return which variables are of no known kind, and which paths are equal."""
    known = (nnx.Param, nnx.BatchStat, nnx.RngKey, nnx.RngCount)
    problems = [
        f"{_joined(path)} is {_kind(nnx, each)}: {ADVICE}"
        for path, each in variables.items()
        if not isinstance(each, known)
    ]
    paths = [_joined(path) for path in variables]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    return problems + [f"two variables are called {path}: rename one" for path in twice]


def _bare_arrays(nnx: Any, model: Any) -> list[str]:
    """Return which attributes hold a traced array, which Flax keeps as a static value."""
    return [
        f"{_joined((*path, attribute))} is an array: {ADVICE}"
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Module)
        for attribute, value in vars(node).items()
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
    ]


def _kind(nnx: Any, value: Any) -> str:
    is_variable = isinstance(value, nnx.Variable)
    return f"a variable of type {type(value).__name__}" if is_variable else "an array"


def _values(variables: Mapping[tuple[Any, ...], Any], kind: Any) -> dict[str, Any]:
    return {
        _joined(path): each.get_value()
        for path, each in variables.items()
        if isinstance(each, kind)
    }


def _joined(path: Sequence[Any]) -> str:
    return "/".join(map(str, path))
