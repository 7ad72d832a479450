"""Islands whose actor Ray has given up.

No process of such an island runs that could report it, so Ray is asked. An island that does not
report is asked for a sign of life, which nothing waits for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cluster.fleet.backend import AliveCheck, Handle, RayCluster
from cluster.fleet.island_table import Islands
from cluster.fleet.reconcile import Hold
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
CHECK_LOOKS = 10
"""Looks between two steps of a check: the request for a sign of life, and a look at its answer."""
SILENT = ("starting", "lost")
"""The states of a learner whose process may not exist."""
WHY = "Ray has given up its actor"
"""The reason of an island that has devices and no process."""


@dataclass(slots=True)
class SilentIsland:
    """An island that does not report, while it has the same actor."""

    actor: Handle
    looks: int = 0
    """Looks at which it did not report."""
    alive: AliveCheck | None = None
    """The sign of life that was requested; None: none."""

    def given_up(self, cluster: RayCluster) -> str:
        """Return why Ray has given up the actor; empty if it has not, or is not known to have."""
        self.looks += 1
        if self.looks % CHECK_LOOKS:
            return ""
        if self.alive is None:
            self.alive = cluster.alive(self.actor)
            return ""
        is_over, why = self.alive()
        if is_over:
            self.alive = None
        return why


class GivenUpIslands:
    """The islands of one run that do not report; only the keeper's thread calls `note`."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._silent: dict[Island, SilentIsland] = {}

    def note(self, islands: Islands) -> None:
        """Note at each look which islands have devices and no process.

        Each counts as a process that has ended, so an island that can never start is set aside.
        """
        before, self._silent = self._silent, {}
        for island, it in islands.all().items():
            is_silent = it.holding.hold is Hold.RUNNING and it.holding.learner in SILENT
            if it.actor is None or not is_silent:
                continue
            known = before.get(island)
            if known is None or known.actor is not it.actor:
                known = SilentIsland(it.actor)
            self._silent[island] = known
            if not (why := known.given_up(self._cluster)):
                continue
            log.warning("%s: %s: %s", island, WHY, why)
            it.begins()
            it.last_words = why
            actor, it.actor = it.actor, None
            self._cluster.end(actor)  # otherwise its name is taken
            islands.move(island, Hold.PLACED, WHY)
