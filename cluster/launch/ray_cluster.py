"""A Ray cluster for a run: an embedded Ray, or an existing cluster."""

from __future__ import annotations

import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray

from cluster.config.rule import wire_of_moments
from cluster.config.schema import Config, SyncConfig
from cluster.fleet.placement import NODE_ID, Node, bundle, hosts
from cluster.fleet.ray_backend import cluster_nodes
from cluster.launch.connect import connect
from cluster.launch.ray_messages import messages_to_stderr
from coordinator.errors import RunFailed, UserMistake
from coordinator.fragments import Layout

RAY_SETTINGS = {
    "RAY_object_manager_pull_timeout_ms": "120000",  # else slow links transfer each object twice
    "RAY_timeout_ms_task_wait_for_death_info": "100",  # else a caller learns of a death after 2 s
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USE_UVLOOP": "0",  # Orbax brings uvloop: an extra must not change the actors' event loop
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STARTS = 2
"""Attempts to start an embedded Ray."""
log = logging.getLogger("archipelago")
STORE_FLOOR_BYTES = 128 * 2**20
"""The smallest object store of an embedded Ray, in bytes."""
STORE_SLACK = 1.5
"""The factor by which the requested object store exceeds the objects that it holds at once."""


PUBLISHED = 2
"""Versions of a fragment in a shard's object store for learners that join.

These are the present version, and the previous one for as long as a learner reads it.
"""


@dataclass(frozen=True, slots=True)
class Stores:
    """The bytes that object stores must hold at once."""

    shards: int
    """Bytes of all shards together, on their nodes; islands on the same node map these objects."""
    island: int
    """Bytes on any other node that has islands, however many they are."""

    @staticmethod
    def of(config: Config, layout: Layout) -> Stores:
        """Compute the sizes for a configuration.

        Learners that join map the model in f32, one copy a node. A round keeps one contribution of
        each learner and one publication.
        """
        learners, model = len(config.island_names), 4 * layout.parameters
        largest = max(layout.sizes)
        up, down = config.sync.wire_up.bytes_of(largest), config.sync.wire_down.bytes_of(largest)
        if (wire := wire_of_moments(config)) is not None:
            up, down = up + wire.bytes_of(largest), down + wire.bytes_of(largest)
        rounds = 2 * (learners * up + down)
        shards = math.ceil(STORE_SLACK * (PUBLISHED * model + rounds))
        return Stores(shards, math.ceil(STORE_SLACK * (model + 2 * down)))


@contextmanager
def cluster_of(
    config: Config, address: str | None, namespace: str, stores: Stores
) -> Generator[str]:
    """Start an embedded Ray that ends with the block, or join a cluster; yield the GCS address.

    Errors: `UserMistake` if the cluster cannot be reached, or this machine has no room for an
    embedded one; `RunFailed` if an embedded Ray does not start.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    messages_to_stderr()
    if address in (None, "local"):
        cpus = sum(g.processes * bundle(g).get("CPU", 0.0) for g in config.islands)
        cpus += _of_evaluator(config).get("CPU", 0.0)
        _fits_here(stores.shards)

        def start() -> None:
            with warnings.catch_warnings():
                # JAX warns of forks, after which Ray at once starts another program
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init(
                    address="local",
                    num_cpus=max(os.cpu_count() or 1, math.ceil(cpus)),
                    resources=_other_resources(config),
                    include_dashboard=config.monitor.dashboard,
                    object_store_memory=max(STORE_FLOOR_BYTES, stores.shards),
                    namespace=namespace,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )

        begun(start)
    else:
        connect(address, namespace)
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def begun(start: Callable[[], object], clear: Callable[[], object] = ray.shutdown) -> None:
    """Start an embedded Ray, with `STARTS` attempts; `clear` is called between them.

    On a busy machine a start now and then takes longer than Ray waits.

    Errors: `RunFailed` if it does not start.
    """
    for attempt in range(1, STARTS + 1):
        try:
            start()
            return
        except Exception as error:  # Ray has no narrower exception for "not within 30 s"
            reason = str(error).strip() or repr(error)
            if attempt == STARTS:
                raise RunFailed(
                    f"Ray does not start here, tried {STARTS} times: {reason}; is the machine very "
                    "busy, or short of memory?"
                ) from error
            log.warning("Ray does not start, and is started again: %s", reason.splitlines()[0])
            clear()


def check_room(config: Config, address: str | None, stores: Stores) -> None:
    """Check that the object stores of the connected cluster hold the run.

    Errors: `UserMistake` if one is too small.
    """
    if address in (None, "local"):
        return  # it was started with enough
    here = ray.get_runtime_context().get_node_id()
    if (lacking := lack(config.sync, stores, cluster_nodes(), here)) is not None:
        raise UserMistake(
            f"no room in the object stores of {address}: {lacking}; start Ray with "
            "--object-store-memory, or use more fragments or fewer islands"
        )


def lack(sync: SyncConfig, stores: Stores, nodes: Sequence[Node], own_node: str) -> str | None:
    """Return which object store is too small for its share of the run; None if all have room.

    Shards are on the node of this process, `own_node`, or in turn on the nodes that match
    `sync.shard_labels`. Islands may be on any node, so only the roomiest node is checked for them.
    """
    shard_nodes, need = {own_node}, float(stores.shards)
    if sync.shard_labels is not None:
        shard_nodes = set(hosts(sync.shard_labels, nodes)[: sync.shards])
        need *= math.ceil(sync.shards / max(1, len(shard_nodes))) / sync.shards
    for node in nodes:
        if node.labels.get(NODE_ID) in shard_nodes and _room(node) < need:
            return _needed(need, "for the shards", node)
    roomiest = max(nodes, key=_room, default=None)
    if roomiest is not None and _room(roomiest) < stores.island:
        return _needed(stores.island, "for an island", roomiest)
    return None


def _room(node: Node) -> float:
    """Return the size of a node's object store in bytes."""
    return node.total.get("object_store_memory", 0.0)


def _needed(need: float, purpose: str, node: Node) -> str:
    """Return a message with the MiB that are needed on a node, and those that it has."""
    mib = 2**20
    return (
        f"{need / mib:.0f} MiB {purpose} are needed on {node.name}, it has {_room(node) / mib:.0f}"
    )


def _other_resources(config: Config) -> dict[str, float]:
    """Return the custom resources that islands and evaluator ask for, for an embedded Ray."""
    wanted: dict[str, float] = {}
    requests = [(g.processes, g.devices) for g in config.islands]
    for times, devices in [*requests, (1, _of_evaluator(config))]:
        for name, amount in devices.items():
            if name not in ("CPU", "GPU", "memory", "object_store_memory"):
                wanted[name] = wanted.get(name, 0.0) + times * amount
    return wanted


def _of_evaluator(config: Config) -> dict[str, float]:
    """Return the devices of all hosts of the evaluator together."""
    machines = config.monitor.evaluator
    each = bundle(machines) if machines.apart else machines.devices
    return {name: machines.hosts * amount for name, amount in each.items()}


def _fits_here(need_bytes: int) -> None:
    """Raise `UserMistake` if this machine's shared memory has less than `need_bytes` of room."""
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.exists() else need_bytes
    if free < need_bytes:
        raise UserMistake(
            f"no room in the object store: {need_bytes / 2**20:.0f} MiB of shared memory are "
            f"needed and {shared} has {free / 2**20:.0f} MiB free; give it more "
            "(docker run --shm-size=...), or use more fragments or fewer islands"
        )
