"""A run as the queue of its cluster sees it, as plain data that any version can read."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from cluster.config.modes import fixed_islands
from cluster.config.schema import Config, IslandGroup
from cluster.fleet.placement import bundle, selector
from cluster.names import Seat, group_name, number_of
from coordinator.protocol import Island

OPTIONAL = "taken by the queue: the run starts with the islands that it requires"
"""The reason of an island that a run begins without; it was never taken from the run."""


class MachinesMessage(TypedDict):
    """The machines of each island of a group."""

    each: dict[str, float]
    """Ray resources of one host."""
    hosts: int
    apart: bool
    """Whether each host needs a node of its own."""
    labels: dict[str, str]
    """Ray labels that each node must have."""


class IslandMessage(TypedDict):
    """One island that a run holds or wants."""

    island: str
    group: str
    takeable: bool
    """Whether a run of higher priority may take its machines."""
    seat: str | None
    """The seat whose placement group it has, or has asked for; None: none."""
    held: bool
    """Whether that placement group is placed, according to the fleet."""
    withheld: str | None
    """The reason why the run does without it; None: it does not."""


class RunMessage(TypedDict):
    """A run that is live, or asks whether it may start."""

    run: str
    owner: str
    priority: int
    since_s: float
    """The time of its submission or start, in seconds since 1970."""
    least: int
    """Islands without which it cannot merge: its quorum."""
    groups: dict[str, MachinesMessage]
    islands: list[IslandMessage]
    """The islands, the most important first."""


@dataclass(frozen=True, slots=True)
class HeldSeat:
    """The seat of an island that has a placement group."""

    seat: Seat
    is_placed: bool


def is_takeable(config: Config, group: IslandGroup) -> bool:
    """Return whether other runs may take islands of a group: it is opportunistic.

    In some modes no island can leave, or come back.
    """
    free = fixed_islands(config) is None and not config.run.mode.sums_gradients
    return group.opportunistic and free


def owner_of(config: Config) -> str:
    """Return `run.owner`, or else the user of this process."""
    if config.run.owner is not None:
        return config.run.owner
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return str(os.getuid())


def run_message(
    config: Config,
    run: str,
    owner: str,
    since_s: float,
    islands: Mapping[Island, HeldSeat | None],
    withheld: Mapping[Island, str],
) -> RunMessage:
    """Return the message about a run with these islands; None: one that holds nothing."""
    groups = {group.group: group for group in config.islands}
    order = {name: number for number, name in enumerate(groups)}
    return RunMessage(
        run=run,
        owner=owner,
        priority=config.run.priority,
        since_s=since_s,
        least=config.sync.quorum,
        groups={
            name: MachinesMessage(
                each=bundle(group), hosts=group.hosts, apart=group.spread, labels=selector(group)
            )
            for name, group in groups.items()
        },
        islands=[
            IslandMessage(
                island=island,
                group=(group := group_name(island)),
                takeable=is_takeable(config, groups[group]),
                seat=None if (it := islands[island]) is None else it.seat,
                held=it is not None and it.is_placed,
                withheld=withheld.get(island),
            )
            for island in sorted(islands, key=lambda i: (order[group_name(i)], number_of(i)))
        ],
    )
