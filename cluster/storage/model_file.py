"""The exported model: safetensors files, and the fingerprint of its fragments."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

import numpy as np

from cluster.storage.files import aside_of, sync_folder, write_json
from cluster.storage.sealed import SUFFIX, head
from coordinator.errors import LayoutMismatch
from coordinator.fragments import Flat, Layout, Piece
from coordinator.protocol import Version

NAME = "model"
"""The name of the file, without its suffix."""
PART_BYTES = 5_000_000_000
"""The size in bytes above which a model is in several files, as Hugging Face's tools have it."""
F32 = np.dtype("<f4")
"""The type of all tensors."""
VERSION_CHARACTERS = 48
"""The most characters of a version in JSON: two numbers of 20 digits, and punctuation."""


def fingerprint(flats: Iterable[Flat]) -> str:
    """Return the sha256 of the fragments in order, as little-endian f32 (`global_sha256`)."""
    digest = hashlib.sha256()
    for flat in flats:
        digest.update(_bytes(flat))
    return digest.hexdigest()


def _bytes(flat: Flat) -> memoryview:
    return np.ascontiguousarray(flat, F32).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class _Part:
    """One file of the model: its leaves one after the other, arrays from byte `begin` on."""

    path: Path
    file: RawIOBase
    shapes: Mapping[str, tuple[np.dtype[np.float32], tuple[int, ...]]]
    begin: int


class ModelFiles:
    """The model in a folder, with tensors named by their paths in the tree.

    It is written fragment by fragment, so that no process holds more than one, and becomes visible
    when it is complete (`publish`). A model of up to `PART_BYTES` is `model.safetensors`; a larger
    one is `model-00001-of-0000N.safetensors` with `model.safetensors.index.json`, whose
    `weight_map` maps each tensor to its file. Errors of all methods: `OSError`.
    """

    def __init__(
        self, folder: Path, layout: Layout, part_bytes: int = PART_BYTES, *, name: str = NAME
    ) -> None:
        """Open the model at `name`, a file name without its suffix."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._layout, self._name = folder, layout, name
        self._versions: list[Version] = []
        self._digest = hashlib.sha256()
        self._room = 256 + VERSION_CHARACTERS * len(layout.fragments)
        self._parts: list[_Part] = []
        self._place: dict[int, tuple[_Part, int]] = {}  # the file and offset of each leaf
        leaves_of_parts = _packed(layout, part_bytes)
        try:
            for number, leaves in enumerate(leaves_of_parts, 1):
                numbering = (
                    f"-{number:05d}-of-{len(leaves_of_parts):05d}"
                    if len(leaves_of_parts) > 1
                    else ""
                )
                self._begin(folder / f"{name}{numbering}{SUFFIX}", leaves)
        except OSError:
            self.discard()
            raise

    def _begin(self, path: Path, leaves: Sequence[int]) -> None:
        shapes = {self._layout.leaves[i].path: (F32, self._layout.leaves[i].shape) for i in leaves}
        plain = len(head(shapes, {}))
        begin = len(head(shapes, {}, plain + self._room))
        part = _Part(path, aside_of(path).open("wb", buffering=0), shapes, begin)
        self._parts.append(part)
        for i in leaves:
            self._place[i] = part, begin
            begin += F32.itemsize * math.prod(self._layout.leaves[i].shape)
        part.file.truncate(begin)

    def add(self, version: Version, flat: Flat) -> None:
        """Write the next fragment.

        Errors: `LayoutMismatch` if it has another size than the layout.
        """
        p = len(self._versions)
        if flat.shape != (size := self._layout.sizes[p],):
            raise LayoutMismatch(f"fragment {p} has {flat.shape} elements where {size} belong")
        content, offset = _bytes(flat), 0
        for piece in self._layout.fragments[p]:
            part, begin = self._place[piece.leaf]
            part.file.seek(begin + F32.itemsize * self._first(piece))
            nbytes = F32.itemsize * piece.size
            left = content[offset : offset + nbytes]
            while left:
                left = left[part.file.write(left) or 0 :]
            offset += nbytes
        self._digest.update(content)
        self._versions.append(version)

    def _first(self, piece: Piece) -> int:
        """Return how many elements of its leaf come before a piece, whose own are contiguous."""
        leaf = self._layout.leaves[piece.leaf]
        block = leaf.shape if piece.layer is None else leaf.shape[1:]
        before = (piece.layer or 0) * math.prod(block)
        return before + piece.start * math.prod(block[1:]) if block else before

    @property
    def versions(self) -> Sequence[Version]:
        """The versions of the fragments so far."""
        return self._versions

    @property
    def fingerprint(self) -> str:
        """The `fingerprint` of the fragments so far."""
        return self._digest.hexdigest()

    def publish(self) -> list[Path]:
        """Put the files in their places, once all fragments are added; return their paths.

        The index that names the other files is written last.
        """
        assert len(self._versions) == len(self._layout.fragments)
        metadata = {
            "layout": self._layout.fingerprint,
            "versions": json.dumps(self._versions),
            "global_sha256": self.fingerprint,
        }
        for part in self._parts:
            header = head(part.shapes, metadata, part.begin)
            assert len(header) == part.begin, "there was room for the metadata"
            part.file.seek(0)
            part.file.write(header)
            os.fsync(part.file.fileno())
            part.file.close()
        for part in self._parts:
            aside_of(part.path).replace(part.path)
        sync_folder(self._folder)
        paths = [part.path for part in self._parts]
        if len(paths) > 1:
            index = self._folder / f"{self._name}{SUFFIX}.index.json"
            size = F32.itemsize * self._layout.parameters
            weights = {name: part.path.name for part in self._parts for name in part.shapes}
            write_json(index, {"metadata": {"total_size": size, **metadata}, "weight_map": weights})
            paths.append(index)
        return paths

    def discard(self) -> None:
        """Delete everything that is not published."""
        for part in self._parts:
            with suppress(OSError):  # closing may fail with a full disk
                part.file.close()
            with suppress(OSError):
                aside_of(part.path).unlink(missing_ok=True)


def _packed(layout: Layout, part_bytes: int) -> list[list[int]]:
    """Return the leaves of each file, in their order; a leaf larger than a file has its own."""
    parts, left = [list[int]()], part_bytes
    for i, leaf in enumerate(layout.leaves):
        nbytes = F32.itemsize * math.prod(leaf.shape)
        if nbytes > left and parts[-1]:
            parts.append([])
            left = part_bytes
        parts[-1].append(i)
        left -= nbytes
    return parts
