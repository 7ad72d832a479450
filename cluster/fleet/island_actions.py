"""The actions of the keeper: it carries out the decisions of `reconcile` about an island."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster
from cluster.fleet.core_actors import CoreActors
from cluster.fleet.island_table import HeldIsland, Islands
from cluster.fleet.placement import wish
from cluster.fleet.reconcile import Action, ActionKind, Hold, Holding
from cluster.names import free_seat
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
CHECK_LOOKS = 10
"""Looks between two questions to Ray about an island that does not report; two a second."""
SILENT = ("starting", "lost")
"""The states of a learner whose process may not exist."""


class IslandActions:
    """The executor of one run's actions, on the thread of its keeper."""

    def __init__(
        self,
        config: Config,
        cluster: RayCluster,
        islands: Islands,
        core: CoreActors,
        keep: Callable[[], None],
    ) -> None:
        """Create the actions. `keep` writes down which islands hold devices, and where."""
        self._config, self._cluster, self._islands = config, cluster, islands
        self._core, self._keep = core, keep

    def restart_given_up(self) -> None:
        """Start islands again whose actors Ray has given up before they could report.

        Each counts as a process that has ended, so an island that can never start is set aside.
        """
        for island, it in self._islands.all().items():
            if it.holding.hold is not Hold.RUNNING or it.holding.learner not in SILENT:
                it.unheard_looks, it.alive = 0, None
                continue
            it.unheard_looks += 1
            if it.actor is None or it.unheard_looks % CHECK_LOOKS:
                continue
            if it.alive is None:
                it.alive = self._cluster.alive(it.actor)
                continue
            is_over, why = it.alive()
            if is_over:
                it.alive = None
            if why:
                self._start_again(island, it, why)

    def _start_again(self, island: Island, it: HeldIsland, why: str) -> None:
        log.warning("Ray has given %s up, it is started again: %s", island, why)
        it.last_words = why
        it.begins()
        assert it.actor is not None
        assert it.place is not None
        self._cluster.end(it.actor)  # otherwise its name is taken
        it.actor = self._cluster.start_island(group_of(self._config, island), it.seat, it.place)

    def do(self, action: Action, now_s: float) -> None:
        """Carry out an action, if its island is still as it was when the action was decided.

        Errors: `RunFailed` if an island is set aside and the run is configured to stop then.
        """
        island, islands = action.island, self._islands
        if islands.holdings().get(island) != action.holding:
            log.info("%s %s is skipped: the island has changed since", action.kind, island)
            return
        log.info("%s %s: %s", action.kind, island, action.why)
        match action.kind:
            case ActionKind.PLACE:
                group = group_of(self._config, island)
                seat = free_seat(group.group, islands.taken(), island)
                place = self._cluster.reserve(group, seat)
                since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
                why = f"waits for {wish(group)} since {since}"
                holding = Holding(island, Hold.WAITING, now_s)
                islands.put(island, HeldIsland(holding, seat, place, why=why))
                self._keep()
            case ActionKind.START:
                it = islands[island]
                assert it.place is not None
                group = group_of(self._config, island)
                it.actor = self._cluster.start_island(group, it.seat, it.place)
                islands.move(island, Hold.RUNNING, action.why)
            case ActionKind.DRAIN:
                self._core.drain(island, action.why)
                islands.move(island, Hold.DRAINING, action.why)
            case ActionKind.GIVE_BACK:
                islands.free(islands[island])
                islands.remove(island)
                self._keep()
            case ActionKind.SET_ASIDE:
                it = islands[island]
                islands.free(it)
                islands.move(island, Hold.ASIDE, action.why)
                if self._config.faults.policy.then == "stop":
                    raise it.given_up()
