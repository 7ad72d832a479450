"""Measurements of the links between the nodes of a Ray cluster."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import message_of
from cluster.actors.start import NODE_ID
from cluster.launch.connect import connect
from cluster.launch.link_findings import SILENCE_DEFAULTS, LinkMeasured, NodeFacts
from coordinator.errors import RunFailed, UserMistake

NAMESPACE = "archipelago-doctor"
REGION = "region"
"""The label with a node's region."""
ROUND_TRIPS = 5
START_S, FETCH_S = 60.0, 300.0
"""Timeouts of the start of a probe, and of the transfer of one object."""
WARM_BYTES = 2**20
"""An object that opens the connections before anything is measured."""
RAY_NAMES = (
    "RAY_object_manager_client_connection_num",
    "RAY_object_manager_pull_timeout_ms",
    "RAY_object_manager_push_timeout_ms",
    "RAY_gcs_grpc_min_reconnect_backoff_ms",
    *SILENCE_DEFAULTS,
)
"""The settings that must be the same on all nodes."""


class LinkProbe:
    """An actor on one node that measures connections, and serves and fetches objects."""

    def __init__(self) -> None:
        self._port = raylet_port(ray.nodes(), ray.get_runtime_context().get_node_id())

    def port(self) -> int:
        """Return the port of this node's raylet, to which other nodes can connect.

        A port of the probe's own may be closed: a firewall admits Ray's ports only.
        """
        return self._port

    def facts(self, name: str) -> NodeFacts:
        """Return the settings of this node."""
        ipv4 = Path("/proc/sys/net/ipv4")
        receive, send = (
            int((ipv4 / f"tcp_{each}").read_text().split()[2]) for each in ("rmem", "wmem")
        )
        idle = (ipv4 / "tcp_slow_start_after_idle").read_text().strip() == "1"
        settings = {each: os.environ[each] for each in RAY_NAMES if each in os.environ}
        return NodeFacts(name, receive, send, idle, settings)

    def round_trip_ms(self, address: str, port: int) -> float:
        """Return the median time of a connection to another node, in milliseconds."""
        took_s = list[float]()
        for _ in range(ROUND_TRIPS):
            began_s = time.monotonic()
            socket.create_connection((address, port), START_S).close()
            took_s.append(time.monotonic() - began_s)
        return 1000 * statistics.median(took_s)

    def put(self, nbytes: int) -> list[ray.ObjectRef]:
        """Put an object of that many bytes, and return its reference in a list."""
        return [ray.put(np.random.default_rng().integers(0, 255, nbytes, np.uint8))]

    def fetch_s(self, boxed: list[ray.ObjectRef]) -> float:
        """Return the seconds until an object of another node is here."""
        began_s = time.monotonic()
        ray.get(boxed[0], timeout=FETCH_S)
        return time.monotonic() - began_s


def raylet_port(nodes: Iterable[Mapping[str, Any]], node: str) -> int:
    """Return the port of the raylet of the node with this id; `nodes`: those of `ray.nodes`."""
    return next(each["NodeManagerPort"] for each in nodes if each["NodeID"] == node)


def measured(address: str, nbytes: int, say: Callable[[str], None]) -> list[LinkMeasured]:
    """Measure the links between the head's node and every other node, in both directions.

    Syncer and shards are near the head, so these are the links that a run uses. The links of a node
    that does not answer have an error, and those of the others are measured.

    Errors: `UserMistake` if the cluster cannot be reached, or has one node only; `RunFailed` if the
    head's node does not answer.
    """
    connect(address, NAMESPACE)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        heads = [node for node in nodes if "node:__internal_head__" in node["Resources"]]
        others = [node for node in nodes if node not in heads]
        if not heads or not others:
            raise UserMistake(f"{address} has {len(nodes)} nodes; a link needs two")
        measured_nodes = (*heads[:1], *others)
        probes = {node["NodeID"]: _probe(node) for node in measured_nodes}
        facts, silent = _facts(measured_nodes, probes)
        if why := silent.get(heads[0]["NodeID"]):
            raise RunFailed(why)
        found = list[LinkMeasured]()
        for other in others:
            for source, target in ((other, heads[0]), (heads[0], other)):
                ends = facts[source["NodeID"]], facts[target["NodeID"]]
                if why := silent.get(other["NodeID"]):
                    link = LinkMeasured(*ends, 0.0, 0.0, why)
                else:
                    link = _link(source, target, probes, ends, nbytes)
                found.append(link)
                say(f"{link.source.name} to {link.target.name}: {_result(link)}")
        return found
    finally:
        ray.shutdown()


def _result(link: LinkMeasured) -> str:
    """Return the result of a measurement, for people."""
    if link.error is not None:
        return link.error
    return f"{link.rtt_ms:.1f} ms, {link.gbit_s:.2f} Gbit/s"


def _facts(
    nodes: Iterable[dict[str, Any]], probes: Mapping[str, Any]
) -> tuple[dict[str, NodeFacts], dict[str, str]]:
    """Return the settings of the nodes by id, and by id why some do not answer."""
    names = {node["NodeID"]: _name(node) for node in nodes}
    asked = {each: (name, probes[each].facts.remote(name)) for each, name in names.items()}
    references = [reference for _, reference in asked.values()]
    ray.wait(references, num_returns=len(references), timeout=START_S)
    found, silent = dict[str, NodeFacts](), dict[str, str]()
    for known, (name, reference) in asked.items():
        try:
            found[known] = ray.get(reference, timeout=0)
        except RayError as error:
            found[known] = NodeFacts(name, 0, 0, slow_start_after_idle=False, ray={}, known=False)
            silent[known] = (
                f"{name} does not answer within {START_S:.0f} s: {message_of(error)}; is it still "
                "up, and are its ports open in both directions (docs/howto/wan.md, step 2)?"
            )
    return found, silent


def _probe(node: dict[str, Any]) -> Any:
    """Start the probe of a node."""
    options: dict[str, Any] = {"label_selector": {NODE_ID: node["NodeID"]}, "num_cpus": 0}
    return ray.remote(LinkProbe).options(max_concurrency=4, **options).remote()


def _name(node: dict[str, Any]) -> str:
    region = (node.get("Labels") or {}).get(REGION)
    return f"{region} ({node['NodeManagerAddress']})" if region else node["NodeManagerAddress"]


def _link(
    source: dict[str, Any],
    target: dict[str, Any],
    probes: dict[str, Any],
    ends: tuple[NodeFacts, NodeFacts],
    nbytes: int,
) -> LinkMeasured:
    """Measure one link in one direction; `ends`: the settings of its source and target."""
    sender, receiver = probes[source["NodeID"]], probes[target["NodeID"]]
    try:
        port = _got(sender.port.remote(), START_S)
        address = source["NodeManagerAddress"]
        rtt_ms = _got(receiver.round_trip_ms.remote(address, port), 2 * START_S)
    except RayError as error:
        return LinkMeasured(*ends, 0.0, 0.0, f"no connection: {message_of(error)}")
    try:
        for size in (WARM_BYTES, nbytes):
            boxed = _got(sender.put.remote(size), START_S)
            took_s = _got(receiver.fetch_s.remote(boxed), 2 * FETCH_S)
    except RayError as error:
        return LinkMeasured(*ends, rtt_ms, 0.0, message_of(error))
    return LinkMeasured(*ends, rtt_ms, 8e-9 * nbytes / took_s)


def _got(reference: ray.ObjectRef, within_s: float) -> Any:
    """Return the answer of a probe; raise Ray's errors, also if it has died."""
    return ray.get(reference, timeout=within_s)
