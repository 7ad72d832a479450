"""The arguments of a user's loss: its named ones, and parameters and state in one tree.

The loss of a task with state has parameters and state as two arguments. Everything else in this
project has one tree, `{"params": ..., "state": ...}`, so that state is fetched, adopted and saved
as parameters are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter
from typing import Any, TypeVar

from coordinator.errors import UserMistake
from islands.user_lines import DEEPEST

T = TypeVar("T")

KEY, FROZEN = "key", "frozen"
"""The names of the arguments that a loss may have: the key of its step, and the frozen arrays."""
RANDOM = ("rng", "key", "seed", "dropout")
"""Parts of the names of arguments that seem to expect a random key."""
PARAMS, STATE = "params", "state"
"""The two branches of the tree, and so the beginnings of its leaves' paths."""


@dataclass(frozen=True, slots=True)
class InitBoth:
    """The `init` of a task with state: parameters and state in one tree."""

    init: Callable[[int], Any]
    init_state: Callable[[int], Any]

    def __call__(self, seed: int) -> Any:
        """Return the initial tree."""
        return {PARAMS: self.init(seed), STATE: self.init_state(seed)}

    @property
    def user_callable(self) -> Any:
        """The user's own `init`, for `islands.user_lines.place_of`."""
        return self.init


@dataclass(frozen=True, slots=True)
class LossOfTree:
    """A loss of (params, state, batch) as one of (tree, batch), with the same named arguments."""

    loss: Callable[..., Any]

    def __call__(self, tree: Any, batch: Any, **named: Any) -> Any:
        """Return what the loss returns."""
        return self.loss(tree[PARAMS], tree[STATE], batch, **named)

    @property
    def user_callable(self) -> Any:
        """The user's own loss, for `islands.user_lines.place_of`."""
        return self.loss


def named_arguments(loss: Callable[..., Any]) -> frozenset[str]:
    """Return which of `key` and `frozen` a loss has among its arguments."""
    if isinstance(loss, LossOfTree):
        return named_arguments(loss.loss)
    try:
        return frozenset({KEY, FROZEN} & inspect.signature(loss).parameters.keys())
    except (TypeError, ValueError):  # a callable without a signature
        return frozenset()


def refused_argument(loss: Callable[..., Any], name: str, given: int = 2) -> str:
    """Return why a loss has an argument that no call passes; empty if it has none.

    A loss may have further arguments with defaults, unless their names or defaults show that a
    random key is meant: the loss would silently draw nothing. Arguments that `functools.partial`
    binds are not examined. `**` is refused: a call passes `key` and `frozen` only by name.

    `name`: the name of the loss in the message. `given`: the number of its arguments beside `key`
    and `frozen`, such as 2 for parameters and batch.
    """
    if isinstance(loss, LossOfTree):
        return refused_argument(loss.loss, name, given + 1)
    try:
        found = [*inspect.signature(loss).parameters.values()]
    except (TypeError, ValueError):  # a callable without a signature
        return ""
    others = [each for each in found if each.name not in (KEY, FROZEN)]
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    passed = [each.name for each in others if each.kind in by_place][:given]
    fine = {*passed, *_bound(loss)}
    for each in others:
        if each.name not in fine and (advice := _advice(each, given)):
            written = ", ".join(str(each).partition(":")[0].partition("=")[0] for each in found)
            return f"{name}({written}): the parameter {each.name} is not known; {advice}"
    return ""


def _bound(function: Any) -> set[str]:
    """Return the arguments that `functools.partial` binds by name, also within wrappers."""
    bound = set[str]()
    for _ in range(DEEPEST):
        if isinstance(function, partial):
            bound |= function.keywords.keys()
            function = function.func
        else:
            function = getattr(function, "__wrapped__", function)
    return bound


def _advice(parameter: Parameter, given: int) -> str:
    """Return how to mend a parameter that no call passes; empty if its default is right."""
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return ""
    if parameter.kind is Parameter.VAR_KEYWORD:
        return (
            f"a loss gets only the arguments {KEY} and {FROZEN}, and only if it names them: name "
            "those that it uses (a decorator keeps them with functools.wraps)"
        )
    if any(word in parameter.name.lower() for word in RANDOM) and not _is_setting(parameter):
        return (
            f"call it {KEY} to get the random key of each step (None in an evaluation), or bind it "
            "with functools.partial"
        )
    if parameter.default is not Parameter.empty:
        return ""
    return (
        f"{given} arguments are passed by place, with a state only if the task has one; give it a "
        "default or bind it with functools.partial; arrays that no step changes come as "
        f"{FROZEN} (Task.frozen)"
    )


def _is_setting(parameter: Parameter) -> bool:
    """Return whether the default is a number that is no seed, such as that of `dropout_rate`."""
    return isinstance(parameter.default, int | float) and "seed" not in parameter.name.lower()


def own_path(path: str) -> str | None:
    """Return a parameter's path in the task's own tree, from its path in this one; None: state."""
    branch = f"{PARAMS}/"
    return path.removeprefix(branch) if path.startswith(branch) else None


def is_state(path: str) -> bool:
    """Return whether a path of this tree is that of a leaf of the state."""
    return path.startswith(f"{STATE}/")


def in_one_tree(task: T) -> T:
    """Return a task with parameters and state in one tree; a task without state is unchanged.

    `task`: an `islands.task.Task`.

    Errors: `UserMistake` if its `init` draws single leaves, as that of state does not.
    """
    given: Any = task
    if given.init_state is None:
        return task
    if given.init_leaf is not None:
        raise UserMistake(
            f"task {given.name}: init_state and an init with `leaf` do not go together"
        )
    return replace(
        given,
        init=InitBoth(given.init, given.init_state),
        loss=LossOfTree(given.loss),
        eval_loss=None if given.eval_loss is None else LossOfTree(given.eval_loss),
        stacked=lambda path: (own := own_path(path)) is not None and given.stacked(own),
        embedding=lambda path: (own := own_path(path)) is not None and given.embedding(own),
        sharding=lambda path, shape: (
            None if (own := own_path(path)) is None else given.sharding(own, shape)
        ),
    )
