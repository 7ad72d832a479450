"""Arrays in one safetensors file with format, layout and checksum; a damaged one is refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from cluster.storage.depot import Depot
from cluster.storage.files import json_text
from cluster.storage.format import FORMAT, READABLE, Damaged

SUFFIX = ".safetensors"
LENGTH, ALIGNED = 8, 8
"""Bytes that say how long the header is, and what the arrays are aligned to."""


KINDS = {"f4": "F32", "u1": "U8", "u2": "U16", "i1": "I8"}
"""What the format calls the types that arrays have here."""
Bytes = bytes | memoryview


def seal(parts: dict[str, NDArray[Any]], layout: str) -> Sequence[Bytes]:
    """What the file has, one behind the other: the arrays are not copied, as the library would
    twice. Header: https://huggingface.co/docs/safetensors, padded so that the arrays are aligned.
    """
    arrays = {name: np.ascontiguousarray(given) for name, given in parts.items()}
    content: list[Bytes] = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    metadata = {"format": FORMAT, "layout": layout, "sha256": _digest(parts)}
    shapes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    return [head(shapes, metadata), *content]


def head(
    arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    metadata: Mapping[str, str],
    room: int = 0,
) -> bytes:
    """What a file begins with whose arrays lie one behind the other in this order.

    `room`: bytes that it has at least, so that other metadata can take its place.
    """
    said, offset = dict[str, Any](__metadata__=metadata), 0
    for name, (kind, shape) in arrays.items():
        nbytes = kind.itemsize * math.prod(shape)
        said[name] = {
            "dtype": KINDS[kind.str[1:]],
            "shape": shape,
            "data_offsets": [offset, offset + nbytes],
        }
        offset += nbytes
    text = json_text(said).encode().ljust(room - LENGTH)
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(LENGTH, "little") + text


def unseal(depot: Depot, name: str, layout: str) -> dict[str, NDArray[Any]]:
    try:
        content = depot.read(name)
        parts = load(content)
        length = int.from_bytes(content[:LENGTH], "little")
        told = json.loads(content[LENGTH : LENGTH + length])["__metadata__"]
        of, digest = (told["format"], told["layout"]), told["sha256"]
    except FileNotFoundError as error:
        raise Damaged(f"{name} is not there") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    if of[0] not in READABLE or of[1] != layout:
        raise Damaged(f"{name} is of another format or layout")
    if digest != _digest(parts):
        raise Damaged(f"{name} is not as it was written")
    return parts


def _digest(parts: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parts[name]).data)
    return digest.hexdigest()
