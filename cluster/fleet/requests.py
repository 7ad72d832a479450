"""The requests of people for a run: which islands it should have, and whether it should end.

Calls from other threads leave requests here. The keeper takes them over at its next look, and
confirms when they are written down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.config.modes import fixed_islands
from cluster.config.schema import Config
from cluster.fleet.placement import Node, impossible
from cluster.fleet.reconcile import resized
from cluster.fleet.withheld import WithheldIslands
from cluster.names import group_name
from cluster.storage.fleet_file import FleetMemory
from coordinator.errors import UserMistake
from coordinator.protocol import Island


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The state of a run that people have requested."""

    desired: frozenset[Island]
    """Islands that the run should have."""
    stopping: str | None = None
    """The reason why the run should end; None if it should continue."""
    pardons: int = 0
    """Times that islands which are set aside were given another chance."""
    number: int = 0
    """Requests granted so far."""


class Requests:
    """The requests for one run; one that cannot be granted is refused, and changes nothing."""

    def __init__(self, run: str, config: Config, nodes: Callable[[], Sequence[Node]]) -> None:
        """Create the requests. `nodes` lists the nodes of the cluster for each request to grow."""
        self._run, self._config, self._nodes = run, config, nodes
        self._now = DesiredState(frozenset(config.island_names))
        self._kept = 0  # the number of the last request that the keeper has written down
        self._over = False
        self._changed = threading.Condition()
        self.withheld = WithheldIslands(config)
        """The islands that the queue of the cluster has the run do without."""

    def scale(self, counts: Mapping[str, int]) -> int:
        """Set the number of islands of each of these groups; return the number of the request.

        Errors: `UserMistake` if there is no such group, or it can never be placed.
        """
        groups = {each.group: each for each in self._config.islands}
        before, nodes = self.wanted.desired, list[Node]()
        if any(count > _count(before, group) for group, count in counts.items()):
            nodes = [*self._nodes()]  # called without the lock: it may take a while
        with self._changed:
            wanted = self._now.desired
            for group, count in counts.items():
                if group not in groups:
                    known = ", ".join(sorted(groups))
                    raise UserMistake(f"run {self._run} has no group {group!r}; it has {known}")
                grows = count > max(_count(before, group), _count(wanted, group))
                if grows and (refusal := impossible(groups[group], count, nodes)) is not None:
                    raise UserMistake(refusal)
                wanted = resized(wanted, group, count)
            return self._want(wanted)

    def drain(self, island: Island) -> int:
        """Remove this island without a replacement; return the number of the request.

        Errors: `UserMistake` if there is no such island, or too few would be left.
        """
        with self._changed:
            desired = self._now.desired
            if island not in desired:
                known = ", ".join(sorted(desired))
                raise UserMistake(f"run {self._run} has no island {island!r}; it has {known}")
            return self._want(desired - {island})

    def stop(self, why: str) -> int:
        """Have the run end, for the first reason given; return the number of the request."""
        with self._changed:
            return self._grant(replace(self._now, stopping=self._now.stopping or why))

    def wait_kept(self, number: int, within_s: float) -> bool:
        """Wait until this request is written down or the run is over; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._kept >= number or self._over, within_s)

    @property
    def desired(self) -> frozenset[Island]:
        """Islands that the run should have."""
        return self.wanted.desired

    @property
    def stopping(self) -> str | None:
        """The reason why the run should end; None if it should continue."""
        return self.wanted.stopping

    @property
    def wanted(self) -> DesiredState:
        """The state that is requested now."""
        with self._changed:
            return self._now

    # --- called by the keeper ---------------------------------------------------------------------

    def restore(self, kept: FleetMemory, now_s: float) -> None:
        """Take over the requests that an earlier process of the fleet has written down.

        `now_s`: the time in seconds of the monotonic clock.
        """
        with self._changed:
            stopping = self._now.stopping or kept["stopping"]
            desired = frozenset(map(Island, kept["desired"]))
            self._now = replace(self._now, desired=desired, stopping=stopping)
        self.withheld.restore(kept["withheld"], now_s)

    def kept(self, wanted: DesiredState) -> None:
        """Note that these requests are written down, or that writing was tried."""
        with self._changed:
            self._kept = max(self._kept, wanted.number)
            self._changed.notify_all()

    def close(self) -> None:
        """Grant no further request: the run is over."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self.withheld.close()

    # --- helpers, called with the lock held -------------------------------------------------------

    def _want(self, islands: frozenset[Island]) -> int:
        if islands != self._now.desired and (why := fixed_islands(self._config)) is not None:
            raise UserMistake(f"run {self._run}: {why}")
        quorum = self._config.sync.quorum
        if len(islands) < quorum:
            raise UserMistake(
                f"{len(islands)} islands would be left and sync.quorum is {quorum}: no round could "
                "close; to end the run use `archipelago stop`"
            )
        if self._now.stopping is not None:
            raise UserMistake(f"run {self._run} is ending: {self._now.stopping}")
        if self._over:
            raise UserMistake(f"run {self._run} is over")
        return self._grant(replace(self._now, desired=islands, pardons=self._now.pardons + 1))

    def _grant(self, wanted: DesiredState) -> int:
        self._now = replace(wanted, number=self._now.number + 1)
        return self._now.number


def _count(islands: frozenset[Island], group: str) -> int:
    return sum(group_name(island) == group for island in islands)
