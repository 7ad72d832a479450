"""The table of node groups: what each node offers, and how many nodes there are.

Resources and labels are what `cluster.fleet.placement` asks Ray for, so the pods of a manifest and
the placement of a run cannot disagree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, product

from archipelago.manifest.memory_sizes import (
    control_bytes,
    island_bytes,
    object_store_bytes,
    quantity,
    shard_bytes,
)
from archipelago.manifest.placed_config import CONTROL, EVALUATOR, GROUP, SHARDS, whole
from archipelago.manifest.site import Cloud, Site
from cluster.config.schema import Config, IslandGroup, Machines
from cluster.fleet.placement import ONE_OF, PLACE_ONLY, bundle, selector
from coordinator.fragments import Layout

CONTROL_RESOURCE = "control"
"""The resource of the control node, for which the driver of a RayJob asks."""
CONTROL_CPUS, LEAST_CPUS = 4, 1
"""CPUs of Kubernetes for the control node; the fewest of any other one."""
ACCELERATOR_CPUS = 8
"""CPUs of Kubernetes for a node with accelerators whose group names none."""
NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")
"""The characters that a name of Kubernetes cannot have."""
TPU_NODES: Mapping[str, str] = {
    "TPU-V4": "tpu-v4-podslice",
    "TPU-V5LITEPOD": "tpu-v5-lite-podslice",
    "TPU-V5P": "tpu-v5p-slice",
    "TPU-V6E": "tpu-v6e-slice",
    "TPU-V7X": "tpu7x",
}
"""The values of `cloud.google.com/gke-tpu-accelerator` by Ray's accelerator type."""


class Role(StrEnum):
    """The purpose of a node group."""

    CONTROL = "control"
    SHARDS = "shards"
    EVALUATOR = "evaluator"
    ISLANDS = "islands"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """One row of the table: equal nodes, one pod each."""

    name: str
    """The name of the worker group."""
    role: Role
    """The purpose of the nodes."""
    hosts: int
    """Nodes of one island, which start and end together."""
    replicas: int
    """Islands at the start, spares included; or nodes, for the other roles."""
    least: int
    """The fewest of them that the autoscaler keeps."""
    most: int
    """The most of them that the autoscaler starts."""
    resources: Mapping[str, float]
    """Ray resources of one node, in whole amounts."""
    labels: Mapping[str, str]
    """Ray labels of each node."""
    preemptible: bool
    """Whether the run continues if these nodes are taken away."""
    cpus: int
    """CPUs of the pod."""
    memory: str
    """The memory of the pod."""
    store_bytes: int
    """The size of the object store in bytes."""
    devices: Mapping[str, int]
    """Devices of the pod, by Kubernetes' name of the resource."""
    node_selector: Mapping[str, str]
    """Labels that the Kubernetes node must have."""

    @property
    def nodes(self) -> int:
        """The number of nodes at the start."""
        return self.replicas * self.hosts


def node_groups(config: Config, layout: Layout, site: Site) -> tuple[NodeGroup, ...]:
    """Return the table for a configuration that `placed` has made: control first, then islands."""
    groups = [_control(config, layout, site)]
    if config.sync.shard_labels is not None:
        groups += _shards(config, layout, site)
    if config.monitor.evaluator.apart:
        machines = config.monitor.evaluator
        groups.append(_of(EVALUATOR, Role.EVALUATOR, machines, config, layout, site))
    islands = [_of(each.group, Role.ISLANDS, each, config, layout, site) for each in config.islands]
    return (*groups, *islands)


def group_names(config: Config) -> list[str]:
    """Return the names of all node groups, without their sizes."""
    names = [CONTROL]
    names += [name for name, _ in _shard_places(config)]
    names += [EVALUATOR] if config.monitor.evaluator.apart else []
    return [*names, *(group.group for group in config.islands)]


def offered(conditions: Mapping[str, str]) -> dict[str, str]:
    """Return labels that meet these conditions of Ray's label selector.

    A node without a label meets every condition that excludes values.
    """
    found: dict[str, str] = {}
    for key, condition in conditions.items():
        if condition.startswith("!"):
            continue
        found[key] = _permitted(condition)[0]
    return found


def _permitted(condition: str) -> list[str]:
    """Return the values that a condition of Ray's label selector permits: `value`, `in(a,b)`."""
    listed = ONE_OF.fullmatch(condition)
    return [condition] if listed is None else [v.strip() for v in listed["values"].split(",")]


def _control(config: Config, layout: Layout, site: Site) -> NodeGroup:
    """Return the group of fleet, syncer, shards, and an evaluator without machines of its own."""
    evaluator = config.monitor.evaluator
    given = {} if evaluator.apart else {k: v for k, v in evaluator.devices.items() if v > 0}
    resources = {"CPU": 0.0, **whole(given), CONTROL_RESOURCE: 1.0}
    resources.pop("memory", None)
    return NodeGroup(
        name=CONTROL,
        role=Role.CONTROL,
        hosts=1,
        replicas=1,
        least=1,
        most=1,
        resources=resources,
        labels={GROUP: CONTROL},
        preemptible=False,
        cpus=CONTROL_CPUS + math.ceil(resources["CPU"]),
        memory=_memory(site, CONTROL, control_bytes(config, layout)),
        store_bytes=object_store_bytes(config, layout, shards=True),
        devices=_devices(resources, site),
        node_selector=dict(site.node_selectors.get(CONTROL, {})),
    )


def _shards(config: Config, layout: Layout, site: Site) -> list[NodeGroup]:
    """Return the groups of shards that have nodes of their own, one node each."""
    places = _shard_places(config)
    groups: list[NodeGroup] = []
    for at, (name, labels) in enumerate(places):
        count = len(range(at, config.sync.shards, len(places)))
        groups.append(
            NodeGroup(
                name=name,
                role=Role.SHARDS,
                hosts=1,
                replicas=count,
                least=count,
                most=count,
                resources={"CPU": 0.0},
                labels={**labels, GROUP: name},
                preemptible=False,
                cpus=CONTROL_CPUS,
                memory=_memory(site, name, shard_bytes(config, layout)),
                store_bytes=object_store_bytes(config, layout, shards=True),
                devices={},
                node_selector=dict(site.node_selectors.get(name, {})),
            )
        )
    return groups


def _shard_places(config: Config) -> list[tuple[str, dict[str, str]]]:
    """Return the name and the labels of each group of nodes for shards, empty without such nodes.

    The values of `in(a,b)` take turns, as in `cluster.fleet.placement.hosts`: shard i goes to the
    group i modulo their number.
    """
    if (conditions := config.sync.shard_labels) is None:
        return []
    several = {key: found for key, each in conditions.items() if len(found := _permitted(each)) > 1}
    if not several:
        return [(SHARDS, offered(conditions))]
    places: list[tuple[str, dict[str, str]]] = []
    for values in islice(product(*several.values()), config.sync.shards):
        name = NOT_IN_NAMES.sub("-", "-".join((SHARDS, *values)).lower())
        places.append((name, offered(conditions) | dict(zip(several, values, strict=True))))
    return places


def _of(
    name: str, role: Role, machines: Machines, config: Config, layout: Layout, site: Site
) -> NodeGroup:
    """Return the group of the islands of one group, or of the evaluator's machines."""
    resources, waits = whole(bundle(machines)), False
    replicas = most = 1
    if isinstance(machines, IslandGroup):
        replicas = machines.count + machines.spares
        waits = machines.opportunistic and site.autoscaling
        most = site.most.get(name, replicas)
    cpus = resources.get("CPU", 0.0) or (LEAST_CPUS if machines.on_cpu else ACCELERATOR_CPUS)
    resources = {key: amount for key, amount in resources.items() if key not in PLACE_ONLY}
    return NodeGroup(
        name=name,
        role=role,
        hosts=machines.hosts,
        replicas=0 if waits else replicas,
        least=0 if waits else replicas,
        most=most if site.autoscaling else replicas,
        resources=resources or {"CPU": 0.0},
        labels=offered(selector(machines)),
        preemptible=isinstance(machines, IslandGroup) and machines.opportunistic,
        cpus=math.ceil(cpus),
        memory=_memory(site, name, island_bytes(config, layout, machines)),
        store_bytes=object_store_bytes(config, layout, shards=False),
        devices=_devices(resources, site),
        node_selector=_nodes(name, machines, site),
    )


def _memory(site: Site, name: str, estimate_bytes: int) -> str:
    return site.memory.get(name, quantity(estimate_bytes))


def _devices(resources: Mapping[str, float], site: Site) -> dict[str, int]:
    names = {"GPU": site.gpu_resource, "TPU": "google.com/tpu"}
    return {names[key]: int(amount) for key, amount in resources.items() if key in names}


def _nodes(name: str, machines: Machines, site: Site) -> dict[str, str]:
    """Return the labels of Kubernetes nodes: those of the cloud, and those that the user gives."""
    found: dict[str, str] = {}
    if site.cloud is Cloud.GKE:
        nodes = TPU_NODES.get(machines.accelerator or "")
        if machines.topology is not None and nodes is not None:
            found["cloud.google.com/gke-tpu-accelerator"] = nodes
            found["cloud.google.com/gke-tpu-topology"] = machines.topology
        if isinstance(machines, IslandGroup) and machines.opportunistic:
            found["cloud.google.com/gke-spot"] = "true"
    return {**found, **site.node_selectors.get(name, {})}
