"""The data of a learner without a model: leases, and the windows that it reads of them."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.protocol import Lease


class Pages:
    """The leases of one life, in reading order; `cursor` is as in `islands.task.StreamLike`."""

    def __init__(self, lease_windows: int, leases: Sequence[Lease]) -> None:
        self._length, self._leases = lease_windows, [*leases]
        self.cursor = leases[0]

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        return sum(self._length - lease.start for lease in self._leases)

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held."""
        self._leases.append(lease)

    def turn(self, windows: int) -> list[int]:
        """Read `windows` windows, which must be there, and return their numbers in the corpus."""
        read: list[int] = []
        while len(read) < windows:
            lease = self._leases[0]
            if lease.start == self._length:
                self._leases.pop(0)
                continue
            taken = min(windows - len(read), self._length - lease.start)
            first = lease.number * self._length + lease.start
            read += range(first, first + taken)
            self._leases[0] = self.cursor = Lease(lease.number, lease.start + taken)
        return read
