"""The seats of a run that a Ray cluster has, found by the names of actors and placement groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group_table

from cluster.names import Seat, seat_of_actor

REMOVED = "REMOVED"
"""Ray's state of a placement group that was given back."""


def named_seats(namespace: str) -> list[Seat]:
    """Return the seats of the islands and spares of a run whose actors or devices exist, sorted.

    `namespace`: that of the run's actors.
    """
    return seats_among(namespace, ray.util.list_named_actors(True), placement_group_table())


def seats_among(
    namespace: str, actors: Iterable[Any], groups: Mapping[Any, Mapping[str, Any]]
) -> list[Seat]:
    """Return the seats of a run among all named actors and all placement groups, sorted.

    `actors`: the entries of `ray.util.list_named_actors`. `groups`: the table of Ray.
    """
    names = [each["name"] for each in actors if each["namespace"] == namespace]
    found = {seat for name in names if (seat := seat_of_actor(name)) is not None}
    for group in groups.values():
        of_run, _, seat = group["name"].rpartition("/")
        if of_run == namespace and group["state"] != REMOVED:
            found.add(Seat(seat))
    return sorted(found)
