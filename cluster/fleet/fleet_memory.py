"""The memory of the fleet: what a process that comes after this one must know, in `fleet.json`.

The keeper alone writes it. Once it says how the run ended it is never written again, so that no
later word can take an ended run up again, or spoil the memory of the next owner.
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from cluster.fleet.island_table import Islands
from cluster.fleet.outcome import Outcome
from cluster.fleet.requests import Wanted
from cluster.storage import fleet_file
from cluster.storage.depot import Depot

log = logging.getLogger("archipelago.fleet")


class Memory:
    """The memory of one run's fleet, in its depot."""

    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self._over = False
        self.trouble: str | None = None
        """Why the last attempt to write failed; None if it did not."""

    def keep(
        self,
        islands: Islands,
        wanted: Wanted,
        faults: list[int],
        began: float,
        outcome: Outcome | None = None,
    ) -> None:
        """Write it down; for the last time if there is an outcome.

        `faults`: of the plan, that have happened. `began`: in seconds since 1970. If writing fails
        the run goes on: only a fleet that died now would not know.
        """
        if self._over:
            return
        self._over = outcome is not None
        kept = fleet_file.FleetMemory(
            desired=sorted(wanted.desired),
            held={island: it.seat for island, it in islands.all().items()},
            spares=islands.spares.seats,
            stopping=wanted.stopping,
            faults=faults,
            began=began,
            outcome=None if outcome is None else asdict(outcome),
        )
        try:
            fleet_file.save_fleet_memory(self._depot, kept)
            self.trouble = None
        except OSError as error:
            if self.trouble is None:
                log.error("what the fleet must remember could not be written: %s", error)
            self.trouble = f"fleet.json cannot be written to {self._depot}: {error}"
