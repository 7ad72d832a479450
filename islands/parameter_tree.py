"""The form of a task's parameters, with which those of a loop of the user's own are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from islands.foreign_arrays import form_of
from islands.task import Params, leaf_path

NAMED = 3
"""Paths that a message names before it only counts them."""


class ParameterTree:
    """The tree, shapes and types that parameters must have."""

    def __init__(self, shapes: Params) -> None:
        """Create it; `shapes`: the parameters as `jax.ShapeDtypeStruct`."""
        pairs, self._structure = jax.tree_util.tree_flatten_with_path(shapes)
        self._forms = [form_of(leaf) for _, leaf in pairs]
        self._paths = [leaf_path(keys) for keys, _ in pairs]

    def problem_of(self, params: Params) -> str:
        """Return why these are not parameters of the task; empty if they are."""
        leaves, structure = jax.tree.flatten(params)
        if structure != self._structure:
            return self._misfit(params, structure)
        for path, wanted, leaf in zip(self._paths, self._forms, leaves, strict=True):
            if (form := form_of(leaf)) != wanted:
                return f"{path or 'the whole'} is {form}, and {wanted} in the run"
        return ""

    def _misfit(self, params: Params, structure: Any) -> str:
        """Return how the structure differs."""
        given = [leaf_path(keys) for keys, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
        lacking = [path for path in self._paths if path not in {*given}]
        unknown = [path for path in given if path not in {*self._paths}]
        if lacking or unknown:
            parts = (("the parameters lack", lacking), ("the run has no", unknown))
            return " and ".join(f"{word} {_listed(paths)}" for word, paths in parts if paths)
        return f"the parameters are a {structure}, and a {self._structure} in the run"


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - NAMED
    return ", ".join(paths[:NAMED]) + (f" and {more} more" if more > 0 else "")
