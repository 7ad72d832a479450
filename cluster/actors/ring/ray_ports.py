"""A conductor's access to the islands of its rings and to their meeting points, over Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from cluster.actors.directory import Directory
from cluster.allreduce.ports import RingPorts, StateUnavailable
from cluster.allreduce.rendezvous import Meetings
from cluster.allreduce.saved_state import RingState
from cluster.failures import in_short, origin_of
from cluster.names import Seat, island_actor, seat_of
from coordinator.protocol import Island, Life

T = TypeVar("T")


class RayRingPorts(RingPorts):
    """Access to islands as Ray actors, and to meeting points as processes of this node."""

    def __init__(
        self,
        namespace: str,
        meetings: Callable[[], Meetings] = Meetings,
        host: Callable[[], str] = ray.util.get_node_ip_address,
    ) -> None:
        """Reach islands in a namespace.

        `meetings`: makes the meeting points, on another thread. `host`: returns the address of this
        node for other nodes.
        """
        self._actors, self._new_meetings, self._host = Directory(namespace), meetings, host
        self._thread = ThreadPoolExecutor(1, "meetings")  # in the order of the rings
        self._meetings: Meetings | None = None
        self._met = 0
        self.seats: dict[Island, Seat] = {}  # of islands that this process has admitted

    def seat(self, island: Island) -> Seat:
        """Return an island's seat, even if an earlier process of the conductor admitted it."""
        return self.seats.get(island, seat_of(island))

    async def prepare(self) -> None:
        """Start the process of the first meeting point."""

        def prepare() -> None:
            if self._meetings is None:
                self._meetings = self._new_meetings()

        await self._on_thread(prepare)

    async def meet(self, ring: int, members: int) -> str:
        """Close the previous ring's meeting point, open this ring's, and return its address."""

        def meet() -> str:
            assert self._meetings is not None, "prepare comes first"
            self._met = ring
            return self._meetings.next(self._host(), members)

        return await self._on_thread(meet)

    async def part(self, ring: int) -> None:
        """Close the meeting point of this ring, if it is open."""

        def part() -> None:
            if self._meetings is not None and self._met == ring:
                self._meetings.end_ring()

        await self._on_thread(part)

    async def _on_thread(self, call: Callable[[], T]) -> T:
        """Call on the thread of the meeting points."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def watch(self, life: Life) -> str:
        """Return the reason when the life is over, as its island or Ray reports it."""
        name = island_actor(self.seat(life.island))
        try:
            actor = await self._actors.reach(name)
            return await actor.watch.remote(life)
        except RayTaskError as error:
            return in_short(f"it cannot be watched: {origin_of(error)!r}")
        except RayError as error:
            self._actors.forget(name)
            return f"its process ended ({type(error).__name__})"

    async def pause(self, life: Life, ring: int) -> None:
        """Have a member leave this ring after the step under way."""
        await self._tell(life, "pause", ring)

    async def end(self, life: Life) -> None:
        """Kill the process of this life."""
        await self._tell(life, "kill")

    async def _tell(self, life: Life, method: str, *arguments: object) -> None:
        """Send a message to an island; only log a failure."""
        try:
            actor = await self._actors.find(island_actor(self.seat(life.island)))
            await getattr(actor, method).remote(*arguments)
        except RayError as error:  # the watch of the island reports its end
            logging.info("%s did not receive %r: %s", life, method, type(error).__name__)

    async def state_of(self, life: Life) -> RingState | StateUnavailable:
        """Return an island's whole training state, or why it is unavailable."""
        name = island_actor(self.seat(life.island))
        try:
            actor = await self._actors.find(name)
            state: RingState | None = await actor.state_of.remote(life)
        except RayError as error:
            self._actors.forget(name)
            origin = origin_of(error)
            dead = isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
            why = in_short(f"{type(origin).__name__}: {origin}")
            return StateUnavailable(why, again=not dead)
        return StateUnavailable("it has none", again=False) if state is None else state

    async def peek(self, life: Life) -> RingState | None:
        """Return this life's parameters at its next step boundary, without moments.

        Return None if the island cannot be reached, or if that takes too long.
        """
        try:
            actor = await self._actors.find(island_actor(self.seat(life.island)))
            return await actor.peek.remote()
        except RayError as error:
            logging.info("%s does not show its model: %s", life, type(error).__name__)
            return None

    async def close(self) -> None:
        """End the processes of the meeting points."""

        def close() -> None:
            if self._meetings is not None:
                self._meetings.close()

        await self._on_thread(close)
