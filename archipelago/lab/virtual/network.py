"""The network between the islands' processes and the syncer, in virtual time.

It also starts and ends processes, like the supervisor that watches over them. A subclass decides
how long a message takes, and which messages are lost.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic

from archipelago.lab.virtual.event_loop import settle
from archipelago.lab.virtual.site import C, N, VirtualSite
from cluster.syncer.shell import Syncer
from coordinator.protocol import Adopted, Join, LeaseWanted, Life, Report, Vitals

NOTICED_S = 0.5
"""Seconds from the end of a process until its death is detected."""

Call = Callable[[Syncer], Any]
"""A message to the syncer, which returns its answer."""


class VirtualNetwork(ABC, Generic[C, N]):
    """The network that carries messages between processes and syncer; every process's link.

    Attributes:
        watched: The future of each life that is watched, done when the life is over.
    """

    timeout_s: ClassVar[float]
    """Seconds after which an unanswered call has failed."""
    resends: ClassVar[bool]
    """Whether each lost message to a learner is sent again, until it arrives."""

    def __init__(self, site: VirtualSite[N]) -> None:
        self.site, self.loop, self.places = site, site.loop, site.places
        self.watched: dict[Life, asyncio.Future[str]] = {}

    # --- what depends on the kind of network ------------------------------------------------------

    @abstractmethod
    def process_at(self, place: N, seed: str) -> C:
        """Return a new process for a place."""

    @abstractmethod
    def delay_s(self, place: N) -> float:
        """Return the delay of one message, one way."""

    @abstractmethod
    def lost(self, place: N, cut_s: float) -> bool:
        """Return whether a message is lost; `cut_s` is the end of the cut in its direction."""

    def received(self, place: N, call: Call) -> None:
        """Note that a message has reached the syncer; it might arrive again."""

    @abstractmethod
    def whole(self, process: C) -> None:
        """Fetch all public fragments for a process."""

    @abstractmethod
    def ended(self, process: C, life: Life) -> None:
        """Notify the watchers of a life that it is over."""

    @abstractmethod
    def left(self, process: C) -> None:
        """Decide what becomes of a drained island that has left."""

    # --- processes --------------------------------------------------------------------------------

    def start(self, place: N) -> None:
        """Start a process at a place without a live one, unless its island is retired."""
        old = place.process
        if place.retired:
            return
        if old is not None and not old.dead and not old.let_go:
            return
        place.started += 1
        seed = f"{self.site.seed}/{place.island}/{place.started}"
        place.process = process = self.process_at(place, seed)
        process.begin()

    def crash(self, place: N, process: C, after_s: float = NOTICED_S) -> None:
        """Kill a process; this is noticed `after_s` later."""
        known_s = self.loop.now_s + after_s
        process.dead = True
        for waiter in process.waiters:
            self.loop.at(known_s, settle, waiter, None)
        if place.process is process:
            place.process = None
        for life, waiter in self.watched.items():
            if life.island == process.island:
                self.loop.at(known_s, settle, waiter, "its process ended")

    def notify(self, life: Life, after_s: float, why: str) -> None:
        """Notify the watchers of a life, and of earlier ones of its island, that it is over."""
        for other, waiter in self.watched.items():
            if other.island == life.island and other.incarnation <= life.incarnation:
                self.loop.at(self.loop.now_s + after_s, settle, waiter, why)

    # --- messages ---------------------------------------------------------------------------------

    def call(
        self,
        process: C,
        call: Call,
        reply: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        """Send a message to the syncer, then call `reply` with its answer, or `failed`."""
        place = self.places[process.island]
        if self.lost(place, place.up_cut_s):
            self._times_out(process, failed)
            return
        arrives_s = self.loop.now_s + self.delay_s(place)
        self.loop.at(arrives_s, self._arrives, process, place, call, reply, failed)

    def _arrives(
        self,
        process: C,
        place: N,
        call: Call,
        reply: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        if self.site.syncer is None:
            self._times_out(process, failed)
            return
        answer = call(self.site.syncer)
        self.received(place, call)
        if self.lost(place, place.down_cut_s):
            self._times_out(process, failed)
            return
        self.loop.at(self.loop.now_s + self.delay_s(place), process.reached, reply, answer)

    def _times_out(self, process: C, failed: Callable[[], None]) -> None:
        self.loop.at(self.loop.now_s + self.timeout_s, process.reached, failed)

    async def reach(self, life: Life, *, again: bool = False) -> C | None:
        """Return the process at this life's place, once a message arrives; None if there is none.

        With `again` a lost message is sent again until it arrives.
        """
        if (place := self.places.get(life.island)) is None:
            return None
        while self.lost(place, place.down_cut_s):
            await self.loop.pause(self.timeout_s)
            if not (again or self.resends):
                return None
        await self.loop.pause(self.delay_s(place))
        process = place.process
        while process is not None and self.loop.now_s < process.frozen_s:
            await self.loop.pause(process.frozen_s - self.loop.now_s)
            process = place.process
        return process

    # --- messages of a process --------------------------------------------------------------------

    def join(self, process: C, event: Join) -> None:
        """Send a join, and try again if no answer comes."""

        def retry() -> None:
            if not process.let_go:
                process.begin()

        self.call(process, lambda syncer: syncer.join(event), process.granted, retry)

    def report(self, process: C, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        life = event.life
        self.call(
            process,
            lambda syncer: syncer.report(event, vitals, adopted),
            lambda answer: process.answered(life, answer),
            lambda: process.unanswered(life),
        )

    def lease(self, process: C, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        life = event.life
        self.call(
            process,
            lambda syncer: syncer.lease(event),
            lambda answer: process.answered(life, answer),
            lambda: process.unanswered(life),
        )
