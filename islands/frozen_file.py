"""Frozen arrays from a file whose content is known, such as the base of a LoRA."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from coordinator.errors import UserMistake

PIECE_BYTES = 1 << 22


def frozen_file(path: str | Path, sha256: str) -> Callable[[], dict[str, Any]]:
    """Return a function for `Task.frozen` that loads a safetensors file, and checks it.

    The file must be at this path on every node. The tree nests at the slashes of the names.

    Args:
        path: The file.
        sha256: The SHA-256 of the file, in hexadecimal, as `sha256sum` prints it. With it, no
            island trains on another base than the others.

    Raises:
        UserMistake: When called: there is no such file, or it has another content.
    """

    def load() -> dict[str, Any]:
        try:
            found = _digest(Path(path))
        except OSError as error:
            raise UserMistake(f"frozen arrays: {path} cannot be read: {error.strerror}") from error
        if found != sha256.lower():
            raise UserMistake(
                f"frozen arrays: {path} has the SHA-256 {found}, and the task wants {sha256}: copy "
                "the right file to this node, or change the task"
            )
        tree: dict[str, Any] = {}
        for name, array in load_file(path).items():
            *folders, last = name.split("/")
            node = tree
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = array
        return tree

    return load


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
