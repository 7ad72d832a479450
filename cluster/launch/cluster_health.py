"""The health of a Ray cluster, measured by a short task on each node."""

from __future__ import annotations

import importlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from cluster.actors.start import NODE_ID
from cluster.fleet.run_identity import versions
from cluster.launch.cluster_findings import SPAN_S, ClusterHealth, DeadNode, NodeHealth
from cluster.launch.connect import connect
from cluster.launch.run_findings import ProbeAnswer
from cluster.names import FLEET, island_actor, namespace_of, seat_of
from coordinator.protocol import Island

NAMESPACE = "archipelago-doctor"
RUNS = namespace_of("")
"""The beginning of the namespace of every run."""
START_S, ANSWER_S = 45.0, 10.0
"""Timeouts of the first task on a node, whose process has to start, and of the next one."""
PROBE_S = 5.0
"""Timeout of a call to a silent island."""
UNEXPECTED = 2
"""Ray's number for the death of a node that was not asked to end (NodeDeathInfo)."""
TABLE_S = 10.0
"""Timeout of Ray's table of nodes, in seconds."""


def look_at_node(session: str) -> tuple[float, dict[str, str], dict[str, float]]:
    """Return the clock, the versions and the free shares of the disks of this node.

    `session`: the folder of Ray's sockets, logs and spilled objects there.
    """
    from cluster.source import source_sha256

    found = versions() | {"source": source_sha256()}
    usage = shutil.disk_usage(session)
    free = {"the disk of Ray's logs and spilled objects": usage.free / usage.total}
    return time.time(), found, free


def cluster_health(
    address: str, run: str | None = None, silent: Sequence[str] = (), span_s: float = SPAN_S
) -> tuple[ClusterHealth, dict[str, ProbeAnswer]]:
    """Return the health of a cluster, and whether the silent islands of a run answer a call.

    `span_s`: seconds for which the end of a node is a problem.

    Errors: `UserMistake` if the cluster cannot be reached.
    """
    connect(address, NAMESPACE)
    try:
        nodes = ray.nodes()
        living = [node for node in nodes if node["Alive"]]
        draining = _draining(living)  # Ray starts nothing there
        health = ClusterHealth(
            nodes=_health_of([node for node in living if node not in draining]),
            dead_nodes=dead_nodes(nodes, _ends_unix_s(), time.time()),
            span_s=span_s,
            draining=[node["NodeManagerAddress"] for node in draining],
            leftover=_leftover(),
        )
        return health, {} if run is None else _probed(run, silent)
    finally:
        ray.shutdown()


def dead_nodes(
    nodes: Sequence[Mapping[str, Any]], ends_unix_s: Mapping[str, float], now_unix_s: float
) -> dict[str, DeadNode]:
    """Return nodes that ended unexpectedly and have not rejoined, by address.

    `nodes`: those of `ray.nodes`, where a node that rejoins has a second entry with another id.
    `ends_unix_s`: the time of each end, by Ray's id of the node, in seconds since 1970. Of several
    nodes with one address the last one counts.
    """
    living = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    dead = [
        (ends_unix_s.get(node["NodeID"]), node)
        for node in nodes
        if not node["Alive"]
        and node.get("DeathReason") == UNEXPECTED
        and node["NodeManagerAddress"] not in living
    ]
    dead.sort(key=lambda each: math.inf if each[0] is None else each[0])
    return {
        node["NodeManagerAddress"]: DeadNode(
            str(node.get("DeathReasonMessage") or ""),
            None if end_s is None else max(0.0, now_unix_s - end_s),
        )
        for end_s, node in dead
    }


def _ends_unix_s() -> dict[str, float]:
    """Return when each node ended, by Ray's id of it; `ray.nodes` has no times."""
    ray_internals: Any = importlib.import_module("ray._raylet")
    client = ray_internals.GcsClient(address=ray.get_runtime_context().gcs_address)
    table = client.get_all_node_info(timeout=TABLE_S)
    return {
        node.node_id.hex(): node.end_time_ms / 1000 for node in table.values() if node.end_time_ms
    }


def _health_of(nodes: Sequence[Mapping[str, Any]]) -> list[NodeHealth]:
    """Look at all nodes at once: a task starts a process, and the next one measures the clock."""
    tasks = [
        ray.remote(look_at_node).options(
            num_cpus=0, label_selector={NODE_ID: node["NodeID"]}, max_retries=0
        )
        for node in nodes
    ]
    until_s = time.monotonic() + START_S
    first = [task.remote(_session(node)) for task, node in zip(tasks, nodes, strict=True)]
    errors = [_error(reference, until_s) for reference in first]
    return [
        NodeHealth(node["NodeManagerAddress"], error) if error else _measured(node, task)
        for node, task, error in zip(nodes, tasks, errors, strict=True)
    ]


def _session(node: Mapping[str, Any]) -> str:
    """Return the folder of Ray's session on a node: its socket is there."""
    return str(Path(node["RayletSocketName"]).parent)


def _error(reference: ray.ObjectRef, until_s: float) -> str:
    try:
        ray.get(reference, timeout=max(0.0, until_s - time.monotonic()))
    except RayError as error:
        return (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
    return ""


def _measured(node: Mapping[str, Any], task: Any) -> NodeHealth:
    name, began_s = node["NodeManagerAddress"], time.time()
    try:
        clock_s, found, free = ray.get(task.remote(_session(node)), timeout=ANSWER_S)
    except RayError as error:
        return NodeHealth(name, type(error).__name__)
    return NodeHealth(name, "", skew_s(began_s, clock_s, time.time()), found, free)


def skew_s(began_s: float, clock_s: float, ended_s: float) -> float:
    """Return by how much a clock that was read between two moments differs at least, in seconds."""
    return max(0.0, clock_s - ended_s) + min(0.0, clock_s - began_s)


def _draining(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    from ray._private.state import state

    ids = state.get_draining_nodes()
    return [node for node in nodes if node["NodeID"] in ids]


def _leftover() -> dict[str, int]:
    """Return the number of named actors of each run that has no fleet."""
    named: Any = ray.util.list_named_actors(all_namespaces=True)
    of_runs = [each for each in named if each["namespace"].startswith(RUNS)]
    with_fleet = {each["namespace"] for each in of_runs if each["name"] == FLEET}
    counts = Counter(each["namespace"] for each in of_runs)
    return {
        space.removeprefix(RUNS): count
        for space, count in sorted(counts.items())
        if space not in with_fleet
    }


def _probed(run: str, islands: Sequence[str]) -> dict[str, ProbeAnswer]:
    """Call the process of each of these islands; one without a process is left out."""
    found: dict[str, ProbeAnswer] = {}
    for island in islands:
        try:
            actor = ray.get_actor(island_actor(seat_of(Island(island))), namespace_of(run))
            ray.get(actor.node.remote(), timeout=PROBE_S)
        except ValueError:
            continue
        except GetTimeoutError:
            found[island] = "silent"
        except RayError:
            continue
        else:
            found[island] = "answers"
    return found
