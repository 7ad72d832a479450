"""Orbax checkpoints: arrays read one at a time, and a model written as a tree of dictionaries.

Only this module imports `orbax.checkpoint`, when it is needed.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.package_extras import install_command
from islands.parameter_files import StoredLeaf

METADATA = "_METADATA"
"""The file that every checkpoint of a tree has."""
ITEM = "default"
"""The folder of the tree in a step of Orbax's `CheckpointManager`."""


class OrbaxCheckpoint:
    """The arrays of an Orbax checkpoint, named by their paths in its tree."""

    def __init__(self, folder: Path) -> None:
        """Open a checkpoint: its folder, or the folder of a step that has one item.

        Errors: `UserMistake` if it is no checkpoint, or Orbax is not installed.
        """
        self._folder = _checkpoint_in(folder.absolute())
        self._orbax = orbax()
        with _quiet(), self._orbax.PyTreeCheckpointer() as reader:
            try:
                tree = reader.metadata(self._folder).item_metadata.tree
            except Exception as error:
                raise UserMistake(
                    f"{self._folder}: its {METADATA} cannot be read: {_first_line(error)}"
                ) from error
        found, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self._names = [jax.tree_util.keystr(keys, simple=True, separator="/") for keys, _ in found]
        self.leaves: Mapping[str, StoredLeaf] = {
            name: _header(leaf) for name, (_, leaf) in zip(self._names, found, strict=True)
        }
        """The shape and type of each array."""

    def read(self, name: str) -> NDArray[np.float32]:
        """Return one array, cast to float32."""
        ocp, structure = self._orbax, self._structure
        wanted, count = self._names.index(name), len(self._names)
        item = [0 if i == wanted else ocp.PLACEHOLDER for i in range(count)]
        options = [ocp.RestoreArgs(restore_type=np.ndarray)] * count
        order = ocp.args.PyTreeRestore(
            item=jax.tree.unflatten(structure, item),
            restore_args=jax.tree.unflatten(structure, options),
        )
        with _quiet(), ocp.PyTreeCheckpointer() as reader:
            try:
                found = jax.tree.leaves(reader.restore(self._folder, args=order))[wanted]
            except Exception as error:
                raise UserMistake(
                    f"{self._folder}: {name} cannot be read: {_first_line(error)}"
                ) from error
        return np.asarray(found).astype(np.float32, copy=False)


def _header(leaf: Any) -> StoredLeaf:
    """Return the shape and type of an array, or the type of a value that is none."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return StoredLeaf(tuple(leaf.shape), str(leaf.dtype))
    return StoredLeaf((), type(leaf).__name__)


def write_orbax(folder: Path, arrays: Mapping[str, NDArray[np.float32]]) -> None:
    """Write a checkpoint, which holds nested dictionaries named by the parts of each path.

    Errors: `UserMistake` if Orbax is not installed, or a path is empty; `OSError`.
    """
    if "" in arrays:
        raise UserMistake(
            "the model is a single array without a name, and an Orbax checkpoint needs a tree; "
            "use --format safetensors"
        )
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = array
    with _quiet(), orbax().StandardCheckpointer() as writer:
        writer.save(folder.absolute(), tree)
        writer.wait_until_finished()


def orbax() -> Any:
    """Import Orbax.

    Errors: `UserMistake` if it is not installed.
    """
    try:  # by name, since its types are not complete; late, since it takes seconds
        with _quiet():
            return import_module("orbax.checkpoint")
    except ModuleNotFoundError as error:
        raise UserMistake(
            f"an Orbax checkpoint needs the package orbax-checkpoint (no module {error.name!r}): "
            f"on every node that reads it, {install_command('orbax')}"
        ) from error


def _checkpoint_in(folder: Path) -> Path:
    """Return the folder that has the tree.

    Errors: `UserMistake` if there is none.
    """
    for candidate in (folder, folder / ITEM):
        if (candidate / METADATA).is_file():
            return _sound(candidate)
    if not folder.is_dir():
        raise UserMistake(f"{folder}: there is no such folder")
    steps = sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())
    if steps:
        raise UserMistake(
            f"{folder} has several steps; name one, such as {folder / str(steps[-1])}"
        )
    raise UserMistake(f"{folder} is no Orbax checkpoint: it has no {METADATA}")


def _sound(folder: Path) -> Path:
    try:
        json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserMistake(f"{folder}: its {METADATA} cannot be read: {error}") from error
    return folder


@contextmanager
def _quiet() -> Generator[None]:
    """Keep Orbax's warnings and log lines off a terminal that shows a table."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
