"""The data of a learner without a model: which windows of its region's corpus it has read."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.checks.truth import TokenWindow
from coordinator.protocol import Lease, Region


class Pages:
    """One life's leases, in reading order; `read`: every window so far."""

    def __init__(self, region: Region | None, lease_windows: int, leases: Sequence[Lease]) -> None:
        self._region, self._length, self._leases = region, lease_windows, [*leases]
        self.cursor = leases[0]
        self.read: list[TokenWindow] = []

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        return sum(self._length - lease.start for lease in self._leases)

    def add(self, lease: Lease) -> None:
        self._leases.append(lease)

    def turn(self, windows: int) -> None:
        """Read so many, of which there are as many."""
        while windows:
            lease = self._leases[0]
            if lease.start == self._length:
                self._leases.pop(0)
                continue
            taken = min(windows, self._length - lease.start)
            first = lease.number * self._length + lease.start
            self.read += [(self._region, n) for n in range(first, first + taken)]
            self._leases[0] = self.cursor = Lease(lease.number, lease.start + taken)
            windows -= taken
