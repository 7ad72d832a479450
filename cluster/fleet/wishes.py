"""What people want of a run: which islands shall be there, and whether it shall end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cluster.config.modes import fixed_islands
from cluster.config.schema import Config
from cluster.fleet.placement import Node, impossible
from cluster.fleet.reconcile import resized
from cluster.names import group_name
from coordinator.errors import UserMistake
from coordinator.protocol import Island


class Wishes:
    """One run's. A wish that cannot be granted is refused, and changes nothing.

    `desired`: islands that shall be there. `stopping`: why the run shall end; None: it shall not.
    """

    def __init__(self, run: str, config: Config, nodes: Callable[[], Sequence[Node]]) -> None:
        """`nodes`: of the cluster, asked for where more islands are wanted."""
        self._run, self._config, self._nodes = run, config, nodes
        self.desired: frozenset[Island] = frozenset(config.island_names)
        self.stopping: str | None = None

    def scale(self, counts: Mapping[str, int]) -> None:
        """Have so many islands of each of these groups.

        Errors: `UserMistake` if one is not there, or could never be.
        """
        groups, nodes = {each.group: each for each in self._config.islands}, None
        wanted = self.desired
        for group, count in counts.items():
            if group not in groups:
                known = ", ".join(sorted(groups))
                raise UserMistake(f"run {self._run} has no group {group!r}; it has {known}")
            if count > sum(group_name(island) == group for island in self.desired):
                nodes = nodes or self._nodes()
                if (no := impossible(groups[group], count, nodes)) is not None:
                    raise UserMistake(no)
            wanted = resized(wanted, group, count)
        self._want(wanted)

    def drain(self, island: Island) -> None:
        """Have this island no more, and none in its place.

        Errors: `UserMistake` if there is no such island, or too few would be left.
        """
        if island not in self.desired:
            known = ", ".join(sorted(self.desired))
            raise UserMistake(f"run {self._run} has no island {island!r}; it has {known}")
        self._want(self.desired - {island})

    def stop(self, why: str) -> None:
        """Have the run end; the first reason counts."""
        self.stopping = self.stopping or why

    def _want(self, islands: frozenset[Island]) -> None:
        if islands != self.desired and (why := fixed_islands(self._config)) is not None:
            raise UserMistake(f"run {self._run}: {why}")
        quorum = self._config.sync.quorum
        if len(islands) < quorum:
            raise UserMistake(
                f"{len(islands)} islands would be left and sync.quorum is {quorum}: no round could "
                "close; to end the run use `archipelago stop`"
            )
        if self.stopping is not None:
            raise UserMistake(f"run {self._run} is ending: {self.stopping}")
        self.desired = islands
