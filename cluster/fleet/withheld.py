"""The islands that the queue of the cluster has a run do without, and the run's report to it.

The queue repeats its word at each look. A run whose queue is silent takes its islands back, so that
a queue that is gone holds up no run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from cluster.config.schema import Config
from cluster.fleet.island_table import HeldIsland
from cluster.fleet.queue_message import HeldSeat, is_takeable
from cluster.fleet.reconcile import Hold, Notice
from cluster.names import group_name
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
VALID_S = 60.0
"""Seconds for which a word of the queue holds; it is repeated every two."""


class WithheldIslands:
    """The islands that one run does without; every method may be called from any thread."""

    def __init__(self, config: Config) -> None:
        self._takeable = {group.group for group in config.islands if is_takeable(config, group)}
        self._drain_s = config.faults.policy.drain_s
        self._lock = threading.Lock()
        self._withheld: dict[Island, Notice] = {}
        self._told_s: float | None = None
        self._islands: Mapping[Island, HeldSeat | None] = dict.fromkeys(config.island_names)

    def tell(self, islands: Mapping[Island, str], now_s: float) -> None:
        """Have the run do without these islands, each for this reason, and with all others.

        Islands that must not be taken are ignored.
        """
        with self._lock:
            self._note(islands, now_s)

    def report(self) -> tuple[Mapping[Island, HeldSeat | None], dict[Island, str]]:
        """Return the islands that the run holds or wants, and why it does without some of them."""
        with self._lock:
            return self._islands, {island: it.why for island, it in self._withheld.items()}

    @property
    def reasons(self) -> dict[Island, str]:
        """The islands that the run does without, each with the reason."""
        with self._lock:
            return {island: it.why for island, it in self._withheld.items()}

    # --- called by the keeper ---------------------------------------------------------------------

    def restore(self, islands: Mapping[Island, str], now_s: float) -> None:
        """Do without the islands that an earlier process of the fleet has written down.

        They come back if the queue is silent. Nothing changes if it has called this process before.
        """
        with self._lock:
            if self._told_s is None:
                self._note(islands, now_s)

    def notices(self, now_s: float) -> dict[Island, Notice]:
        """Return the islands to do without, as notices to leave."""
        with self._lock:
            silent_s = 0.0 if self._told_s is None else now_s - self._told_s
            if self._withheld and silent_s > VALID_S:
                log.warning(
                    "the queue of the cluster is silent for %.0f s: %s may come back",
                    silent_s,
                    ", ".join(sorted(self._withheld)),
                )
                self._withheld = {}
            return dict(self._withheld)

    def publish(self, desired: Collection[Island], held: Mapping[Island, HeldIsland]) -> None:
        """Publish which islands the run holds or wants, for the queue."""
        islands: dict[Island, HeldSeat | None] = dict.fromkeys(desired)
        for island, it in held.items():
            if it.holding.hold is Hold.ASIDE:
                islands.pop(island, None)  # it waits for a person, not for machines
            else:
                islands[island] = HeldSeat(it.seat, it.holding.hold is not Hold.WAITING)
        with self._lock:
            self._islands = islands

    def close(self) -> None:
        """Note that the run is over: it wants and holds nothing."""
        with self._lock:
            self._islands, self._withheld = {}, {}

    # --- helpers, called with the lock held -------------------------------------------------------

    def _note(self, islands: Mapping[Island, str], now_s: float) -> None:
        self._told_s = now_s
        self._withheld = {
            island: self._withheld.get(island) or Notice(why, now_s + self._drain_s)
            for island, why in islands.items()
            if group_name(island) in self._takeable
        }
