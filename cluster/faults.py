"""What is broken on purpose, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.config import Fault
from cluster.status import Status


class Plan:
    """A fault plan; each fault happens once, as soon as the syncer has reached its step."""

    def __init__(self, faults: Sequence[Fault], done: Iterable[int] = ()) -> None:
        """`done`: what an earlier process has injected already, by place in the plan."""
        self._faults, self._done = faults, {*done}

    @property
    def done(self) -> list[int]:
        """What has happened, by place in the plan."""
        return sorted(self._done)

    def due(self, status: Status) -> list[Fault]:
        """Faults to inject now. One that hits an island which is not live waits until it is."""
        live = {each["island"] for each in status["islands"] if each["state"] == "live"}
        now = [
            number
            for number, fault in enumerate(self._faults)
            if number not in self._done and fault.at_step <= status["t"] and fault.island in live
        ]
        self._done |= {*now}
        return [self._faults[number] for number in now]
