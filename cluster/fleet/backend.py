"""What the fleet needs of a Ray cluster, as protocols: `ray_backend` is the real one.

Handles of actors are opaque here. A call is answered, or raises `Unavailable` for a while, or
an `ArchipelagoError` for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cluster.config.schema import IslandGroup, Machines
from cluster.fleet.evaluation import Evaluating, Pending
from cluster.fleet.placement import Node
from cluster.names import Seat

Handle = Any
"""Of an actor: Ray gives it no type."""


class Unavailable(Exception):
    """An actor is being restarted, or there is no room for its answer: ask again later."""


class Place(Protocol):
    """The devices of one island or spare, or of the evaluator, asked for and perhaps not there
    yet."""

    def ready(self) -> bool: ...

    def give_back(self) -> None: ...


class RayCluster(Protocol):
    """The cluster that a run is in, and the run's actors in it."""

    def nodes(self) -> list[Node]:
        """The living nodes."""
        ...

    def here(self) -> str:
        """The id of this process's node."""
        ...

    def address(self) -> str:
        """Where the cluster's head is."""
        ...

    def reserve(self, machines: Machines, seat: Seat) -> Place:
        """Ask for the devices of one island, of a spare, or of the evaluator; returns at once."""
        ...

    def reserved(self, seat: Seat) -> Place | None:
        """The devices that an earlier life of the fleet has asked for; None if there are none."""
        ...

    def start_island(self, group: IslandGroup, seat: Seat, place: Place) -> Handle:
        """Start a process of this group on these devices."""
        ...

    def start_evaluator(self, place: Place | None) -> Handle:
        """`place`: where it shall be; None: where the fleet is, or wherever there is room."""
        ...

    def start_shard(self, name: str, node: str | None, owner: int) -> Handle:
        """`node`: where it shall be; None: where the fleet is. `owner`: whose the run is."""
        ...

    def start_syncer(self, owner: int) -> Handle: ...

    def find(self, name: str) -> Handle | None:
        """The actor of this name; None if it is not there."""
        ...

    def find_island(self, seat: Seat) -> Handle | None: ...

    def end(self, actor: Handle) -> None:
        """End its process for good."""
        ...

    def restart(self, actor: Handle) -> None:
        """Kill its process; Ray starts another one in its place."""
        ...

    def ask(
        self, actor: Handle, method: str, *arguments: object, meanwhile: Callable[[], None]
    ) -> Any:
        """Return what the actor answers, however long that takes.

        `meanwhile` is called again and again while there is no answer; what it raises ends the
        wait. Errors: what the actor refuses; `RunFailed` if it has died for good; `Unavailable`.
        """
        ...

    def sign(self, actor: Handle) -> Pending:
        """Ask the actor for a sign of life, which says how far it has come; return at once."""
        ...

    def promise(self, actor: Handle, method: str, *arguments: object) -> object:
        """What the actor will answer, to be given to another one, which it goes to directly."""
        ...

    def tell(self, actor: Handle, method: str, *arguments: object) -> None:
        """Say it, and do not wait."""
        ...

    def tell_all(self, actors: Sequence[Handle], method: str, within_s: float) -> None:
        """Say it to all of them, and wait so long for their answers."""
        ...

    def evaluating(self, evaluator: Handle) -> Evaluating:
        """The evaluator, as judging asks it."""
        ...
