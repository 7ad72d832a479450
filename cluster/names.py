"""What islands, seats and actors of a run are called, in the namespace of the run."""

from __future__ import annotations

from collections.abc import Container
from itertools import count
from typing import NewType

from coordinator.protocol import Fragment, Island

Seat = NewType("Seat", str)
"""Where a learner runs: an actor and its devices. The first one of an island has its name; a spare
that has taken it over keeps its own."""
FLEET, SYNCER, EVALUATOR = "fleet", "syncer", "evaluator"
SHARD = "shard-0"
"""The first; a run with `sync.shards` has as many."""
CALL_TIMEOUT_S = 30.0
"""A call to one of them that takes longer is given up, and perhaps tried again."""


def island_actor(seat: Seat) -> str:
    return f"island {seat}"


def seat_of(island: Island) -> Seat:
    """Where it is at first. Light learners, `crew-3.7`, share a process: what no island of a
    configuration can be called (`bench scale`)."""
    return Seat(island.partition(".")[0])


def free_seat(group: str, taken: Container[Seat], island: Island | None = None) -> Seat:
    """A name for a new seat of this group: the island's own if that is free, else `eu+0` and on."""
    if island is not None and (own := seat_of(island)) not in taken:
        return own
    return next(seat for n in count() if (seat := Seat(f"{group}+{n}")) not in taken)


def shard_actor(number: int) -> str:
    return f"shard-{number}"


def shards_of(shards: int, fragments: int) -> dict[str, list[Fragment]]:
    """Which shard holds which fragments, all of about one size: in turn, as they fall due."""
    return {
        shard_actor(number): [Fragment(p) for p in range(number, fragments, shards)]
        for number in range(shards)
    }


def namespace_of(run: str) -> str:
    return f"archipelago-{run}"


def group_name(island: Island) -> str:
    """`eu-west-3` -> `eu-west`."""
    return island.rpartition("-")[0]


def number_of(island: Island) -> int:
    return int(island.rpartition("-")[2])


def island_names(group: str, count: int) -> tuple[Island, ...]:
    """`eu`, 3 -> `eu-0`, `eu-1`, `eu-2`."""
    return tuple(Island(f"{group}-{index}") for index in range(count))
