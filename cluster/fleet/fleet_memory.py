"""The memory of the fleet for the processes after this one, in `fleet.json`.

The keeper alone writes it. Once it has the outcome of the run it is never written again, so that no
late write can revive an ended run, or spoil the memory of the next owner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict

from cluster.fleet.fault_injection import Injection
from cluster.fleet.island_table import Islands
from cluster.fleet.outcome import Outcome
from cluster.fleet.requests import DesiredState, Requests
from cluster.storage import fleet_file
from cluster.storage.depot import Depot
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
RETRY_S = 30.0
"""Seconds from a write that failed to the next attempt, unless there is more to write sooner."""


class FleetMemoryWriter:
    """The writer of one fleet's memory to the depot of its run."""

    def __init__(
        self, depot: Depot, islands: Islands, requests: Requests, injection: Injection
    ) -> None:
        self._depot, self._islands = depot, islands
        self._requests, self._injection = requests, injection
        self._written: tuple[DesiredState, Mapping[Island, str]] | None = None
        self._over = False
        self._tried_s = 0.0  # the end of the last attempt
        self.trouble: str | None = None
        """The reason why the last write failed; None if it did not."""

    @property
    def is_current(self) -> bool:
        """Whether the present requests are written, or writing them was tried in `RETRY_S`.

        The islands that the queue withholds are among them.
        """
        is_due = self.trouble is not None and time.monotonic() - self._tried_s >= RETRY_S
        present = self._requests.wanted, self._requests.withheld.reasons
        return present == self._written and not is_due

    def write(self, began: float, outcome: Outcome | None = None) -> None:
        """Write the memory, and note that the requests are written down.

        `began`: seconds since 1970. `outcome`: how the run ended; then this is the last write.
        """
        wanted, withheld = self._requests.wanted, self._requests.withheld.reasons
        if not self._over:
            self._write(wanted, withheld, began, outcome)
        self._written = wanted, withheld
        self._requests.kept(wanted)

    def _write(
        self,
        wanted: DesiredState,
        withheld: Mapping[Island, str],
        began: float,
        outcome: Outcome | None,
    ) -> None:
        """Write the memory.

        If that fails the run continues: the memory is needed only if the fleet dies now.
        """
        self._over = outcome is not None
        kept = fleet_file.FleetMemory(
            desired=sorted(wanted.desired),
            held={island: it.seat for island, it in self._islands.all().items()},
            spares=self._islands.spares.seats,
            withheld=dict(withheld),
            stopping=wanted.stopping,
            faults=self._injection.done,
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
        self._tried_s = time.monotonic()
