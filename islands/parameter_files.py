"""Arrays by name, read one at a time from safetensors files.

`islands.orbax_checkpoint` reads Orbax checkpoints in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from coordinator.errors import UserMistake

SUFFIX, INDEX = ".safetensors", ".safetensors.index.json"
"""The names of a file, and of the index of a model in several files."""
FLOATS = {
    "F32": "float32",
    "BF16": np.dtype(ml_dtypes.bfloat16).name,  # its import registers the type with NumPy
    "F16": "float16",
    "F64": "float64",
}
"""The types in safetensors files that can become parameters, with their NumPy names."""


class StoredLeaf(NamedTuple):
    """The shape and type of an array in a file."""

    shape: tuple[int, ...]
    dtype: str
    """The NumPy name of the type, such as "float32"; the file's own name if it is no float."""

    @property
    def is_float(self) -> bool:
        """Whether the array can become parameters."""
        return self.dtype in FLOATS.values()

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class ParameterSource(Protocol):
    """Arrays by name, of which one at a time is in memory."""

    @property
    def leaves(self) -> Mapping[str, StoredLeaf]:
        """The shape and type of each array, from the headers alone."""
        ...

    def read(self, name: str) -> NDArray[np.float32]:
        """Return one array, cast to float32.

        Errors: `UserMistake` if it cannot be read.
        """
        ...


class SafetensorsFiles:
    """The arrays of a safetensors file, or of all files that an index names."""

    def __init__(self, path: Path) -> None:
        """Open the headers of the files.

        A model in several files is named by its index, or by the index's name without the ending
        `.index.json`.

        Errors: `UserMistake` if a file is missing, or is no complete safetensors file.
        """
        self._path = path
        index = path if path.name.endswith(INDEX) else path.with_name(f"{path.name}.index.json")
        if path.is_dir():
            raise UserMistake(f"{path} is a folder: name a file that ends with {SUFFIX}")
        several = index.exists() and (index == path or not path.exists())
        named = _files_of(index) if several else {}
        files = [_opened(file) for file in dict.fromkeys(named.values() or [path])]
        self._places = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        if lost := [name for name in named if name not in self._places]:
            raise UserMistake(f"{path}: its files have no {', '.join(lost)}")
        self.metadata: Mapping[str, str] = files[0].metadata() or {}
        """The text beside the arrays; that of the first file, if there are several."""
        self.leaves: Mapping[str, StoredLeaf] = {
            name: _header(file.get_slice(name)) for name, file in self._places.items()
        }
        """The shape and type of each array."""

    def read(self, name: str) -> NDArray[np.float32]:
        """Return one array, cast to float32."""
        return self._values(name, None)

    def read_block(self, name: str, index: tuple[int | slice, ...]) -> NDArray[np.float32]:
        """Return one block of an array, cast to float32; the rest is not read.

        Errors: `UserMistake`.
        """
        return self._values(name, index or None)

    def _values(self, name: str, index: tuple[int | slice, ...] | None) -> NDArray[np.float32]:
        file = self._places[name]
        try:
            found = file.get_tensor(name) if index is None else file.get_slice(name)[index]
        except (SafetensorError, OSError) as error:
            raise UserMistake(f"{self._path}: {name} cannot be read: {error}") from error
        return np.asarray(found).astype(np.float32, copy=False)


def _header(array: Any) -> StoredLeaf:
    kind: str = array.get_dtype()
    return StoredLeaf(tuple(array.get_shape()), FLOATS.get(kind, kind))


def _files_of(index: Path) -> Mapping[str, Path]:
    """Return the file of each array that an index names.

    Errors: `UserMistake` if it cannot be read.
    """
    try:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: index.parent / file for name, file in names.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(
            f"{index} is no index of safetensors files, with a table weight_map: {error!r}"
        ) from error


def _opened(path: Path) -> Any:
    """Open a file; its arrays are read when they are needed.

    Errors: `UserMistake`.
    """
    try:
        return safe_open(path, framework="np")
    except FileNotFoundError as error:
        looked = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
        raise UserMistake(f"{path}: there is no such file{looked}") from error
    except (SafetensorError, OSError) as error:
        raise UserMistake(
            f"{path} is no safetensors file, or not all of one: {error}; write or copy it again"
        ) from error
