"""The protocol of a source of training data, and the type of its batches."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from coordinator.protocol import Lease

Batch: TypeAlias = Any
"""A pytree of arrays with the batch on their first axis; in our task int32 [batch, window + 1]."""


class StreamLike(Protocol):
    """A source of training data with a cursor; `islands.corpus.Stream` is one.

    `Task.stream` makes one for each life of an island. The syncer grants leases, which are numbers:
    lease n stands for the windows from n x `data.lease_windows` on, up to those of the next lease.
    A window should depend on nothing but its number, so that it is the same on every machine.

    Leases are read in the order in which they are added. To resume, an island makes a new stream,
    and adds the saved `cursor` and then the leases behind it: windows before `cursor.start` are
    consumed already.
    """

    @property
    def batch_size(self) -> int:
        """Windows in each batch."""
        ...

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held; its windows from `lease.start` on are read."""
        ...

    def next(self) -> Batch:
        """Return the next batch.

        Errors: `islands.corpus.Starved` if the leases held do not fill one.
        """
        ...

    @property
    def cursor(self) -> Lease:
        """The lease read last, with the windows of it consumed so far, possibly all.

        Before the first batch it is the first lease that was added.
        """
        ...

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        ...
