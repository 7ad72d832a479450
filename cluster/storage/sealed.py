"""Arrays in one safetensors file with format, layout and checksum; a damaged one is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from cluster.storage.depot import Depot
from cluster.storage.files import json_text
from cluster.storage.format import FORMAT, READABLE, Damaged

SUFFIX = ".safetensors"
ALIGNED = 8


KINDS = {"f4": "F32", "u1": "U8", "u2": "U16", "i1": "I8"}
"""What the format calls the types that arrays have here."""
Bytes = bytes | memoryview


def seal(parts: dict[str, NDArray[Any]], layout: str) -> Sequence[Bytes]:
    """What the file has, one behind the other: the arrays are not copied, as the library would
    twice. Header: https://huggingface.co/docs/safetensors, padded so that the arrays are aligned.
    """
    head: dict[str, Any] = {
        "__metadata__": {"format": FORMAT, "layout": layout, "sha256": _digest(parts)}
    }
    offset, content = 0, list[Bytes]()
    for name, given in parts.items():
        array = np.ascontiguousarray(given)
        head[name] = {
            "dtype": KINDS[array.dtype.str[1:]],
            "shape": array.shape,
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        content.append(array.reshape(-1).view(np.uint8).data)
    text = json_text(head).encode()
    text += b" " * (-len(text) % ALIGNED)
    return [len(text).to_bytes(8, "little") + text, *content]


def unseal(depot: Depot, name: str, layout: str) -> dict[str, NDArray[Any]]:
    try:
        content = depot.read(name)
        parts = load(content)
        length = int.from_bytes(content[:8], "little")
        told = json.loads(content[8 : 8 + length])["__metadata__"]
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
