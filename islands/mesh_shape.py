"""The shape of an island's mesh: how many devices along each axis, and which leaves fit it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from coordinator.errors import UserMistake
from islands.task import Task, leaf_path

DATA, FSDP, TENSOR, EXPERT = AXES = ("data", "fsdp", "tensor", "expert")
BATCH_AXES = (DATA, FSDP, EXPERT)
"""The axes over which a batch is split."""
REST = -1
"""A size that stands for the devices that the other axes leave over."""
OPEN = PartitionSpec.UNCONSTRAINED
"""An axis in a task's `PartitionSpec` that may be split over fsdp, if that divides it."""


@dataclass(frozen=True, slots=True)
class MeshShape:
    """The number of devices along each axis; one of them may be `REST`."""

    data: int
    """Devices over which parameters are repeated."""
    fsdp: int
    """Devices over which parameters are split."""
    tensor: int
    """Devices over which a task splits the work of its layers."""
    expert: int = 1
    """Devices over which a task splits the experts of its layers."""

    def __str__(self) -> str:
        shown = {n: size for n, size in self.sizes.items() if n != EXPERT or size != 1}
        return "{" + ", ".join(f"{name} = {size}" for name, size in shown.items()) + "}"

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of devices along each axis."""
        return dict(zip(AXES, astuple(self), strict=True))

    def over(self, devices: int) -> MeshShape:
        """Return the shape with the rest filled in.

        Errors: `UserMistake` if this number of devices does not form such a mesh.
        """
        sizes = astuple(self)
        known = math.prod(size for size in sizes if size != REST)
        rest, left = divmod(devices, known)
        filled = [rest if size == REST else size for size in sizes]
        if left or math.prod(filled) != devices:
            raise UserMistake(
                f"mesh = {self} is of {'a multiple of ' if REST in sizes else ''}{known} devices, "
                f"and the island has {devices}; give sizes whose product is {devices}, or leave "
                "one at -1, the rest"
            )
        return MeshShape(*filled)


def misfits(task: Task, mesh: MeshShape) -> list[str]:
    """Return the task's shardings that such a mesh cannot have, in words; empty if none."""
    problems = list[str]()
    for keys, leaf in jax.tree_util.tree_flatten_with_path(task.shapes)[0]:
        path, sides = leaf_path(keys), tuple(leaf.shape)
        if (spec := task.sharding(path, sides)) is not None:
            problems += _misfit(mesh, path, sides, spec)
    return [f"task {task.name}: {problem}" for problem in problems]


def _misfit(mesh: MeshShape, path: str, shape: tuple[int, ...], spec: PartitionSpec) -> list[str]:
    """Return why a leaf of this shape cannot be split so; empty if it can."""
    sizes = mesh.sizes
    wanted = f"{path or 'the parameter'}, {list(shape)}, cannot be split as {spec}"
    if len(spec) > len(shape):
        return [f"{wanted}: it has {len(shape)} axes"]
    named = [name for part in spec for name in names_of(part)]
    if unknown := [name for name in named if name not in AXES]:
        return [f"{wanted}: a mesh has no axis {unknown[0]!r}, only {', '.join(AXES)}"]
    if twice := [name for name in AXES if named.count(name) > 1]:
        return [f"{wanted}: {twice[0]} is named twice"]
    return [
        f"{wanted}: its axis of {side} does not divide by {ways}, mesh = {mesh}"
        for side, part in zip(shape, spec, strict=False)
        if side % (ways := math.prod(sizes[name] for name in names_of(part)))
    ]


FSDP_OVER_ALL = MeshShape(data=1, fsdp=REST, tensor=1)


def filled_in(
    shape: tuple[int, ...], spec: PartitionSpec | None, sizes: Mapping[str, int]
) -> PartitionSpec:
    """Return the spec with its largest divisible open axis split over fsdp.

    Without a spec, all axes are open. `sizes`: the number of devices along each axis.
    """
    parts: list[Any] = [*(spec if spec is not None else [OPEN] * len(shape))]
    ways = sizes[FSDP]
    free = [i for i, part in enumerate(parts) if part is OPEN and shape[i] and not shape[i] % ways]
    split = max(free, key=lambda i: shape[i], default=None)
    return PartitionSpec(
        *(FSDP if i == split else None if part is OPEN else part for i, part in enumerate(parts))
    )


def names_of(part: Any) -> tuple[str, ...]:
    """Return the axes of the mesh that one entry of a `PartitionSpec` names."""
    if part is None or part is OPEN:
        return ()
    return part if isinstance(part, tuple) else (part,)
