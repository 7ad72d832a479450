"""The bytes of a tape that wait to be written, each with its segment."""

from __future__ import annotations

import itertools
import threading
from collections import deque

from cluster.storage.segments import Segment

ADDITION_BYTES = 2**20
"""The size in bytes from which an addition to the depot takes no more rows.

Rows that wait while a disk is full for hours are therefore not copied again with each attempt.
"""


class SegmentQueue:
    """A queue of encoded rows, in order: one thread adds to it, and another one writes from it."""

    def __init__(self) -> None:
        self._waiting = deque[tuple[Segment, bytes]]()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, segment: Segment, content: bytes) -> None:
        """Add these bytes at the end."""
        with self._lock:
            self._waiting.append((segment, content))

    def first(self, most: int) -> tuple[Segment, list[bytes]]:
        """Return the oldest parts of one segment, `most` at most; they stay in the queue."""
        with self._lock:
            segment, size, parts = self._waiting[0][0], 0, list[bytes]()
            for part_segment, part in itertools.islice(self._waiting, most):
                if part_segment != segment or size >= ADDITION_BYTES:
                    break
                parts.append(part)
                size += len(part)
        return segment, parts

    def remove(self, count: int) -> None:
        """Remove the oldest parts, which are written."""
        with self._lock:
            for _ in range(count):
                self._waiting.popleft()
