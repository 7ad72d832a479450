"""Arrays in one safetensors file with format, layout and checksum; a damaged one is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cluster.storage.depot import Depot
from cluster.storage.format import FORMAT, READABLE, Damaged

SUFFIX = ".safetensors"


def seal(parts: dict[str, NDArray[Any]], layout: str) -> bytes:
    return save(parts, {"format": FORMAT, "layout": layout, "sha256": _digest(parts)})


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
