"""Builds an island's learner out of the configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cluster.config import Config
from cluster.meaning import group_of, schedule_of
from coordinator.fragments import Layout
from coordinator.protocol import Anchor, Island, Region
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.corpus import DataSpec
from islands.inner import Inner, OptimizerSpec
from islands.learner import Habits, Learner, Link
from islands.task import Task, load_task


def data_spec(config: Config) -> DataSpec:
    return DataSpec(**config.data.model_dump(), seed=config.run.seed)


def task_of(config: Config) -> Task:
    """The task that the configuration names; its data is read when first asked for."""
    task = config.task
    return load_task(task.preset, task.target, task.options, data_spec(config))


def optimizer_of(config: Config) -> OptimizerSpec:
    return OptimizerSpec(**config.optimizer.model_dump(), horizon_steps=config.run.steps)


@dataclass(frozen=True, slots=True)
class Parts:
    """Of a learner: what takes long to make, and what more than one life or learner can use."""

    task: Task
    layout: Layout
    inner: Inner
    port: FragmentPort


def build(config: Config, island: Island, link: Link) -> Learner:
    """A learner, compiled and ready to step, that has not joined yet."""
    return assemble(config, island, compiled(config, island), link)


def compiled(config: Config, island: Island) -> Parts:
    task, group, sync = task_of(config), group_of(config, island), config.sync
    layout = layout_of(task, sync.fragments)
    inner = Inner(task, optimizer_of(config))
    port = FragmentPort(layout, AdoptRule(sync.adopt), sync.blend or 0.0)
    inner.compile(task.heldout(group.batch_size)[0])
    port.compile(task, inner.place)
    return Parts(task, layout, inner, port)


def assemble(config: Config, island: Island, parts: Parts, link: Link) -> Learner:
    group, sync = group_of(config, island), config.sync
    habits = Habits(
        island=island,
        group=group.group,
        wire_up=sync.wire_up,
        schedule=schedule_of(config),
        overlap=sync.overlap,
        lease_windows=config.data.lease_windows,
        speed=group.speed,
        anchor=Anchor(sync.anchor),
        region=None if group.region is None else Region(group.region),
    )
    return Learner(
        parts.task,
        parts.layout,
        parts.inner,
        parts.port,
        lambda: parts.task.stream(group.batch_size),
        link,
        habits,
        now_s=time.perf_counter,
    )
