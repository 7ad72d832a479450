"""How gradients travel in a ring: in which pieces, and how many bytes that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coordinator.codec import Wire

BUCKET_BYTES = 4 * 2**20
"""Gradients are summed in pieces of about so many bytes of f32."""
WORDS = 3
"""Beside the gradients, summed in f32: the loss, tokens, and who wants to leave."""


def buckets_of(sizes: Sequence[int], limit: int = BUCKET_BYTES // 4) -> list[list[int]]:
    """Which leaves go together, by index, last first: the backward pass ends with the first ones.

    A leaf that is larger than a bucket is a bucket of its own.
    """
    buckets: list[list[int]] = []
    room = 0
    for i in reversed(range(len(sizes))):
        if not buckets or sizes[i] > room:
            buckets.append([])
            room = limit
        buckets[-1].append(i)
        room -= sizes[i]
    return buckets


def wire_bytes(sizes: Sequence[int], members: int, wire: Wire) -> int:
    """Bytes that each member sends in one step, and receives: 2 (M - 1) / M of the gradients and of
    the words beside them, as a ring or a scatter and a gather takes."""
    if members == 1:
        return 0
    gradients = sum(padded(sum(sizes[i] for i in each), members) for each in buckets_of(sizes))
    whole = wire.bytes_of(gradients) + Wire.F32.bytes_of(WORDS)
    return 2 * (members - 1) * whole // members


def padded(size: int, members: int) -> int:
    """Elements of a bucket that can be shared out evenly."""
    return math.ceil(size / members) * members
