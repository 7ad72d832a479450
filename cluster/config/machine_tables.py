"""The tables of machines: an island's, the evaluator's, and the mesh of their devices."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cluster.config import slices
from cluster.config.table import Table
from cluster.config.values import TOPOLOGY, Amount, Count, GroupName, MeshSize, with_the_rest
from cluster.names import island_names
from coordinator.protocol import Island


class MeshConfig(Table):
    """Along which axes an island's devices stand (islands/mesh.py); one may be -1, the rest."""

    data: MeshSize = 1  # parameters are repeated over these ...
    fsdp: MeshSize = -1  # ... split over these, and gathered for each step ...
    tensor: MeshSize = 1  # ... and over these the task splits its layers

    @property
    def devices(self) -> int | None:
        """How many they are; None if that is left to the machine."""
        sizes = (self.data, self.fsdp, self.tensor)
        return None if -1 in sizes else math.prod(sizes)


class Machines(Table):
    """Hosts that compute as one, an island's or the evaluator's: what each has, and where it is."""

    hosts: Count = 1
    spread: bool = False  # each on a node of its own; else on as few nodes as there is room on
    mesh: Annotated[MeshConfig, BeforeValidator(with_the_rest)] = MeshConfig()
    resources: dict[str, Amount] = Field(default={"CPU": 1.0})  # of each host, in Ray's words
    accelerator: Annotated[str, Field(min_length=1)] | None = None  # such as "H200", "TPU-V6E"
    topology: Annotated[str, Field(pattern=TOPOLOGY)] | None = None  # of a TPU slice
    label_selector: dict[str, str] | None = None  # labels that each node must have

    @property
    def on_cpu(self) -> bool:
        """Do they compute on their CPUs? Then devices are as many as the mesh says, or one each."""
        return not self.devices.get("GPU") and not self.devices.get("TPU")

    @property
    def devices(self) -> dict[str, float]:
        """The resources of one host; a slice's chips are among them."""
        if self.topology is None or self.resources.get("TPU"):
            return self.resources
        return {**self.resources, "TPU": slices.chips(self.topology) / self.hosts}


class IslandGroup(Machines):
    """Islands of one kind, each of such machines; they are named after their group."""

    group: GroupName = "local"
    count: Count = 1
    spares: Annotated[int, Field(ge=0)] = 0  # more processes, warm, on devices of their own
    batch_size: Count = 8  # windows per inner step
    region: GroupName | None = None  # its corpus: what is leased there is read there
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0  # below 1 the island is slowed on purpose
    step_s: Amount = 0.0  # ... or idles so that no step takes less than this
    encode: Literal["host", "device"] = "host"  # device: 8 bytes a parameter there, fewer to copy
    opportunistic: bool = False  # may wait for devices that the cluster does not have yet

    @property
    def names(self) -> tuple[Island, ...]:
        return island_names(self.group, self.count)

    @property
    def processes(self) -> int:
        """Of all its islands and spares: one on each host."""
        return (self.count + self.spares) * self.hosts


class EvaluatorConfig(Machines):
    """Where the model is judged; a model that no host holds is judged by several."""

    # of each host: {GPU = 1}; {}: one core, shared with others
    resources: dict[str, Amount] = Field(default={})

    @property
    def apart(self) -> bool:
        """Are machines reserved for it, as for an island? Else it is one process on the fleet's
        node, or wherever there is room."""
        return self.hosts > 1 or any((self.accelerator, self.topology, self.label_selector))
