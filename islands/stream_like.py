"""The protocol of a source of training data, and the type of its batches."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from coordinator.protocol import Lease

Batch: TypeAlias = Any
"""A pytree of arrays with the batch on their first axis; in our task int32 [batch, window + 1]."""


class StreamLike(Protocol):
    """A source of training data with a cursor; `islands.corpus.Stream` is one."""

    @property
    def batch_size(self) -> int:
        """Windows in each batch."""
        ...

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held."""
        ...

    def next(self) -> Batch:
        """Return the next batch.

        Errors: `islands.corpus.Starved` if the leases held do not fill one.
        """
        ...

    @property
    def cursor(self) -> Lease:
        """The lease read last, with the windows of it consumed so far."""
        ...

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        ...
