"""Trees of dictionaries: built from leaves by path, and read back.

A path joins the names on the way to a leaf with slashes, as in the saved model: "layers/0/kernel".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from coordinator.errors import UserMistake
from islands.state_tree import PARAMS, STATE
from islands.task import leaf_path

Leaves: TypeAlias = Mapping[str, Any]
"""Arrays, or their shapes, by path."""
_NAMED = 3
"""The most paths that one problem names."""


def leaves_of(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {leaf_path(keys): leaf for keys, leaf in flat}


def branches(params: Leaves) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return parameters and state of a saved model, each by its own path.

    A model with state has the paths `params/...` and `state/...`. In any other model, all leaves
    are parameters.
    """
    found = dict(params)
    if {path.partition("/")[0] for path in found} != {PARAMS, STATE}:
        return found, {}
    return _below(PARAMS, found), _below(STATE, found)


def fitted(wanted: Leaves, given: Leaves, kind: str) -> dict[str, jax.Array]:
    """Return the given arrays for these leaves, in their types.

    Args:
        wanted: The shapes of the model's leaves.
        given: The arrays.
        kind: The name of these leaves in a message, such as "parameters".

    Raises:
        UserMistake: If leaves are missing, unknown or of another shape; it names them all.
    """
    missing = [path for path in wanted if path not in given]
    unknown = [path for path in given if path not in wanted]
    shapes = [
        f"{path} ({list(given[path].shape)} instead of {list(leaf.shape)})"
        for path, leaf in wanted.items()
        if path in given and tuple(given[path].shape) != tuple(leaf.shape)
    ]
    problems = [
        f"{_named(paths)} {problem}"
        for paths, problem in (
            (missing, "missing"),
            (unknown, "not in the model"),
            (shapes, "of another shape"),
        )
        if paths
    ]
    if problems:
        raise UserMistake(
            f"these {kind} are not those of the model: {'; '.join(problems)}. Use the make_model "
            "and the options that the run was trained with"
        )
    return {path: jnp.asarray(given[path], leaf.dtype) for path, leaf in wanted.items()}


def _below(branch: str, leaves: Leaves) -> dict[str, Any]:
    beginning = f"{branch}/"
    return {
        path.removeprefix(beginning): leaf
        for path, leaf in leaves.items()
        if path.startswith(beginning)
    }


def _named(paths: list[str]) -> str:
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more} more" if more > 0 else "")
