"""The takeover of a run by a process of the fleet: what an earlier process has left is read.

A run that is running needs its fleet, so a depot that does not answer is waited for. A `fleet.json`
that is damaged or missing does not end such a run either: the seats of islands have names, so their
actors and devices can be looked up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster
from cluster.fleet.depot_reads import DepotReads
from cluster.fleet.island_table import Islands
from cluster.names import SYNCER, Seat, group_name, spare_group
from cluster.storage import ownership
from cluster.storage.depot import Depot
from cluster.storage.fleet_file import FLEET_FILE, FleetMemory, load_fleet_memory
from cluster.storage.format import Damaged
from cluster.storage.layout import has_layout, mended_layout
from cluster.storage.ownership import Owner, Ownership
from coordinator.fragments import Layout
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
ASIDE = f"{FLEET_FILE}.damaged"
"""The name that a damaged file gets."""


class Takeover:
    """The takeover of one run; only the keeper's thread calls it."""

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        depot: Depot,
        cluster: RayCluster,
        islands: Islands,
        publish: Callable[[], None],
    ) -> None:
        """Read nothing yet; `publish` is called whenever the depot stops or begins to answer."""
        self._config, self._run, self._depot = config, run_dir.name, depot
        self._cluster, self._islands = cluster, islands
        self._reads = DepotReads(publish)
        self._lost: str | None = None
        self._unsought = False  # islands of an earlier process may be there

    @property
    def troubles(self) -> tuple[str | None, str | None]:
        """The reasons why the depot cannot be read, and why the memory was made again."""
        return self._reads.trouble, self._lost

    def begin(self) -> bool:
        """Return whether the run is running; from here on such a run is waited for."""
        self._reads.endless = self._cluster.find(SYNCER) is not None
        return self._reads.endless

    def take(self, identity: Owner) -> Ownership:
        """Take the ownership of the run.

        Errors: the errors of `ownership.take`; `OSError` only if the run is not running.
        """
        own = self._reads.read(lambda: ownership.take(self._depot, self._run, identity))
        self._unsought = self._reads.endless or own.life > 1
        return own

    def memory(self) -> FleetMemory | None:
        """Return the memory of the fleet; None if no fleet has begun.

        Errors: `OSError` or `Damaged`, only if the run is not running.
        """
        return self._reads.read(self._memory)

    def layout(self) -> Layout:
        """Return the layout of the run, and mend its files.

        Errors: the errors of `mended_layout`; `OSError` only if the run is not running.
        """
        return self._reads.read(lambda: mended_layout(self._depot))

    def find(self, kept: FleetMemory) -> None:
        """Find the islands and spares that are still there: those of a memory, and others by name.

        An earlier process may have ended before it could write down its last ones.
        """
        kept = with_unlisted(kept, self._config, self._cluster.seats())
        self._islands.find(kept["held"], kept["spares"], time.monotonic())
        self._unsought = False

    def find_unsought(self) -> None:
        """Find the islands of an earlier process, if `find` was never called: they are to end."""
        if self._unsought:
            self.find(self._rebuilt())

    def _memory(self) -> FleetMemory | None:
        running = self._reads.endless
        try:
            kept = load_fleet_memory(self._depot)
            if kept is not None:
                self._depot.tidy(FLEET_FILE)
            if kept is not None or not running or not has_layout(self._depot):
                return kept
            why = f"{FLEET_FILE} is not in {self._depot}"
        except Damaged as error:
            if not running:
                raise
            log.error("%s", error)
            why = f"{FLEET_FILE} was damaged and is {ASIDE} now"
            self._depot.move(FLEET_FILE, ASIDE)
        kept = self._rebuilt()
        self._lost = (
            f"{why}: the fleet continues with {len(kept['desired'])} islands, those of the "
            "configuration and others that it has found; repeat a scale, a drain or a stop that "
            "was requested before; planned faults are not injected any more"
        )
        log.error("%s", self._lost)
        return kept

    def _rebuilt(self) -> FleetMemory:
        return memory_of(self._config, self._cluster.seats(), time.time())


def with_unlisted(kept: FleetMemory, config: Config, seats: Iterable[Seat]) -> FleetMemory:
    """Return a memory with those of the seats that it lacks.

    An island that the memory has keeps its seat there; a further seat of its own is then a spare.
    Islands that were not requested are not wanted, so they hand in their work and leave.
    """
    listed = {*kept["held"].values(), *kept["spares"]}
    others = memory_of(config, [seat for seat in seats if seat not in listed], kept["began"])
    for island, seat in [*others["held"].items()]:
        if island in kept["held"]:
            del others["held"][island]
            others["spares"][seat] = group_name(island)
    if others["held"] or others["spares"]:
        log.warning("not in %s: %s", FLEET_FILE, [*others["held"].values(), *others["spares"]])
    held, spares = kept["held"] | others["held"], kept["spares"] | others["spares"]
    return FleetMemory({**kept, "held": held, "spares": spares})


def memory_of(config: Config, seats: Iterable[Seat], began: float) -> FleetMemory:
    """Return a memory of a run of which only the seats are known.

    An island is wanted if it is in the configuration, or if its own seat is there. Each island is
    assumed at its own seat, and seats that began as spares are spares. An island that runs at such
    a seat moves back: its own seat joins under its name. All planned faults count as injected.

    `began`: the time when the run began, in seconds since 1970.
    """
    groups = {group.group for group in config.islands}
    held, spares = dict[Island, Seat](), dict[Seat, str]()
    for seat in seats:
        group, island = spare_group(seat), Island(seat)
        if group in groups:
            spares[seat] = group
        elif group_name(island) in groups:
            held[island] = seat
    return FleetMemory(
        desired=sorted({*config.island_names, *held}),
        held=held,
        spares=spares,
        withheld={},
        stopping=None,
        faults=[*range(len(config.faults.plan))],
        began=began,
        outcome=None,
    )
