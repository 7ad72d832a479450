"""The model as people get it: safetensors, and the fingerprint of its fragments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
from safetensors.numpy import save

from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import Version


def fingerprint(flats: Sequence[Flat]) -> str:
    """sha256 of the fragments in order, little-endian f32: `global_sha256` of a summary."""
    digest = hashlib.sha256()
    for flat in flats:
        digest.update(np.ascontiguousarray(flat, "<f4").tobytes())
    return digest.hexdigest()


def model_bytes(layout: Layout, flats: Sequence[Flat], versions: Sequence[Version]) -> bytes:
    """The model as safetensors, tensors named by their paths in the tree."""
    names = [leaf.path for leaf in layout.leaves]
    metadata = {
        "layout": layout.fingerprint,
        "versions": json.dumps(versions),
        "global_sha256": fingerprint(flats),
    }
    return save(dict(zip(names, sew(layout, flats), strict=True)), metadata)
