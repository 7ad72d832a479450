"""The lives of the islands in rings: granted, and watched until they end."""

from __future__ import annotations

from collections.abc import Callable

from cluster.allreduce.ports import RingPorts
from cluster.names import group_name
from cluster.syncer.counts import Watched
from cluster.syncer.measures import Measures
from cluster.tasks import Tasks
from coordinator.protocol import Incarnation, Island, Life


class RingLives:
    """The lives that a conductor grants; for one event loop."""

    def __init__(
        self,
        ports: RingPorts,
        measures: Measures,
        tasks: Tasks,
        lost: Callable[[Life, str], None],
        granted: int,
    ) -> None:
        """`tasks`: of the owner. `lost`: called with each life that is over, and why. `granted`:
        incarnations granted so far."""
        self._ports, self._measures, self._tasks, self._lost = ports, measures, tasks, lost
        self.granted = granted
        """Incarnations granted so far."""
        self._watched: set[Life] = set()

    def grant(self, island: Island) -> Life:
        """Return a new life for a process of this island."""
        self.granted += 1
        counts = self._counts_of(island)
        counts.lives, counts.refused, counts.rejected = counts.lives + 1, "", False
        return Life(island, Incarnation(self.granted))

    def recognize(self, life: Life) -> None:
        """Take over a life that an earlier conductor may have granted."""
        self.granted = max(self.granted, life.incarnation)
        self._counts_of(life.island)

    def watch_over(self, life: Life) -> None:
        """Watch a life, unless it is watched already."""
        if life not in self._watched:
            self._watched.add(life)
            self._tasks.spawn(self._watch(life))

    async def _watch(self, life: Life) -> None:
        why = await self._ports.watch(life)
        self._watched.discard(life)
        self._lost(life, why)

    def _counts_of(self, island: Island) -> Watched:
        return self._measures.counts.islands.setdefault(island, Watched(group_name(island)))
