"""Which data an island reads in virtual time: what the rules grant it, or what a tape says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cluster.storage.playback import TapeRow
from cluster.storage.state_history import relive
from coordinator.protocol import Granted, Island, Lease, LeaseGranted
from coordinator.state import Rule
from islands.task import Batch, StreamLike

Reading = Mapping[Island, Sequence[int]]
"""The numbers of an island's leases in the order in which they were granted, over all its lives."""


class Renumbered:
    """A stream that reads other leases than it is given, one for each; to whoever looks it reads
    those that it was given."""

    def __init__(self, stream: StreamLike, read: deque[int]) -> None:
        """`read`: instead of the first lease that is added, of the second, and so on; used up."""
        self._stream, self._read = stream, read
        self._given: dict[int, int] = {}  # a lease that is read, and the one it stands for

    @property
    def batch_size(self) -> int:
        return self._stream.batch_size

    def add(self, lease: Lease) -> None:
        """Errors: `ValueError` if it is one more than there are to be read."""
        if not self._read:
            raise ValueError(f"{lease} is one more than the tape has for this island")
        number = self._read.popleft()
        self._given[number] = lease.number
        self._stream.add(replace(lease, number=number))

    def next(self) -> Batch:
        return self._stream.next()

    @property
    def cursor(self) -> Lease:
        cursor = self._stream.cursor
        return replace(cursor, number=self._given[cursor.number])

    @property
    def remaining(self) -> int:
        return self._stream.remaining


def reading_of(rule: Rule, rows: Iterable[TapeRow]) -> dict[Island, list[int]]:
    """Which leases each island was granted, as the tape of a run has them; islands in the order in
    which they joined first.

    Errors: `OtherRules` if the rules that wrote it were others.
    """
    reading = dict[Island, list[int]]()
    for heard in relive(rule, rows):
        for effect in heard.effects:
            match effect:
                case Granted():
                    held = reading.setdefault(effect.life.island, [])
                    held.extend(lease.number for lease in effect.leases)
                case LeaseGranted():
                    reading[effect.life.island].append(effect.lease.number)
                case _:
                    pass
    return reading
