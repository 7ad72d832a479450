"""The arguments of a user's loss: its named ones, and parameters and state in one tree.

The loss of a task with state has parameters and state as two arguments. Everything else in this
project has one tree, `{"params": ..., "state": ...}`, so that state is fetched, adopted and saved
as parameters are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coordinator.errors import UserMistake

T = TypeVar("T")

KEY, FROZEN = "key", "frozen"
"""The names of the arguments that a loss may have: the key of its step, and the frozen arrays."""
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
