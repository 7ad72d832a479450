"""The live runs of a Ray cluster, by their fleets."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError

from cluster.launch.connect import connect
from cluster.launch.run_list import ListedRun, row_of_status
from cluster.names import FLEET, namespace_of

NAMESPACE = "archipelago-list"
ANSWER_S = 10.0
"""Timeout of each fleet, in seconds."""


def runs_of_cluster(address: str) -> list[ListedRun]:
    """Return the live runs of a cluster by name; a fleet that does not answer has the reason.

    Errors: `UserMistake` if the cluster cannot be reached.
    """
    connect(address, NAMESPACE)
    try:
        named: Any = ray.util.list_named_actors(all_namespaces=True)
        prefix = namespace_of("")
        spaces = sorted(
            each["namespace"]
            for each in named
            if each["name"] == FLEET and each["namespace"].startswith(prefix)
        )
        return [_row(space.removeprefix(prefix), space) for space in spaces]
    finally:
        ray.shutdown()


def _row(name: str, namespace: str) -> ListedRun:
    try:
        fleet: Any = ray.get_actor(FLEET, namespace=namespace)
        status: Any = ray.get(fleet.status.remote(), timeout=ANSWER_S)
    except (RayError, ValueError) as error:
        return ListedRun(
            name, "unreadable", why=f"its fleet does not answer: {type(error).__name__}"
        )
    return row_of_status(name, status)
