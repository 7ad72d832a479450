"""Warm spares (hot standby): processes that have imported, read and compiled, on their own devices.

A spare that takes an island over swaps places with the island's process. That process is restarted
by Ray, or wakes up, and is the spare from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from cluster.config.schema import Config
from cluster.fleet.backend import Handle, Place, RayCluster
from cluster.fleet.clean_up import each_step
from cluster.names import Seat, free_seat

log = logging.getLogger("archipelago.fleet")

FRESH_S = 2.0
"""Seconds without a heartbeat after which a spare may be dead itself."""


@dataclass(slots=True)
class Spare:
    """One seat without an island."""

    seat: Seat
    group: str
    heard_s: float
    """The time of its last message, or of its creation, in seconds of the monotonic clock."""
    place: Place
    actor: Handle | None = None
    starts: int = 0
    """Processes that have begun there since one was warm."""
    warm: bool = False
    """Whether its present process has reported that it can run an island at once."""


class Spares:
    """All spares of a run, by seat; only the keeper's thread calls these methods."""

    def __init__(self, config: Config, cluster: RayCluster) -> None:
        self._config, self._cluster, self._policy = config, cluster, config.faults.policy
        self._there: dict[Seat, Spare] = {}

    @property
    def seats(self) -> dict[Seat, str]:
        """Every spare's seat, with its group."""
        return {seat: spare.group for seat, spare in self._there.items()}

    @property
    def starts(self) -> dict[Seat, int]:
        """Processes that have begun at each spare's seat since one was warm."""
        return {seat: spare.starts for seat, spare in self._there.items()}

    @property
    def places(self) -> dict[Seat, Place]:
        """The devices of each spare that has some."""
        return {seat: it.place for seat, it in self._there.items() if it.place.ready()}

    def warm(self, now_s: float) -> dict[str, list[Seat]]:
        """Return the seats of the spares that could take an island over now, by group."""
        found: dict[str, list[Seat]] = {}
        for spare in self._there.values():
            if spare.warm and now_s - spare.heard_s <= FRESH_S:
                found.setdefault(spare.group, []).append(spare.seat)
        return found

    def starting(self, seat: Seat, now_s: float) -> None:
        """Count a process that begins at this seat."""
        if (spare := self._there.get(seat)) is not None:
            spare.starts, spare.warm, spare.heard_s = spare.starts + 1, False, now_s

    def heard(self, seat: Seat, now_s: float, *, warm: bool) -> None:
        """Note the heartbeat of a spare."""
        if (spare := self._there.get(seat)) is not None:
            spare.heard_s, spare.warm = now_s, warm
            spare.starts = 1 if warm else spare.starts

    def take(self, seat: Seat) -> Spare:
        """Remove a spare, which becomes an island, and return it."""
        return self._there.pop(seat)

    def add(self, spare: Spare) -> None:
        """Add a spare."""
        self._there[spare.seat] = spare

    def find(self, seats: Mapping[Seat, str], now_s: float) -> None:
        """Take over the spares that an earlier process of the fleet has started, if still there."""
        for seat, group in seats.items():
            place, actor = self._cluster.reserved(seat), self._cluster.find_island(seat)
            if place is not None:
                self.add(Spare(seat, group, now_s, place, actor))

    def tend(self, taken: set[Seat], now_s: float) -> bool:
        """Keep as many spares as configured, each with a process; return whether the seats changed.

        A spare that is silent for too long is replaced.
        """
        before = {*self._there}
        for spare in [*self._there.values()]:
            if spare.actor is not None and now_s - spare.heard_s > self._policy.hang_s:
                log.warning("the spare %s is silent: replaced", spare.seat)
                self.give_back(spare)
        for group in self._config.islands:
            group_spares = [
                spare for spare in [*self._there.values()] if spare.group == group.group
            ]
            for spare in group_spares[group.spares :]:
                self.give_back(spare)
            for _ in range(group.spares - len(group_spares)):
                seat = free_seat(group.group, taken | self._there.keys())
                self.add(Spare(seat, group.group, now_s, self._cluster.reserve(group, seat)))
        for spare in [*self._there.values()]:
            if spare.actor is None and spare.place.ready():
                group = self._config.group(spare.group)
                spare.actor = self._cluster.start_island(group, spare.seat, spare.place)
                spare.heard_s = now_s
        return before != {*self._there}

    def vacate(self, seats: Collection[Seat]) -> None:
        """End the spares at these seats, which are preempted; `tend` starts others elsewhere."""
        for seat in seats:
            if (spare := self._there.get(seat)) is not None:
                log.warning("the spare %s is preempted", seat)
                self.give_back(spare)

    def give_back(self, spare: Spare) -> None:
        """End a spare's process, and return its devices."""
        del self._there[spare.seat]
        try:
            if spare.actor is not None:
                self._cluster.end(spare.actor)
        finally:
            spare.place.give_back()

    def give_all_back(self) -> None:
        """End the processes of all spares, and return their devices; log what fails."""
        each_step(*(partial(self.give_back, spare) for spare in self._there.values()))
