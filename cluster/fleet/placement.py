"""The placement of islands: one placement group each; impossible wishes are reported early."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.actors.start import NODE_ID
from cluster.config.schema import Config, EvaluatorConfig, IslandGroup, Machines

ACCELERATOR_TYPE = "ray.io/accelerator-type"
"""The label that Ray gives a node with accelerators."""
TOPOLOGY = "ray.io/tpu-topology"
"""The label of a TPU slice's topology; a slice of one host is a node of its own."""
SLICE = "ray.io/tpu-slice-name"
"""The label of the slice that a node is a part of."""
PLACE_ONLY = {"memory": 1.0}
"""The bundle of a host that asks for no device: one byte, for Ray refuses an empty bundle.

A share of a CPU would leave an island that needs a node's every CPU without room.
"""
ONE_OF = re.compile(r"in\((?P<values>[^)]*)\)")
"""The label condition `in(a,b)`."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of the cluster, with its total resources, used or free."""

    name: str
    """The address of the node."""
    total: Mapping[str, float]
    """Total amount of each resource."""
    labels: Mapping[str, str]

    def __str__(self) -> str:
        shown = {k: v for k, v in self.total.items() if k in ("CPU", "GPU", "TPU") or _is_own(k)}
        own = {k: v for k, v in self.labels.items() if not k.startswith("ray.io/node-")}
        held = _amounts(shown) or "nothing for islands"
        return f"{self.name}: {held}{f', {_labels(own)}' if own else ''}"


def _is_own(resource: str) -> bool:
    """Return whether people have given the node this resource, rather than Ray."""
    return ":" not in resource and "memory" not in resource


def hosts(labels: Mapping[str, str], nodes: Sequence[Node]) -> list[str]:
    """Return Ray's names of the nodes with these labels, those with most memory first.

    If a label has several permitted values, such as `in(eu,us)`, nodes with different values take
    turns.
    """
    suitable = [node for node in nodes if _fits(labels, node)]
    suitable.sort(key=lambda node: (-node.total.get("memory", 0.0), node.labels.get(NODE_ID, "")))
    turns, seen = list[tuple[int, Node]](), Counter[tuple[str | None, ...]]()
    for node in suitable:
        values = tuple(node.labels.get(key) for key in labels)
        turns.append((seen[values], node))
        seen[values] += 1
    turns.sort(key=lambda turn: turn[0])
    return [node.labels[NODE_ID] for _, node in turns if NODE_ID in node.labels]


def _fits(labels: Mapping[str, str], node: Node) -> bool:
    return all(matches(value, node.labels.get(key)) for key, value in labels.items())


def bundle(machines: Machines) -> dict[str, float]:
    """Return the resources of one host, as Ray's bundle."""
    resources = {name: amount for name, amount in machines.devices.items() if amount > 0}
    return resources or dict(PLACE_ONLY)


def selector(machines: Machines) -> dict[str, str]:
    """Return the labels that the node of each host must have."""
    labels = dict(machines.label_selector or {})
    if machines.accelerator is not None:
        labels[ACCELERATOR_TYPE] = machines.accelerator
    if machines.topology is not None:
        labels[TOPOLOGY] = machines.topology
    return labels


def wish(machines: Machines) -> str:
    """Describe the machines that an island, or the evaluator, waits for."""
    labels, each = selector(machines), _amounts(bundle(machines))
    if machines.hosts > 1:
        spread = ", on nodes of their own" if machines.spread else ""
        each = f"{machines.hosts} hosts of {each}{spread}"
    return f"{each}{f' on a node with {_labels(labels)}' if labels else ''}"


def room(machines: Machines, nodes: Sequence[Node]) -> int:
    """Return how many times these machines would fit on the nodes if nothing else used them."""
    need, labels, n = bundle(machines), selector(machines), machines.hosts
    suitable = [node for node in nodes if _fits(labels, node)]
    capacities = [_capacity(need, node) for node in suitable]
    if machines.topology is not None and n > 1:  # count whole slices
        held = Counter(
            node.labels.get(SLICE)
            for node, capacity in zip(suitable, capacities, strict=True)
            if capacity
        )
        return sum(count >= n for name, count in held.items() if name)
    if not machines.spread:
        return sum(capacities) // n
    times = sum(capacities) // n  # a node may have only one host of each
    while times and sum(min(held, times) for held in capacities) < times * n:
        times -= 1
    return times


def may_host(machines: Machines, node: Node) -> bool:
    """Return whether one host of these machines may be placed on an empty node."""
    return _fits(selector(machines), node) and _capacity(bundle(machines), node) > 0


def _capacity(need: Mapping[str, float], node: Node) -> int:
    """Return how many times a node has these resources."""
    return min(int(node.total.get(k, 0.0) / v + 1e-9) for k, v in need.items())


def expected_islands(config: Config, nodes: Sequence[Node]) -> dict[str, float]:
    """Return how many islands to expect on each node, by Ray's id of it.

    Ray places each group on the nodes with its labels; here its islands are shared among them by
    their room.
    """
    found: dict[str, float] = {}
    for group in config.islands:
        need, labels = bundle(group), selector(group)
        capacities = {
            node.labels.get(NODE_ID, ""): _capacity(need, node)
            for node in nodes
            if _fits(labels, node)
        }
        whole = sum(capacities.values())
        for node, capacity in capacities.items():
            if capacity:
                found[node] = found.get(node, 0.0) + group.count * capacity / whole
    return found


def homeless(evaluator: EvaluatorConfig, nodes: Sequence[Node]) -> str | None:
    """Return why the evaluator can never be placed on these nodes; None if it can."""
    if (not evaluator.apart and not any(evaluator.devices.values())) or room(evaluator, nodes):
        return None
    nodes_text = "; ".join(map(str, nodes)) or "no nodes"
    return f"monitor.evaluator: no room for {wish(evaluator)}; the cluster has {nodes_text}"


def impossible(group: IslandGroup, count: int, nodes: Sequence[Node]) -> str | None:
    """Return why that many islands of a group can never be placed on these nodes; None if they can.

    An opportunistic group may wait for nodes that are not there yet.
    """
    count += group.spares
    if group.opportunistic or (capacity := room(group, nodes)) >= count:
        return None
    nodes_text = "; ".join(map(str, nodes)) or "no nodes"
    islands_text = f"islands, {group.spares} of them spares" if group.spares else "islands"
    return (
        f"group {group.group}: {count} {islands_text}, each of {wish(group)}, can never be placed: "
        f"there is room for {capacity} at most; the cluster has {nodes_text}"
    )


def unplaceable(config: Config, nodes: Sequence[Node]) -> list[str]:
    """Return everything of a configuration that can never be placed on these nodes."""
    problems = [impossible(group, group.count, nodes) for group in config.islands]
    problems.append(homeless(config.monitor.evaluator, nodes))
    labels = config.sync.shard_labels
    if labels is not None and not hosts(labels, nodes):
        nodes_text = "; ".join(map(str, nodes))
        problems.append(f"sync.shard_labels: no node has {labels}; the cluster has {nodes_text}")
    return [problem for problem in problems if problem is not None]


def matches(wanted: str, has: str | None) -> bool:
    """Return whether a label meets Ray's condition: `value`, `!value`, `in(a,b)`, `!in(a,b)`."""
    if wanted.startswith("!"):
        return not matches(wanted[1:], has)
    if (listed := ONE_OF.fullmatch(wanted)) is not None:
        return has in [value.strip() for value in listed["values"].split(",")]
    return has == wanted


def _amounts(resources: Mapping[str, float]) -> str:
    if resources == PLACE_ONLY:
        return "no devices"
    return " + ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()))


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
