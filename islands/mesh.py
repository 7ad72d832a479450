"""An island's devices as a mesh, and the placement of a task's arrays on it.

A mesh has four axes. Over `data` parameters are repeated. Over `fsdp` they are split, and gathered
for each step. Over `tensor` a task splits the work of its layers, and over `expert` their experts,
if it defines how. The batch is split over all axes but `tensor`. A fragment in its flat form is
split over all devices in their order, in whole quantization blocks, on any mesh. So each host has
one range of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import cached_property
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from coordinator.fragments import Flat
from coordinator.parts import Split
from islands.mesh_shape import (
    AXES,
    BATCH_AXES,
    FSDP_OVER_ALL,
    MeshShape,
    filled_in,
    misfits,
)
from islands.task import Batch, Params, Task, leaf_path

Device: TypeAlias = Any
"""A `jax.Device`; the type lives in jaxlib, which the type checker does not see."""


class Devices:
    """The devices of one island, possibly of several hosts, and this host's part of them.

    `leaves`: the sharding of each leaf of the parameters, in order; `batch`, `flat`: the shardings
    of a batch and of a flat fragment.
    """

    def __init__(
        self,
        task: Task,
        shape: MeshShape = FSDP_OVER_ALL,
        devices: Sequence[Device] | None = None,
    ) -> None:
        """Make the mesh; `devices`: None for all that JAX has.

        Errors: `UserMistake` if they do not form such a mesh, or cannot split a leaf as the task
        asks.
        """
        found = sorted(devices or jax.devices(), key=lambda each: (each.process_index, each.id))
        kinds = sorted({f"{each.platform} {each.device_kind}" for each in found})
        if len(kinds) > 1:
            raise UserMistake(
                f"an island's hosts must have devices of one kind, and here are {', '.join(kinds)}"
            )
        self.shape = shape.over(len(found))
        self.mesh = Mesh(np.asarray(found).reshape(astuple(self.shape)), AXES)
        self.everywhere = NamedSharding(self.mesh, PartitionSpec())
        self.batch = NamedSharding(self.mesh, PartitionSpec(BATCH_AXES))
        self.flat = NamedSharding(self.mesh, PartitionSpec(AXES))
        self._paths = jax.tree_util.tree_flatten_with_path(task.shapes)
        if problems := misfits(task, self.shape):
            raise UserMistake("\n".join(problems))
        specs = [task.sharding(leaf_path(keys), tuple(leaf.shape)) for keys, leaf in self._paths[0]]
        self.leaves = [
            NamedSharding(self.mesh, self.filled_in(tuple(leaf.shape), spec))
            for (_, leaf), spec in zip(self._paths[0], specs, strict=True)
        ]

    # --- the split of arrays --------------------------------------------------------------------

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of devices along each axis."""
        return self.shape.sizes

    @cached_property
    def hosts(self) -> int:
        """The number of processes that the devices belong to."""
        return len({each.process_index for each in self.mesh.devices.flat})

    @property
    def shared(self) -> bool:
        """Whether the devices belong to several hosts."""
        return self.hosts > 1

    @property
    def several(self) -> bool:
        """Whether there is more than one device."""
        return self.mesh.size > 1

    def filled_in(self, shape: tuple[int, ...], spec: PartitionSpec | None) -> PartitionSpec:
        """Return the spec with its largest divisible open axis split over fsdp.

        Without a spec, all axes are open.
        """
        return filled_in(shape, spec, self.sizes)

    @property
    def params(self) -> Params:
        """The sharding of each leaf of the parameters, as a tree."""
        return jax.tree.unflatten(self._paths[1], self.leaves)

    def alike(self, tree: Any) -> Any:
        """Return shardings of a tree that holds trees like the parameters, such as optimizer state.

        A leaf is sharded as the parameter whose path its own ends in; other leaves are replicated.
        """
        parameters = [
            (tuple(keys), tuple(leaf.shape), where)
            for (keys, leaf), where in zip(self._paths[0], self.leaves, strict=True)
        ]

        def of(keys: Any, leaf: Any) -> NamedSharding:
            for path, shape, where in parameters:
                if tuple(leaf.shape) == shape and tuple(keys)[len(keys) - len(path) :] == path:
                    return where
            return self.everywhere

        return jax.tree_util.tree_map_with_path(of, tree)

    # --- batches ----------------------------------------------------------------------------------

    @property
    def ways(self) -> int:
        """The number of parts in which a batch is split."""
        return math.prod(self.sizes[name] for name in BATCH_AXES)

    def check_batch(self, windows: int) -> None:
        """Check that a batch of that many windows can be split evenly.

        Errors: `UserMistake` if it cannot.
        """
        if windows % self.ways:
            raise UserMistake(
                f"a batch of {windows} cannot be split over {self.ways} devices, mesh = "
                f"{self.shape}: make the island's batch_size a multiple of {self.ways}"
            )

    def rows(self, windows: int) -> NDArray[np.bool_]:
        """Return which windows of a batch lie on this host's devices."""
        is_own = np.zeros(windows, np.bool_)
        for index in self.batch.addressable_devices_indices_map((windows,)).values():
            is_own[index] = True
        return is_own

    def split(self, batch: Batch) -> Batch:
        """Place a batch; this host puts its own rows on its own devices."""
        return jax.tree.map(lambda x: self.put(np.asarray(x), self.batch), batch)

    # --- flat fragments ---------------------------------------------------------------------------

    def padded(self, size: int) -> int:
        """Return the padded elements of a flat fragment: whole blocks on each device if several."""
        return self.parting.padded(size)

    @property
    def parting(self) -> Split:
        """The split of flat arrays over devices and hosts."""
        return Split(self.mesh.size, jax.process_count() if self.shared else 1)

    def own(self, size: int) -> slice:
        """Return the range of a fragment of this size that is on this host's devices."""
        return self.parting.own(size, *self._mine)

    @cached_property
    def _mine(self) -> tuple[int, int]:
        """The number of this host's first device in the mesh, and how many devices it has."""
        process = jax.process_index()
        numbers = [
            i for i, device in enumerate(self.mesh.devices.flat) if device.process_index == process
        ]
        return numbers[0], len(numbers)

    def place_flat(self, own: Flat, size: int) -> jax.Array:
        """Place a fragment of this size, of which `own` is this host's range; a copy."""
        padded, own_range = self.padded(size), self.own(size)
        if not self.several:
            return jax.device_put(jax.numpy.array(own), self.flat)

        def cut(index: tuple[slice, ...] | None) -> Flat:
            assert index is not None
            start, stop, _ = index[0].indices(padded)
            block = np.zeros(stop - start, np.float32)
            elements = own[start - own_range.start : max(0, stop - own_range.start)]
            block[: elements.size] = elements
            return block

        return jax.make_array_from_callback((padded,), self.flat, cut)

    def put(self, array: NDArray[Any], where: NamedSharding) -> jax.Array:
        """Copy an array to the devices; each host reads what its own devices will hold."""
        if not self.several:
            return jax.device_put(jax.numpy.array(array), where)
        return jax.make_array_from_callback(
            array.shape, where, lambda index: np.array(array[index])
        )

    def everyones(self, array: NDArray[Any]) -> Any:
        """Return an array that is equal on all hosts as one that every device has."""
        return self.put(array, self.everywhere) if self.shared else array

    @property
    def zeros(self) -> Params:
        """Parameters that are all zero, made on the devices."""
        return self._zeros()

    @cached_property
    def _zeros(self) -> Callable[[], Params]:
        _, structure = self._paths
        shapes = [leaf for _, leaf in self._paths[0]]
        return jax.jit(
            lambda: jax.tree.unflatten(
                structure, [jax.numpy.zeros(leaf.shape, leaf.dtype) for leaf in shapes]
            ),
            out_shardings=self.params,
        )


def placed(devices: Devices, tree: Any) -> Any:
    """Place arrays of any shapes; of each, the largest axis that divides is split over fsdp."""

    def one(leaf: Any) -> Any:
        spec = devices.filled_in(np.shape(leaf), None)
        return devices.put(np.asarray(leaf), NamedSharding(devices.mesh, spec))

    return jax.tree.map(one, tree)


def on_host(array: jax.Array) -> NDArray[Any]:
    """Return this host's part, in order, of an array that is split along its first axis."""
    if array.is_fully_addressable:
        return np.asarray(array)
    parts = {part.index[0].start or 0: part.data for part in array.addressable_shards}
    return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])
