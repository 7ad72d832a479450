"""The tables of machines: of islands, of the evaluator, and of their device meshes.

The comment above a key is its documentation.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cluster.config import slices
from cluster.config.table import Table
from cluster.config.values import (
    TOPOLOGY,
    Amount,
    Count,
    GroupName,
    MeshSize,
    Positive,
    with_the_rest,
)
from cluster.names import island_names
from coordinator.protocol import Island


class MeshConfig(Table):
    """The device mesh of an island (islands/mesh.py); one axis may be -1, for the other devices."""

    data: MeshSize = 1
    """Devices along the axis over which parameters are replicated."""
    fsdp: MeshSize = -1
    """Devices along the axis over which parameters are split; each step gathers them."""
    tensor: MeshSize = 1
    """Devices along the axis over which the task splits its layers."""
    expert: MeshSize = 1
    """Devices along the axis over which the task splits the experts of its layers."""

    @property
    def devices(self) -> int | None:
        """The number of devices; None if one axis is -1, so that the machine decides."""
        sizes = (self.data, self.fsdp, self.tensor, self.expert)
        return None if -1 in sizes else math.prod(sizes)

    @property
    def splits(self) -> int:
        """The number of parts of a batch; negative if an axis is -1."""
        return self.data * self.fsdp * self.expert


class Machines(Table):
    """The hosts that compute together as one island or as the evaluator, and their placement."""

    hosts: Count = 1
    """Hosts of one island, or of the evaluator; one process each."""
    spread: bool = False
    """Put each host on a node of its own; otherwise Ray packs them on as few nodes as possible."""
    mesh: Annotated[MeshConfig, BeforeValidator(with_the_rest)] = MeshConfig()
    """Sizes of the mesh axes data, fsdp, tensor and expert.

    A missing axis has size 1, but a missing fsdp takes all devices that the others leave, unless
    one of those is -1.
    """
    resources: dict[str, Amount] = Field(default={"CPU": 1.0})
    """Ray resources of each host: {CPU = 0.5}, {GPU = 1} or {TPU = 4}."""
    accelerator: Annotated[str, Field(min_length=1)] | None = None
    """Accelerator type of the nodes, for example "H200" or "TPU-V6E"."""
    topology: Annotated[str, Field(pattern=TOPOLOGY)] | None = None
    """Topology of the TPU slice, in chips along each side, for example "4x4"."""
    label_selector: dict[str, str] | None = None
    """Ray labels that each node must have."""

    @property
    def on_cpu(self) -> bool:
        """True if they compute on CPUs: with as many devices as the mesh has, or one a host."""
        return not self.devices.get("GPU") and not self.devices.get("TPU")

    @property
    def devices(self) -> dict[str, float]:
        """The Ray resources of one host, with its chips of the TPU slice."""
        if self.topology is None or self.resources.get("TPU"):
            return self.resources
        return {**self.resources, "TPU": slices.chips(self.topology) / self.hosts}


class GroupOptimizerConfig(Table):
    """Values of `[optimizer]` for one group of islands, in place of those of all others.

    They do not change the form of the optimizer's state, which islands of all groups share.
    """

    learning_rate: Positive | None = None
    """Peak learning rate."""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps of the linear warm-up."""
    floor_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    """Floor of the decay, as a fraction of the peak rate; 0: the rate decays to zero."""
    adamw_share: Positive | None = None
    """Learning rate of leaves that AdamW updates beside Muon, as a factor of `learning_rate`."""
    weight_decay: Amount | None = None
    """Decoupled weight decay of all leaves."""

    @property
    def values(self) -> dict[str, float]:
        """The values that are given, by their keys in `[optimizer]`."""
        return self.model_dump(exclude_none=True)


class IslandGroup(Machines):
    """A group of islands on equal machines; the islands are named after their group."""

    group: GroupName = "local"
    """Name of the group; its islands are NAME-0, NAME-1 and so on."""
    count: Count = 1
    """Islands at the start of the run; `archipelago scale` changes it."""
    spares: Annotated[int, Field(ge=0)] = 0
    """Hot standbys of the whole group: warm processes on devices of their own."""
    batch_size: Count = 8
    """Windows in one inner step of an island."""
    accumulate: Count = 1
    """Equal parts of a batch that are computed one after another, to save memory of activations.

    Simulated runs (`archipelago study`) compute whole batches.
    """
    compute_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type in which the group computes, in place of `task.compute_dtype`.

    "float32" is the type that `init` gives each leaf. Deltas are float32 in any case.
    """
    optimizer: GroupOptimizerConfig = GroupOptimizerConfig()
    """Learning rate and other numbers of [optimizer] for this group: { learning_rate = 0.01 }."""
    region: GroupName | None = None
    """Region whose part of the corpus the group reads; its leases stay in the region."""
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of full speed. Below 1 the island idles after each step: a straggler on purpose."""
    step_s: Amount = 0.0
    """Least time of a step, in seconds; the island idles for the rest of it."""
    encode: Literal["host", "device"] = "host"
    """The side that encodes deltas: the host or the devices.

    "device" copies fewer bytes to the host, but keeps 8 more bytes a parameter on the device.
    """
    usd_per_hour: Amount | None = None
    """Price of one device of the group, in dollars per hour, for `usd` of the summary."""
    opportunistic: bool = False
    """Allow the group to wait for devices, and runs of higher priority to take them."""

    @property
    def names(self) -> tuple[Island, ...]:
        """The names of the islands that the group starts with."""
        return island_names(self.group, self.count)

    @property
    def processes(self) -> int:
        """The number of processes of all islands and spares: one on each host."""
        return (self.count + self.spares) * self.hosts


class EvaluatorConfig(Machines):
    """The machines of the evaluator; several hosts evaluate a model that is too large for one."""

    resources: dict[str, Amount] = Field(default={})
    """Ray resources of each host, for example {GPU = 1}.

    {} is one core that others may use, too.
    """

    @property
    def apart(self) -> bool:
        """True if it has reserved machines, like an island.

        Otherwise it is one process on the fleet's node, or on any node that has room.
        """
        return self.hosts > 1 or any((self.accelerator, self.topology, self.label_selector))
