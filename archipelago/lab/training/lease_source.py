"""The data that an island reads in virtual time: the leases it is granted, or those of a tape."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from cluster.storage.playback import TapeRow
from cluster.storage.state_history import relive
from coordinator.protocol import Granted, Island, Lease, LeaseGranted
from coordinator.state import Rule
from islands.task import Batch, StreamLike

Reading = Mapping[Island, Sequence[int]]
"""The numbers of an island's leases in the order of their grants, over all its lives."""


class Renumbered:
    """A stream that reads other leases than it is given, one for each.

    To its user it seems to read those that it was given.
    """

    def __init__(self, stream: StreamLike, read: deque[int], more: Iterator[int]) -> None:
        """Wrap a stream; `read` holds the lease to read for each added one, and is used up.

        Leases added after that are read from `more`.
        """
        self._stream, self._read, self._more = stream, read, more
        self._given: dict[int, int] = {}  # lease that is read: lease that it stands for

    @property
    def batch_size(self) -> int:
        """Windows per batch."""
        return self._stream.batch_size

    def add(self, lease: Lease) -> None:
        """Add the lease that stands for this one."""
        number = self._read.popleft() if self._read else next(self._more)
        self._given[number] = lease.number
        self._stream.add(replace(lease, number=number))

    def next(self) -> Batch:
        """Return the next batch."""
        return self._stream.next()

    @property
    def cursor(self) -> Lease:
        """The position in the leases that were given."""
        cursor = self._stream.cursor
        return replace(cursor, number=self._given[cursor.number])

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        return self._stream.remaining


class GivenLeases:
    """The leases that replace the granted ones, by island.

    An island that needs more of them than it has reads new ones, which no island has read.
    """

    def __init__(self, reading: Reading) -> None:
        self._left = {island: deque(numbers) for island, numbers in reading.items()}
        read = [number for numbers in reading.values() for number in numbers]
        self._more = count(max(read, default=-1) + 1)

    def stream(self, island: Island, stream: StreamLike) -> StreamLike:
        """Return a life's stream as one that reads the island's leases, from where it stopped."""
        return Renumbered(stream, self._left.setdefault(island, deque()), self._more)


def reading_of(rule: Rule, rows: Iterable[TapeRow]) -> dict[Island, list[int]]:
    """Return the leases that each island was granted, from the tape of a run.

    Islands are in the order of their first joins.

    Errors: `OtherRules` if other rules wrote the tape.
    """
    reading = dict[Island, list[int]]()
    for replayed in relive(rule, rows):
        for effect in replayed.effects:
            match effect:
                case Granted():
                    held = reading.setdefault(effect.life.island, [])
                    held.extend(lease.number for lease in effect.leases)
                case LeaseGranted():
                    reading[effect.life.island].append(effect.lease.number)
                case _:
                    pass
    return reading
