"""Names of the islands, seats and actors of a run, in the run's namespace."""

from __future__ import annotations

from collections.abc import Container
from itertools import count
from typing import NewType

from coordinator.protocol import Fragment, Island

Seat = NewType("Seat", str)
"""The place where a learner runs: an actor and its devices.

The first seat of an island has the island's name. A spare that takes an island over keeps its own.
"""
FLEET, SYNCER, EVALUATOR = "fleet", "syncer", "evaluator"
SHARD = "shard-0"
"""The name of the first shard; a run has `sync.shards` of them."""
CALL_TIMEOUT_S = 30.0
"""Timeout of a call to one of these actors, in seconds; some callers retry."""


def island_actor(seat: Seat) -> str:
    """Return the name of the actor of a seat."""
    return f"island {seat}"


def seat_of_actor(name: str) -> Seat | None:
    """Return the seat whose actor has this name; None for any other actor.

    The other hosts of an island have longer names, and end with its first host.
    """
    prefix = island_actor(Seat(""))
    rest = name.removeprefix(prefix)
    return Seat(rest) if name.startswith(prefix) and " " not in rest else None


def region_evaluator(region: str) -> str:
    """Return the name of the actor that evaluates the model on held-out text of a region."""
    return f"evaluator {region}"


def seat_of(island: Island) -> Seat:
    """Return the first seat of an island.

    Light learners such as `crew-3.7` share one process, `crew-3` (`bench scale`). No island of a
    configuration can have a name with a dot.
    """
    return Seat(island.partition(".")[0])


def free_seat(group: str, taken: Container[Seat], island: Island | None = None) -> Seat:
    """Return a new seat of a group: the island's own name if free, else `eu+0`, `eu+1` and on."""
    if island is not None and (own := seat_of(island)) not in taken:
        return own
    return next(seat for n in count() if (seat := Seat(f"{group}+{n}")) not in taken)


def spare_group(seat: Seat) -> str | None:
    """Return the group of a seat that began as a spare: `eu+1` gives `eu`; None for others."""
    group, mark, _ = seat.partition("+")
    return group if mark else None


def shard_actor(number: int) -> str:
    """Return the name of a shard's actor."""
    return f"shard-{number}"


def shards_of(shards: int, fragments: int) -> dict[str, list[Fragment]]:
    """Assign fragments to shards in turn, so that shards have about equal size and load.

    Consecutive fragments, which fall due one after another, are on different shards.
    """
    return {
        shard_actor(number): [Fragment(p) for p in range(number, fragments, shards)]
        for number in range(shards)
    }


def namespace_of(run: str) -> str:
    """Return the Ray namespace of a run."""
    return f"archipelago-{run}"


def group_name(island: Island) -> str:
    """Return the group of an island: `eu-west-3` gives `eu-west`."""
    return island.rpartition("-")[0]


def number_of(island: Island) -> int:
    """Return the number of an island in its group: `eu-west-3` gives 3."""
    return int(island.rpartition("-")[2])


def island_names(group: str, count: int) -> tuple[Island, ...]:
    """Return the islands of a group: `eu`, 3 gives `eu-0`, `eu-1`, `eu-2`."""
    return tuple(Island(f"{group}-{index}") for index in range(count))
