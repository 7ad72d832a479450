"""The buckets in which gradients travel in a ring, and their size in bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coordinator.codec import Wire

BUCKET_BYTES = 4 * 2**20
"""The target size of a bucket, in bytes of f32."""
WORDS = 3
"""The f32 values that are summed beside the gradients: loss, tokens, number of leaving members."""


def buckets_of(sizes: Sequence[int], limit: int = BUCKET_BYTES // 4) -> list[list[int]]:
    """Return the leaves of each bucket, by index, last leaves first, as the backward pass has them.

    A leaf that is larger than a bucket is a bucket of its own. `limit`: elements of a bucket.
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
    """Return the bytes that each member sends in one step, and also receives.

    They are 2 (M - 1) / M of the gradients and of the words beside them, as in a ring all-reduce or
    a reduce-scatter with an all-gather.
    """
    if members == 1:
        return 0
    gradients = sum(padded(sum(sizes[i] for i in each), members) for each in buckets_of(sizes))
    total = wire.bytes_of(gradients) + Wire.F32.bytes_of(WORDS)
    return 2 * (members - 1) * total // members


def padded(size: int, members: int) -> int:
    """Return the size of a bucket, padded to a multiple of `members`."""
    return math.ceil(size / members) * members
