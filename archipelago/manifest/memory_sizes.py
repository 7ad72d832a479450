"""The memory of each kind of node, from the formulas of docs/explanation/memory.md.

These are estimates: the activations of a task are not known. `--memory GROUP=SIZE` replaces one.
"""

from __future__ import annotations

import math

from archipelago.lab.bench.memory import island_terms, model_file_terms, shard_terms, total
from cluster.config.schema import Config, IslandGroup, Machines
from cluster.launch.ray_cluster import STORE_FLOOR_BYTES, Stores
from coordinator.fragments import Layout

MIB, GIB = 2**20, 2**30
RAYLET_BYTES = 512 * MIB
"""Raylet, agents and idle workers of one node."""
PROCESS_BYTES = 400 * MIB
"""A process of ours with JAX, before it holds a model."""
HEAD_BYTES = 4 * GIB
"""A head without work: control service, dashboard, autoscaler."""
DATA_BYTES = GIB
"""The corpus and the buffers of one learner."""
COMPILER_BYTES = 4 * GIB
"""The host memory that XLA may take while it compiles for accelerators."""
ON_DEVICE = 20
"""Bytes of a parameter on the devices: f32 parameters, two moments, gradients and as much again."""
F32_BYTES = 4
SLACK = 1.25
"""The factor for what the formulas leave out, such as activations and pages that malloc keeps."""


def object_store_bytes(config: Config, layout: Layout, *, shards: bool) -> int:
    """Return the size of a node's object store, as `cluster.launch.ray_cluster` checks it."""
    stores = Stores.of(config, layout)
    return max(STORE_FLOOR_BYTES, stores.shards if shards else stores.island)


def control_bytes(config: Config, layout: Layout) -> int:
    """Return the memory of the control node: driver, fleet, syncer, evaluator, and the shards."""
    evaluator = PROCESS_BYTES + 2 * F32_BYTES * layout.parameters
    processes = 3 * PROCESS_BYTES + evaluator + total(model_file_terms(layout))
    shards = 0 if config.sync.shard_labels else config.sync.shards
    processes += shards * (PROCESS_BYTES + total(shard_terms(config, layout)))
    return _whole(RAYLET_BYTES + processes + object_store_bytes(config, layout, shards=True))


def shard_bytes(config: Config, layout: Layout) -> int:
    """Return the memory of a node with one shard."""
    shard = PROCESS_BYTES + total(shard_terms(config, layout))
    return _whole(RAYLET_BYTES + shard + object_store_bytes(config, layout, shards=True))


def island_bytes(config: Config, layout: Layout, machines: Machines) -> int:
    """Return the memory of one host of an island, or of an evaluator of its own machines."""
    share = layout.parameters / machines.hosts
    learns = isinstance(machines, IslandGroup)
    held = total(island_terms(config, layout)) / machines.hosts if learns else F32_BYTES * share
    held += ON_DEVICE * share if machines.on_cpu else COMPILER_BYTES
    if isinstance(machines, IslandGroup) and machines.region in config.evaluated_regions:
        held += PROCESS_BYTES + 2 * F32_BYTES * layout.parameters  # the evaluator of the region
    store = object_store_bytes(config, layout, shards=False)
    asked = machines.resources.get("memory", 0.0)
    return max(
        _whole(RAYLET_BYTES + PROCESS_BYTES + DATA_BYTES + store + math.ceil(held)), _whole(asked)
    )


def _whole(nbytes: float) -> int:
    """Return these bytes with `SLACK`, as a whole number of GiB."""
    return math.ceil(SLACK * nbytes / GIB) * GIB


def quantity(nbytes: int) -> str:
    """Return a number of bytes as a quantity of Kubernetes."""
    if nbytes % GIB == 0:
        return f"{nbytes // GIB}Gi"
    return f"{math.ceil(nbytes / MIB)}Mi"
