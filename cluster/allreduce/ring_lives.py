"""The lives of islands in rings, which the conductor grants and watches until they end."""

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
        """Begin without lives.

        `tasks`: of the owner. `lost`: called with each life that is over, and the reason.
        `granted`: incarnations granted so far.
        """
        self._ports, self._measures, self._tasks, self._lost = ports, measures, tasks, lost
        self.granted = granted
        """The number of incarnations granted so far, which is the newest incarnation."""
        self._watched: set[Life] = set()

    def grant(self, island: Island) -> Life:
        """Grant a new life to a process of this island, and return it."""
        self.granted += 1
        counts = self._counts_of(island)
        counts.lives, counts.refused, counts.rejected = counts.lives + 1, "", False
        return Life(island, Incarnation(self.granted))

    def recognize(self, life: Life) -> None:
        """Accept a life that an earlier conductor may have granted."""
        self.granted = max(self.granted, life.incarnation)
        self._counts_of(life.island)

    def watch_over(self, life: Life) -> None:
        """Watch a life; idempotent."""
        if life not in self._watched:
            self._watched.add(life)
            self._tasks.spawn(self._watch(life))

    async def _watch(self, life: Life) -> None:
        why = await self._ports.watch(life)
        self._watched.discard(life)
        self._lost(life, why)

    def _counts_of(self, island: Island) -> Watched:
        return self._measures.counts.islands.setdefault(island, Watched(group_name(island)))
