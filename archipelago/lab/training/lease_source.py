"""The data that an island reads in virtual time: the leases it is granted, or those of a tape."""

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
"""The numbers of an island's leases in the order of their grants, over all its lives."""


class Renumbered:
    """A stream that reads other leases than it is given, one for each.

    To its user it seems to read those that it was given.
    """

    def __init__(self, stream: StreamLike, read: deque[int]) -> None:
        """Wrap a stream; `read` holds the lease to read for each added one, and is used up."""
        self._stream, self._read = stream, read
        self._given: dict[int, int] = {}  # lease that is read: lease that it stands for

    @property
    def batch_size(self) -> int:
        """Windows per batch."""
        return self._stream.batch_size

    def add(self, lease: Lease) -> None:
        """Add the lease that stands for this one.

        Errors: `ValueError` if there are no more leases to read.
        """
        if not self._read:
            raise ValueError(f"{lease} is one more than the tape has for this island")
        number = self._read.popleft()
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
