"""Protocols of what the fleet needs of a Ray cluster; `ray_backend` implements them.

Handles of actors are opaque here. A call is answered, or raises `Unavailable` for a while, or an
`ArchipelagoError` for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cluster.config.schema import IslandGroup, Machines
from cluster.fleet.evaluation import Evaluating, Pending
from cluster.fleet.placement import Node
from cluster.names import Seat

Handle = Any
"""A handle of an actor; Ray gives it no type."""
AliveCheck = Callable[[], tuple[bool, str]]
"""The state of a requested sign of life: whether it is over, and why Ray has given the actor up.

The reason is empty if the actor has answered, or may come back. Ray gives an actor up if it cannot
prepare a process for it: a package that cannot be unpacked, an import that fails.
"""


class Unavailable(Exception):
    """An actor is being restarted, or there is no room for its answer: retry later."""


class StorageSilent(Unavailable):
    """An actor that cannot recover yet, because its storage does not answer: retry later."""


class Place(Protocol):
    """The devices that an island, a spare or the evaluator has asked for."""

    def ready(self) -> bool:
        """Return whether the devices are there."""
        ...

    def give_back(self) -> None:
        """Return the devices."""
        ...

    def nodes(self) -> Sequence[str]:
        """Return Ray's ids of the nodes that the devices are on; empty if they are not there."""
        ...


class RayCluster(Protocol):
    """The cluster of a run, and the run's actors in it."""

    def nodes(self) -> list[Node]:
        """Return the living nodes."""
        ...

    def here(self) -> str:
        """Return the id of this process's node."""
        ...

    def address(self) -> str:
        """Return the address of the cluster's head."""
        ...

    def draining(self) -> Mapping[str, float | None]:
        """Return Ray's ids of the nodes that are draining, with the seconds that are left to each.

        None: there is no deadline. The answer may be a second old, and never blocks.
        """
        ...

    def drain_node(self, node: str, why: str, left_s: float) -> bool:
        """Return whether Ray places nothing more on this node, which is gone in `left_s` seconds.

        This asks Ray for it and never blocks: call it until Ray accepts.
        """
        ...

    def reserve(self, machines: Machines, seat: Seat) -> Place:
        """Ask for the devices of an island, a spare or the evaluator, without waiting for them."""
        ...

    def reserved(self, seat: Seat) -> Place | None:
        """Return the devices that an earlier process of the fleet has asked for; None if none."""
        ...

    def start_island(self, group: IslandGroup, seat: Seat, place: Place) -> Handle:
        """Start a process of this group on these devices."""
        ...

    def start_evaluator(self, place: Place | None) -> Handle:
        """Start the evaluator on this place; None: at the fleet, or wherever there is room."""
        ...

    def start_region_evaluator(self, region: str) -> Handle:
        """Start the evaluator of a region on a node of it, or find it; it takes no device."""
        ...

    def start_shard(self, name: str, node: str | None, owner: int) -> Handle:
        """Start a shard on this node, or at the fleet if that is None.

        `owner`: the number of the run's owner.
        """
        ...

    def start_syncer(self, owner: int) -> Handle:
        """Start the syncer; `owner`: the number of the run's owner."""
        ...

    def find(self, name: str) -> Handle | None:
        """Return the actor with this name; None if there is none."""
        ...

    def find_island(self, seat: Seat) -> Handle | None:
        """Return the actor of the island or spare at this seat; None if there is none."""
        ...

    def seats(self) -> Sequence[Seat]:
        """Return the seats of islands and spares whose actor or devices are there."""
        ...

    def end(self, actor: Handle) -> None:
        """End the actor's process for good."""
        ...

    def restart(self, actor: Handle) -> None:
        """Kill the actor's process; Ray starts another one in its place."""
        ...

    def ask(
        self, actor: Handle, method: str, *arguments: object, meanwhile: Callable[[], None]
    ) -> Any:
        """Return the actor's answer, however long that takes.

        `meanwhile` is called repeatedly while there is no answer; an exception of it ends the wait.

        Errors: the actor's own; `RunFailed` if it has died for good; `Unavailable`, which is
        `StorageSilent` if it waits for its storage.
        """
        ...

    def sign(self, actor: Handle) -> Pending:
        """Request a sign of life with the actor's progress, without waiting for it."""
        ...

    def alive(self, actor: Handle) -> AliveCheck:
        """Request a sign of life, without waiting; see `AliveCheck`."""
        ...

    def promise(self, actor: Handle, method: str, *arguments: object) -> object:
        """Return a reference to the actor's answer, for another actor that fetches it directly."""
        ...

    def tell(self, actor: Handle, method: str, *arguments: object) -> None:
        """Call the actor, and do not wait."""
        ...

    def tell_all(self, actors: Sequence[Handle], method: str, within_s: float) -> None:
        """Call all of these actors, and wait at most `within_s` for their answers."""
        ...

    def evaluating(self, evaluator: Handle) -> Evaluating:
        """Return an adapter with which an `EvaluationSchedule` calls the evaluator."""
        ...
