"""Leaves by their paths as nested dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of dictionaries with these leaves; a path has a slash between two names."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *folders, last = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return tree
