"""The tree of a task with state: `{"params": ..., "state": ...}`.

The loss of such a task has parameters and state as two arguments. Everything else in this project
has one tree, so that state is fetched, adopted and saved as parameters are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KEY = "key"
"""The name of a loss's last argument, if it draws."""
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


def takes_key(loss: Callable[..., Any]) -> bool:
    """Return whether a loss has an argument named `key`."""
    try:
        return KEY in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


def loss_of_tree(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss of (params, state, batch) as one of (tree, batch), with a key if it has one."""
    if takes_key(loss):
        return lambda tree, batch, key: loss(tree[PARAMS], tree[STATE], batch, key=key)
    return lambda tree, batch: loss(tree[PARAMS], tree[STATE], batch)


def own_path(path: str) -> str | None:
    """Return a parameter's path in the task's own tree, from its path in this one; None: state."""
    branch = f"{PARAMS}/"
    return path.removeprefix(branch) if path.startswith(branch) else None


def is_state(path: str) -> bool:
    """Return whether a path of this tree is that of a leaf of the state."""
    return path.startswith(f"{STATE}/")
