"""The actions of the keeper: it carries out the decisions of `reconcile` about an island."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster
from cluster.fleet.core_actors import CoreActors
from cluster.fleet.island_table import HeldIsland, Islands
from cluster.fleet.placement import wish
from cluster.fleet.reconcile import Action, ActionKind, Hold, Holding
from cluster.names import free_seat

log = logging.getLogger("archipelago.fleet")


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
        self._changed = False

    def do_all(self, actions: Iterable[Action], now_s: float) -> None:
        """Carry out actions, and write down once which islands then hold devices.

        If this process ends before, the next one finds the islands by name (`Takeover.find`).

        Errors: `RunFailed` if an island is set aside and the run is configured to stop then.
        """
        try:
            for action in actions:
                self.do(action, now_s)
        finally:
            if self._changed:
                self._changed = False
                self._keep()

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
                self._changed = True
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
                self._changed = True
            case ActionKind.SET_ASIDE:
                it = islands[island]
                islands.free(it)
                islands.move(island, Hold.ASIDE, action.why)
                if self._config.faults.policy.then == "stop":
                    raise it.given_up()
