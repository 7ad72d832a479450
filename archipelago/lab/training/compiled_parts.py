"""The compiled parts of a virtual run, shared by all islands and runs that can use the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from cluster.config.schema import Config, IslandGroup
from cluster.shard.own_code import own_problems
from cluster.workers.assembly import (
    layout_for,
    optimizer_of,
    optimizer_problems,
    sharing_of,
    task_of,
)
from coordinator.errors import UserMistake
from coordinator.fragments import Layout
from islands.adopt import AdoptRule, FragmentPort
from islands.inner import Inner
from islands.mesh import Devices
from islands.moments import MomentSharing
from islands.optimizer import OptimizerSpec
from islands.task import Task

K = TypeVar("K")
V = TypeVar("V")
KEPT = 8
"""The compiled steps and fragment ports that are kept for the next run of the same process."""
_inner: dict[tuple[str, OptimizerSpec], Inner] = {}
_sharing: dict[tuple[str, str, OptimizerSpec, int], MomentSharing | None] = {}
_ports: dict[tuple[str, AdoptRule, float], FragmentPort] = {}


@dataclass(frozen=True, slots=True)
class CompiledParts:
    """The parts that all islands of a run share."""

    task: Task
    layout: Layout
    inner: Inner
    """The inner step, compiled for each shape of batch."""
    inners: Mapping[str, Inner]
    """Inner step of each group, by its name: with the group's own rates and type."""
    tasks: Mapping[str, Task]
    """Task of each group, by its name: with the data of the group's region."""
    port: FragmentPort
    """The port that cuts fragments out of the parameters, and puts them back."""
    sharing: MomentSharing | None
    """The sharing of first moments; None if they are not shared."""
    structure: Any
    """The tree structure of the parameters."""


def compiled_parts(config: Config) -> CompiledParts:
    """Return the compiled parts for a configuration.

    Errors: `UserMistake` if there is no such task, or the user's merge rule or codec fails.
    """
    sync, task = config.sync, task_of(config)
    shapes = task.shapes
    layout = layout_for(config, task, shapes)
    rule, blend = AdoptRule(sync.adopt), sync.blend or 0.0
    inner = inner_of(config, task)
    tasks = {each.group: _task_of_group(config, each, task) for each in config.islands}
    if problems := own_problems(config, layout):
        raise UserMistake("\n".join(problems))
    return CompiledParts(
        task,
        layout,
        inner,
        {
            each.group: inner_of(config.within(each), tasks[each.group], each)
            if each.optimizer.values or each.compute_dtype is not None
            else inner
            for each in config.islands
        },
        tasks,
        _port_of(layout, rule, blend, inner.devices),
        _sharing_of(config, task, layout),
        jax.tree.structure(shapes),
    )


def _task_of_group(config: Config, group: IslandGroup, task: Task) -> Task:
    """Return the task of a group: `task`, unless the group has data or a type of its own."""
    own = config.within(group)
    return task if own is config else task_of(own)


def inner_of(config: Config, task: Task, group: IslandGroup | None = None) -> Inner:
    """Return the compiled step, of a group with its own rates or of all others.

    The step of a preset depends only on its options and the optimizer, so that runs with other
    seeds share it. A user's own task may depend on its data, and is compiled for each run.

    Errors: `UserMistake` if the user's own optimizer cannot train the task, or it has a loop.
    """
    if task.loop is not None:
        raise UserMistake(
            f"task {task.name} trains with a loop of its own, which only runs on Ray have; leave "
            "the loop out in virtual time"
        )
    if problems := optimizer_problems(config, task):
        raise UserMistake("\n".join(problems))
    spec = optimizer_of(config, group)
    if config.task.preset is None:
        return Inner(task, spec)
    key = config.task.model_dump_json(), spec
    if key not in _inner:
        _drop_oldest(_inner)
        _inner[key] = Inner(task, spec)
    return _inner[key]


def _port_of(layout: Layout, rule: AdoptRule, blend: float, devices: Devices) -> FragmentPort:
    key = layout.fingerprint, rule, blend
    if key not in _ports:
        _drop_oldest(_ports)
        _ports[key] = FragmentPort(layout, rule, blend, devices)
    return _ports[key]


def _sharing_of(config: Config, task: Task, layout: Layout) -> MomentSharing | None:
    """Return how moments are shared, which is cached for presets like the step."""
    if config.task.preset is None or config.sync.moments == "own":
        return sharing_of(config, task, layout)
    spec = optimizer_of(config)
    key = config.task.model_dump_json(), layout.fingerprint, spec, config.sync.moments_every
    if key not in _sharing:
        _drop_oldest(_sharing)
        _sharing[key] = sharing_of(config, task, layout)
    return _sharing[key]


def _drop_oldest(kept: dict[K, V]) -> None:
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
