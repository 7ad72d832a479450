"""Arrays in one safetensors file with format, layout and checksum; a damaged file is refused."""

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
"""The suffix of the files."""
LENGTH, ALIGNED = 8, 8
"""Bytes that hold the length of the header, and the alignment of the arrays in bytes."""


KINDS = {
    "f4": "F32", "u1": "U8", "u2": "U16", "i1": "I8", "i2": "I16", "i4": "I32", "u4": "U32",
    "i8": "I64", "u8": "U64", "f2": "F16", "f8": "F64", "b1": "BOOL",
}  # fmt: skip
"""The names of array types in the file format."""
BytesLike = bytes | memoryview
OURS = ("format", "layout", "sha256")
"""Metadata that every file has; all others are its identity."""
NOTHING: Mapping[str, str] = {}
"""An identity without entries."""


def seal(
    parts: dict[str, NDArray[Any]], layout: str, identity: Mapping[str, str] = NOTHING
) -> Sequence[BytesLike]:
    """Return the parts of the file, one after the other; the arrays are not copied.

    The library would copy them twice. Header: https://huggingface.co/docs/safetensors, padded so
    that the arrays are aligned.

    `identity`: what else the file states about itself, under the same checksum.
    """
    arrays = {name: np.ascontiguousarray(given) for name, given in parts.items()}
    content: list[BytesLike] = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    metadata = {"format": FORMAT, "layout": layout, "sha256": _digest(parts, identity)}
    metadata |= identity
    shapes = {name: (array.dtype, parts[name].shape) for name, array in arrays.items()}
    return [head(shapes, metadata), *content]


def head(
    arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    metadata: Mapping[str, str],
    room: int = 0,
) -> bytes:
    """Return the header of a file whose arrays follow one after the other in this order.

    `room`: the least number of bytes, so that other metadata can replace it later.
    """
    header, offset = dict[str, Any](__metadata__=metadata), 0
    for name, (kind, shape) in arrays.items():
        nbytes = kind.itemsize * math.prod(shape)
        header[name] = {
            "dtype": KINDS[kind.str[1:]],
            "shape": shape,
            "data_offsets": [offset, offset + nbytes],
        }
        offset += nbytes
    text = json_text(header).encode().ljust(room - LENGTH)
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(LENGTH, "little") + text


def unseal(
    depot: Depot, name: str, layout: str, expected: Mapping[str, str] = NOTHING
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file.

    `expected`: its identity. Entries that a file of an earlier format does not have are not
    compared.

    Errors: `Damaged` if it is not there, has changed since it was written, or is another file.
    """
    parts, identity = unseal_all(depot, name, layout)
    for key, value in expected.items():
        if identity.get(key, value) != value:
            raise Damaged(
                f"{name} is another file under this name: {key} {identity[key]}, not {value}"
            )
    return parts


def verified_sha256(depot: Depot, name: str, layout: str) -> str:
    """Return the digest of the arrays of a file, which are compared with it.

    Errors: the errors of `unseal_all`.
    """
    return _digest(*unseal_all(depot, name, layout))


def unseal_all(
    depot: Depot, name: str, layout: str
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays and the identity of a file.

    Errors: `Damaged` if it is not there, or has changed since it was written.
    """
    try:
        content = depot.read(name)
        parts = load(content)
        length = int.from_bytes(content[:LENGTH], "little")
        metadata = json.loads(content[LENGTH : LENGTH + length])["__metadata__"]
        format_and_layout, digest = (metadata["format"], metadata["layout"]), metadata["sha256"]
    except FileNotFoundError as error:
        raise Damaged(f"{name} is not there") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    if format_and_layout[0] not in READABLE or format_and_layout[1] != layout:
        raise Damaged(f"{name} is of another format or layout")
    identity = {key: each for key, each in metadata.items() if key not in OURS}
    if digest != _digest(parts, identity):
        raise Damaged(f"{name} is not as it was written")
    return parts, identity


def _digest(parts: dict[str, NDArray[Any]], identity: Mapping[str, str]) -> str:
    """Return the sha256 of the arrays by name and of the identity, which earlier files lack."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parts[name]).data)
    for key in sorted(identity):
        digest.update(f"{key}={identity[key]}\0".encode())
    return digest.hexdigest()
