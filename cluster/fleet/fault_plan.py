"""The faults of a configuration: which are due, and which have happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from cluster.config.fault_kinds import SERVICES
from cluster.config.schema import PlannedFault


class FaultPlan:
    """A fault plan; each fault happens once, when it is due and its target is there.

    It is due as soon as the syncer has reached its step.
    """

    def __init__(self, faults: Sequence[PlannedFault], done: Iterable[int] = ()) -> None:
        """Skip the faults in `done`, by place in the plan: an earlier process has injected them."""
        self._faults, self._done = faults, {*done}

    @property
    def done(self) -> list[int]:
        """The faults that have happened, by place in the plan."""
        return sorted(self._done)

    def due_at(self, t: int, live: Set[str]) -> dict[int, PlannedFault]:
        """Return the faults to inject now, by place in the plan.

        They stay due until they are `struck`.

        `t`: the syncer's clock; `live`: islands whose learner is live. A fault of an island that is
        not live waits until it is.
        """
        targets = live | {*SERVICES}
        return {
            number: fault
            for number, fault in enumerate(self._faults)
            if number not in self._done and fault.at_step <= t and fault.island in targets
        }

    def struck(self, number: int) -> None:
        """Note that this fault happens, so that it never happens again."""
        self._done.add(number)
