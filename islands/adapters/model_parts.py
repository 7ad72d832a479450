"""The parts of a model as a task: parameters, state and loss, on text or on examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import jax

from coordinator.errors import UserMistake
from islands.package_extras import install_command
from islands.sources import DataSpec
from islands.state_tree import FROZEN, KEY, named_arguments, refused_argument
from islands.task import Task
from islands.task_helpers import NamedArrays, begins_with, supervised_task, text_task
from islands.user_lines import place_of, wrapping


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of a model's loss."""

    params: Any
    """The parameters, a tree of dictionaries."""
    state: Any
    """The state, a tree of dictionaries; None if the model has none."""
    batch: Any
    """The batch."""
    key: jax.Array | None
    """The key of the step; None in an evaluation."""
    named: Mapping[str, Any]
    """The arguments `key` and `frozen`, as far as the user's loss has them."""


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A model in the terms of a task."""

    init: Callable[[jax.Array], Any]
    """A key -> the parameters."""
    init_state: Callable[[jax.Array], Any] | None
    """A key -> the state; None if the model has none."""
    loss: Callable[[LossInputs], tuple[Any, Any, Any]]
    """The inputs of a loss -> loss, new state, metrics."""
    user_loss: Callable[..., Any]
    """The user's loss, whose arguments `key` and `frozen` are passed on."""
    loss_inputs: int
    """The number of the other arguments that the user's loss gets."""
    user_init: Callable[..., Any]
    """The user's function that makes the model; a message about parameters begins with its line."""
    embeddings: Callable[[str], bool]
    """The path of a parameter -> whether it is an embedding."""
    text: Callable[[Any, Any, jax.Array], Any] | None = None
    """(params, state, tokens) -> scores, for a model of text; None: it cannot be sampled."""


@dataclass(frozen=True, slots=True)
class TaskData:
    """The data of a task: the corpus of `[data]`, or examples."""

    spec: DataSpec
    """The table `[data]`."""
    examples: Callable[[], NamedArrays] | None
    """The examples, as for `supervised_task`; None: a text."""
    classes: int | None
    """Number of classes of the examples."""
    vocabulary: int
    """Number of tokens of a text."""

    def checked(self, name: str, text: object = None) -> TaskData:
        """Return these settings; `text`: the scores of a text, if the user has given them.

        Errors: `UserMistake` if the number of classes is missing, or settings exclude each other.
        """
        if self.examples is not None and text is not None:
            raise UserMistake(
                f"task {name}: text= is for a model of the text of [data], and examples= is given: "
                "keep one of them"
            )
        if (self.examples is None) != (self.classes is None):
            raise UserMistake(
                f"task {name}: examples= and classes= go together: give both for a model of inputs "
                "with targets, and neither for a model of text"
            )
        return self


def library(module: str, package: str, extra: str) -> Any:
    """Import a library of models, when an adapter needs it.

    Errors: `UserMistake` if it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise UserMistake(
            f"this task needs {package} (no module {error.name!r}): on every node, "
            f"{install_command(extra)}"
        ) from error


def task_of(
    parts: ModelParts,
    data: TaskData,
    *,
    name: str,
    stacked: Sequence[str],
    frozen: Callable[[], Any] | None,
) -> Task:
    """Return the task of a model's parts.

    Errors: `UserMistake` if the user's loss has an argument that no call passes.
    """
    if problem := refused_argument(parts.user_loss, "loss", parts.loss_inputs):
        raise UserMistake(f"{place_of(parts.user_loss)}task {name}: {problem}")
    has_frozen = FROZEN in named_arguments(parts.user_loss)
    loss = wrapping(_with_arguments(parts, has_frozen=has_frozen), parts.user_loss)
    init, state = wrapping(parts.init, parts.user_init), parts.init_state
    init_state = None if state is None else wrapping(state, parts.user_init)
    common: dict[str, Any] = {"name": name, "init_state": init_state, "frozen": frozen}
    if data.examples is None or data.classes is None:
        more: dict[str, Any] = {"vocabulary": data.vocabulary, "text": _scores(parts)}
        task = text_task(init, loss, data.spec, **more, **common)
    else:
        examples, classes = data.examples, data.classes
        task = supervised_task(init, loss, examples, data.spec, classes=classes, **common)
    return replace(
        task,
        embedding=parts.embeddings,
        stacked=begins_with(stacked),
    )


def _scores(parts: ModelParts) -> Callable[..., Any] | None:
    """Return the scores of a text in the form of `text_task`."""
    if (scores := parts.text) is None or parts.init_state is not None:
        return scores
    return lambda params, tokens: scores(params, None, tokens)


def split_result(result: Any) -> tuple[Any, Any]:
    """Return the loss and what a user's loss returns beside it; nothing: no metrics."""
    pair: Any = result
    return (pair[0], pair[1]) if isinstance(result, tuple) and len(pair) == 2 else (result, {})


def _with_arguments(parts: ModelParts, *, has_frozen: bool) -> Callable[..., Any]:
    """Return the loss of a task, with the arguments that it needs and no others."""
    names = named_arguments(parts.user_loss)

    def call(params: Any, state: Any, batch: Any, key: Any, frozen: Any) -> Any:
        given = {KEY: key, FROZEN: frozen}
        step = LossInputs(params, state, batch, key, {name: given[name] for name in names})
        loss, state, metrics = parts.loss(step)
        return (loss, metrics) if parts.init_state is None else (loss, (state, metrics))

    if parts.init_state is None:
        if has_frozen:
            return lambda params, batch, key, frozen: call(params, None, batch, key, frozen)
        return lambda params, batch, key: call(params, None, batch, key, None)
    if has_frozen:
        return call
    return lambda params, state, batch, key: call(params, state, batch, key, None)
