"""Which faults of a configuration are due, and which have happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from cluster.config.fault_kinds import SERVICES
from cluster.config.schema import PlannedFault


class FaultPlan:
    """A fault plan; each fault happens once, as soon as the syncer has reached its step and there
    is somebody to hit."""

    def __init__(self, faults: Sequence[PlannedFault], done: Iterable[int] = ()) -> None:
        """`done`: what an earlier process has injected already, by place in the plan."""
        self._faults, self._done = faults, {*done}

    @property
    def done(self) -> list[int]:
        """What has happened, by place in the plan."""
        return sorted(self._done)

    def due_at(self, t: int, live: Set[str]) -> dict[int, PlannedFault]:
        """Faults to inject now, by place in the plan: the same ones until they are `struck`.

        `t`: of the syncer's clock; `live`: islands whose learner is. One that hits an island which
        is not live waits until it is.
        """
        there = live | {*SERVICES}
        return {
            number: fault
            for number, fault in enumerate(self._faults)
            if number not in self._done and fault.at_step <= t and fault.island in there
        }

    def struck(self, number: int) -> None:
        """This one happens, and never again."""
        self._done.add(number)
