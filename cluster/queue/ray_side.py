"""The queue's view of Ray: nodes, placement groups, fleets, and the quotas in Ray's own store."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from pydantic import ValidationError
from ray.exceptions import RayError
from ray.util.placement_group import placement_group_table

from cluster.actors.hosts.host_group import PLACED
from cluster.actors.start import NODE_ID
from cluster.fleet.draining_nodes import DrainingNodes
from cluster.fleet.queue_message import RunMessage
from cluster.fleet.ray_backend import cluster_nodes
from cluster.names import FLEET, namespace_of
from cluster.queue.desk import QueueCluster
from cluster.queue.facts import ClusterFacts
from cluster.queue.quotas import Quotas
from coordinator.machine_room import Amounts, IslandNodes
from coordinator.protocol import Island

log = logging.getLogger("archipelago.queue")
FLEET_TIMEOUT_S = 5.0
"""Timeout of the report of all fleets together, and of a word to one, in seconds."""
STORE, KEY = b"archipelago", b"quotas"
"""The namespace and the key of the quotas in Ray's store."""


def save_quotas(quotas: Quotas) -> None:
    """Store the quotas in the cluster to which this process is connected."""
    _store()._internal_kv_put(KEY, quotas.model_dump_json().encode(), namespace=STORE)


def load_quotas() -> Quotas:
    """Return the quotas of the cluster to which this process is connected.

    Errors: `ValueError` if another version has stored them in another form.
    """
    text: bytes | None = _store()._internal_kv_get(KEY, namespace=STORE)
    if text is None:
        return Quotas()
    try:
        return Quotas.model_validate_json(text)
    except ValidationError as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"the stored quotas cannot be read: {first}; set them again") from error


def _store() -> Any:
    """Return Ray's key-value store, which is not part of its public API."""
    return importlib.import_module("ray.experimental.internal_kv")


@dataclass(slots=True)
class RayQueueCluster(QueueCluster):
    """The Ray cluster to which this process is connected."""

    draining: DrainingNodes = field(default_factory=DrainingNodes)
    reports: dict[str, RunMessage] = field(default_factory=dict[str, RunMessage])
    """The last report of each fleet."""

    def facts(self) -> ClusterFacts:
        """Return the facts of one look.

        The fleets are asked first: what they have placed since then is no longer free.
        """
        fleets, draining = self._fleets(), self.draining.now()
        nodes = [each for each in cluster_nodes() if each.labels.get(NODE_ID) not in draining]
        return ClusterFacts(load_quotas(), nodes, _free(), _placed(), fleets)

    def withhold(self, run: str, islands: Mapping[Island, str]) -> None:
        """Have the fleet of a run do without these islands; a failure is logged only."""
        try:
            fleet: Any = ray.get_actor(FLEET, namespace=namespace_of(run))
            ray.get(fleet.withhold.remote(dict(islands)), timeout=FLEET_TIMEOUT_S)
        except (RayError, ValueError) as error:
            log.warning("the fleet of %s does not answer: %s", run, type(error).__name__)

    def _fleets(self) -> dict[str, RunMessage | None]:
        """Return the report of each fleet; the last one of a fleet that does not answer."""
        prefix, named = namespace_of(""), _named_actors()
        runs = [
            space.removeprefix(prefix)
            for name, space in named
            if name == FLEET and space.startswith(prefix)
        ]
        asked: dict[str, Any] = {}
        for run in runs:
            try:
                fleet: Any = ray.get_actor(FLEET, namespace=namespace_of(run))
                asked[run] = fleet.queue_report.remote()
            except (ValueError, AttributeError, RayError) as error:  # of an older version, or gone
                log.info("the fleet of %s cannot be asked: %s", run, type(error).__name__)
        if asked:
            ray.wait([*asked.values()], num_returns=len(asked), timeout=FLEET_TIMEOUT_S)
        found: dict[str, RunMessage | None] = {}
        for run in runs:
            found[run] = self.reports.get(run)
            try:
                if run in asked:
                    found[run] = ray.get(asked[run], timeout=0)
            except RayError as error:
                log.info("the fleet of %s does not answer: %s", run, type(error).__name__)
        self.reports = {run: report for run, report in found.items() if report is not None}
        return found


def _named_actors() -> list[tuple[str, str]]:
    """Return the name and the namespace of every named actor."""
    named: Any = ray.util.list_named_actors(all_namespaces=True)
    return [(each["name"], each["namespace"]) for each in named]


def _free() -> dict[str, Amounts]:
    """Return the unused resources of each node, by Ray's id of it."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()


def _placed() -> dict[str, IslandNodes]:
    """Return the nodes of each placement group that is placed, by its name."""
    tables: Any = placement_group_table()
    return {
        table["name"]: tuple(filter(None, table["bundles_to_node_id"].values()))
        for table in tables.values()
        if table["state"] == PLACED and table["name"]
    }
