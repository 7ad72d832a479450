"""Preemptions: which islands must leave, until when, and why.

Notices come from three sources:

- an island's process that was sent SIGTERM
- a host whose cloud announces that it will take the machine
- a node that Ray drains: a pod that is being deleted, the autoscaler, `ray drain-node`

The fault `preempt` gives the same notice on purpose.

An island with a notice is drained and placed again elsewhere. A drain that a person asks for
removes it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster
from cluster.fleet.inbox import IslandInbox, SeatNotice
from cluster.fleet.island_table import HeldIsland, Islands
from cluster.fleet.reconcile import Notice
from cluster.names import Seat
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
DRAINING = "preempted: its node is draining"
"""The reason of an island on a node that Ray drains; Ray does not pass on the reason of that."""


@dataclass(frozen=True, slots=True)
class NotedIsland:
    """A notice, and the devices and the process that it is about."""

    notice: Notice
    held: HeldIsland
    seat: Seat
    process: int | None
    """The number of the process; None: the notice is about its node, and so about later ones."""

    def is_over(self, held: HeldIsland | None) -> bool:
        """Return whether the island has other devices by now, or another process."""
        if held is None or held is not self.held or held.seat != self.seat:
            return True
        return self.process is not None and held.process != self.process


@dataclass(frozen=True, slots=True)
class RestingIsland:
    """An island that is not placed before a time, or before Ray drains the node that it leaves."""

    by_s: float
    """The time, in seconds of the monotonic clock."""
    node: str | None = None
    """Ray's id of that node; None: only the time counts."""


def deadlines(
    known: Mapping[str, float], draining: Mapping[str, float | None], now_s: float, drain_s: float
) -> dict[str, float]:
    """Return the time by which islands must have left each node that Ray drains.

    `known`: the result of the last look. `draining`: seconds that are left; None: Ray names no
    time. The first time that was seen counts, so that the limit does not move.
    """
    return {
        node: known.get(node, now_s + (drain_s if left_s is None else max(0.0, left_s)))
        for node, left_s in draining.items()
    }


class Preemptions:
    """The notices of one run; only the keeper's thread calls these methods."""

    def __init__(self, config: Config, cluster: RayCluster, inbox: IslandInbox) -> None:
        self._cluster, self._inbox = cluster, inbox
        self._drain_s = config.faults.policy.drain_s
        self._ignored = config.run.mode.sums_gradients
        self._noted: dict[Island, NotedIsland] = {}
        self._nodes: Mapping[str, float] = MappingProxyType({})
        self._to_drain: dict[str, SeatNotice] = {}  # nodes that Ray has not accepted to drain
        self._drained = set[str]()
        self._resting: dict[Island, RestingIsland] = {}

    def look(self, islands: Islands, now_s: float) -> dict[Island, Notice]:
        """Return the notice of each island that must leave; spares that must leave are ended.

        Modes that sum gradients ignore notices: their islands all hold the model, so the others
        continue without one that dies.
        """
        notices = self._inbox.take_notices()
        if self._ignored:
            return {}
        held = islands.all()
        self._noted = {
            island: each
            for island, each in self._noted.items()
            if not each.is_over(held.get(island))
        }
        for each in notices:
            self._hear(each, islands)
        self._drain_nodes(now_s)
        self._nodes = deadlines(self._nodes, self._cluster.draining(), now_s, self._drain_s)
        if self._nodes:
            self._leave_nodes(held, islands)
        return {island: each.notice for island, each in self._noted.items()}

    def resting(self, held: Collection[Island], now_s: float) -> frozenset[Island]:
        """Return islands without devices that are not placed again yet.

        Their cloud takes a node that Ray does not drain yet, or the node of the fleet itself, which
        Ray cannot drain, or a fault takes their machines for a while: they would be placed there
        again at once.
        """
        self._resting = {
            island: each
            for island, each in self._resting.items()
            if now_s < each.by_s and each.node not in self._drained
        }
        return frozenset(self._resting.keys() - {*held})

    def _hear(self, word: SeatNotice, islands: Islands) -> None:
        if word.island is None:
            islands.spares.vacate({word.seat})
        elif (it := islands.all().get(word.island)) is not None and it.seat == word.seat:
            process = it.process if word.node is None else None
            self._note(word.island, it, Notice(word.why, word.by_s), process)
        node = None if word.node == self._cluster.here() else word.node
        if node is not None and node not in self._drained:
            self._to_drain.setdefault(node, word)
        if (word.node is not None or word.stays_away) and word.island is not None:
            self._resting[word.island] = RestingIsland(word.by_s, node)

    def _drain_nodes(self, now_s: float) -> None:
        """Ask Ray to drain nodes, at each look until it accepts or the node is gone."""
        for node, word in [*self._to_drain.items()]:
            if self._cluster.drain_node(node, word.why, max(0.0, word.by_s - now_s)):
                self._drained.add(node)
            elif now_s < word.by_s:
                continue
            else:
                log.error("Ray has not drained the node %s in time (%s)", node, word.why)
            del self._to_drain[node]

    def _leave_nodes(self, held: Mapping[Island, HeldIsland], islands: Islands) -> None:
        for island, it in held.items():
            if it.place is None or island in self._noted:
                continue
            if found := [self._nodes[node] for node in it.place.nodes() if node in self._nodes]:
                self._note(island, it, Notice(DRAINING, min(found)), None)
        islands.spares.vacate(
            {
                seat
                for seat, place in islands.spares.places.items()
                if any(node in self._nodes for node in place.nodes())
            }
        )

    def _note(self, island: Island, it: HeldIsland, notice: Notice, process: int | None) -> None:
        if island not in self._noted:
            log.warning("%s must leave: %s", island, notice.why)
            self._noted[island] = NotedIsland(notice, it, it.seat, process)
