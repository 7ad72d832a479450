"""What is broken on purpose, and when."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.config import Fault
from cluster.status import Status


class Plan:
    """A fault plan; each fault happens once, as soon as the syncer has reached its step."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._left = sorted(faults, key=lambda fault: fault.at_step)

    def due(self, status: Status) -> list[Fault]:
        """Faults to inject now. One that hits an island which is not live waits until it is."""
        live = {each["island"] for each in status["islands"] if each["state"] == "live"}
        now = [f for f in self._left if f.at_step <= status["t"] and f.island in live]
        self._left = [fault for fault in self._left if fault not in now]
        return now
