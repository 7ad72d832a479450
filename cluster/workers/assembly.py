"""Construction of an island's learner from the configuration: slow parts first, its name last."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax

from cluster.config.rule import group_of, schedule_of, wire_of_moments
from cluster.config.schema import Config, IslandGroup, Machines
from cluster.workers.device_encoder import compile_encoder
from cluster.workers.environment import give_pages_back
from cluster.workers.loop_problems import loop_name
from coordinator.fragments import Layout
from coordinator.own_fragmenting import refragmented
from coordinator.protocol import Anchor, Fragment, Island, Region
from islands.activity_clock import ActivityClock
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.corpus import Stream
from islands.hosts.follower import Follower
from islands.hosts.lead import Lead
from islands.hosts.orders import Order, Word
from islands.initial_model import OtherShapes, started_from
from islands.inner import Inner
from islands.learner import Learner
from islands.link import LearnerSettings, Link
from islands.loop_inner import LoopInner
from islands.loop_task import with_loop
from islands.loop_thread import LoopSeat, LoopThread
from islands.mesh import Devices
from islands.mesh_shape import MeshShape
from islands.moments import MomentSharing, MomentsPort
from islands.optimizer import OptimizerSpec
from islands.optimizer_checks import of_optimizer
from islands.precision import in_precision
from islands.prefetch import Prefetched
from islands.sources import DataSpec, MixtureSource
from islands.task import Params, Task, load_task
from islands.training_batch import reads_own_rows, training_batch
from islands.user_functions import user_function


def data_spec(config: Config) -> DataSpec:
    """Return the data settings of the configuration, for the task."""
    table = config.data.model_dump()
    mixture = tuple(MixtureSource(**each) for each in table.pop("mixture"))
    return DataSpec(**table, mixture=mixture, seed=config.run.seed)


def task_of(config: Config) -> Task:
    """Load the task that the configuration names; its data is read on first use.

    So is the file or checkpoint of `task.init_from`, if the parameters come from one.
    """
    return started(own_task_of(config), config)


def own_task_of(config: Config) -> Task:
    """Load the task as its author made it, with the parameters of its own `init`."""
    table = config.task
    task = load_task(table.preset, table.target, table.options, data_spec(config), table.pickled)
    task = in_precision(task, table.compute_dtype, table.remat)
    return task if table.loop is None else with_loop(task, table.loop)


def started(task: Task, config: Config) -> Task:
    """Return the task with the initial parameters that the configuration names."""
    if (given := config.task.init_from) is None:
        return task
    rule = OtherShapes(config.task.init_other_shapes)
    return started_from(task, given, config.task.init_sha256, rule)


def mesh_of(machines: Machines) -> MeshShape:
    """Return the shape of the device mesh of these machines."""
    return MeshShape(**machines.mesh.model_dump())


def optimizer_of(config: Config, group: IslandGroup | None = None) -> OptimizerSpec:
    """Return the inner optimizer, of a group with its own values or of all others.

    The horizon of its schedule is the number of steps of the run.
    """
    table = config.optimizer.model_dump()
    if group is not None:
        table |= group.optimizer.values
    options = tuple(sorted(table.pop("options").items()))
    return OptimizerSpec(**table, options=options, horizon_steps=config.run.steps)


def optimizer_problems(config: Config, task: Task) -> list[str]:
    """Return why the user's own optimizer or schedule cannot train this task; empty if it can."""
    if task.loop is not None:
        return []
    merges, shares = not config.run.mode.sums_gradients, config.sync.moments == "mean"
    return of_optimizer(optimizer_of(config), task, merges=merges, shares=shares)


def layout_for(config: Config, task: Task, shapes: Params | None = None) -> Layout:
    """Return the layout of a run: the fragments that its configuration asks for.

    `shapes`: the parameters of the task, if the caller has them already.

    Errors: `UserMistake` if the parameters cannot be cut, or the user's own fragmenting fails.
    """
    sync = config.sync
    layout = layout_of(task, sync.fragments, shapes)
    if sync.fragmenting is None:
        return layout
    wanted = "a function (pieces, fragments, **options) -> a number for each piece"
    own = user_function("sync.fragmenting", sync.fragmenting, 2, sync.fragmenting_options, wanted)
    return refragmented(layout, own.call, own.where)


@dataclass(frozen=True, slots=True)
class LearnerParts:
    """The parts of a learner that take long to make, and are the same for its whole group."""

    task: Task
    layout: Layout
    inner: Inner | LoopInner
    """The inner training step, compiled, or the one that a loop of the user's own takes."""
    port: FragmentPort
    """Access to fragments within the parameters, compiled."""
    sharing: MomentSharing | None
    """Sharing of first moments; None if they are not shared."""
    loop: LoopThread | None = None
    """The thread of the user's own loop, which waits to join; None if there is none."""


def sharing_of(
    config: Config, task: Task, layout: Layout, devices: Devices | None = None
) -> MomentSharing | None:
    """Return how first moments are shared; None if they are not."""
    if config.sync.moments == "own":
        return None
    port = MomentsPort(task, layout, optimizer_of(config), devices)
    return MomentSharing(port, config.sync.moments_every)


def compiled(
    config: Config, group: IslandGroup, compiling: Callable[[], None] | None = None
) -> LearnerParts:
    """Import, read and compile everything that a learner of this group needs.

    `compiling` is called before the first compilation.
    """
    task, sync = task_of(config.within(group)), config.sync
    layout = layout_for(config, task)
    devices = Devices(task, mesh_of(group))
    if task.loop is not None:
        return _around_loop(config, group, task, layout, devices, task.loop)
    inner = Inner(task, optimizer_of(config, group), devices, group.accumulate)
    port = FragmentPort(layout, AdoptRule(sync.adopt), sync.blend or 0.0, inner.devices)
    if compiling is not None:
        compiling()
    inner.compile(training_batch(task, group.batch_size))
    port.compile(inner.devices.zeros)
    sharing = sharing_of(config, task, layout, inner.devices)
    if sharing is not None:
        sharing.port.compile(inner.started(inner.devices.zeros, None).opt_state)
    if group.encode == "device":
        compile_encoder(sync.wire_up, layout, inner.devices, port)
    return LearnerParts(task, layout, inner, port, sharing)


def _around_loop(
    config: Config,
    group: IslandGroup,
    task: Task,
    layout: Layout,
    devices: Devices,
    loop: Callable[[], object],
) -> LearnerParts:
    """Compile the ends of the wire around a loop of the user's own, and wait until it joins."""
    thread, sync = LoopThread(loop, loop_name(config), task.shapes), config.sync
    inner = LoopInner(devices, thread)
    port = FragmentPort(layout, AdoptRule(sync.adopt), sync.blend or 0.0, devices, inner.read)
    port.compile(devices.zeros)
    if group.encode == "device":
        compile_encoder(sync.wire_up, layout, devices, port)
    thread.prepare()
    return LearnerParts(task, layout, inner, port, None, thread)


def rehearse(parts: LearnerParts, batch_size: int) -> None:
    """Run once what a life does first, so that nothing is left to be compiled."""
    if isinstance(parts.inner, Inner):
        _warm_up(parts.inner, parts.task, batch_size)
    give_pages_back()  # else memory of compilation stays beside that of training


def _warm_up(inner: Inner, task: Task, batch_size: int) -> None:
    """Start, exchange moments and take one step on a held-out batch, with a model of zeros."""
    batch = training_batch(task, batch_size)
    if inner.devices.shared:
        state = inner.started(inner.devices.zeros, None)
        moments = inner.accept(inner.moments(state))
        jax.block_until_ready((inner.step(state, batch, 0), inner.place_moments(moments)))
        return
    state = inner.start(task.zeros())
    moments = inner.accept(inner.moments(state))
    _, measures = inner.step(state, batch, 0)
    jax.block_until_ready((measures, inner.start(task.zeros(), moments)))


def learner_settings(config: Config, island: Island) -> LearnerSettings:
    """Return the settings of this island's learner."""
    group, sync = group_of(config, island), config.sync
    return LearnerSettings(
        island=island,
        group=group.group,
        wire_up=sync.wire_up,
        wire_moments=wire_of_moments(config),
        moments_every=sync.moments_every,
        schedule=schedule_of(config),
        overlap=sync.least_overlap,
        lease_windows=config.data.lease_windows,
        speed=group.speed,
        step_s=group.step_s,
        anchor=Anchor(sync.anchor),
        encode=group.encode,
        region=None if group.region is None else Region(group.region),
        until=config.run.steps if config.run.mode.lock_step else None,
        seed=config.run.seed,
        wire_down=sync.wire_down,
    )


def stream_of(parts: LearnerParts, batch_size: int) -> Prefetched:
    """Return the island's batches, prefetched.

    With several hosts, each reads only its own rows, if `reads_own_rows`.
    """
    stream, devices = parts.task.stream(batch_size), parts.inner.devices
    if devices.shared and isinstance(stream, Stream) and reads_own_rows(parts.task):
        stream.rows = devices.rows(batch_size)
    return Prefetched(stream)


def ranges_of(parts: LearnerParts) -> dict[Fragment, slice]:
    """Return the range of each fragment that this host holds."""
    sizes = enumerate(parts.layout.sizes)
    return {Fragment(p): parts.inner.devices.own(size) for p, size in sizes}


def assemble_follower(
    config: Config, island: Island, parts: LearnerParts, link: Link, say: Callable[[Word], None]
) -> Follower:
    """Build another host of this island than the first; `say` sends messages to the first one."""
    batch_size = group_of(config, island).batch_size
    assert isinstance(parts.inner, Inner), "a loop has one host"
    return Follower(
        parts.layout,
        parts.inner,
        parts.port,
        lambda: stream_of(parts, batch_size),
        link,
        learner_settings(config, island),
        say,
        lambda: rehearse(parts, batch_size),
        parts.sharing,
    )


def assemble(
    config: Config,
    island: Island,
    parts: LearnerParts,
    link: Link,
    lead: Lead[Order] | None = None,
    clock: ActivityClock | None = None,
) -> Learner:
    """Build a learner that is ready to step and has not joined yet.

    `lead`: sends orders to the other hosts of its island; None if there are none. `clock`: the time
    budget of this process; None: a new one.
    """
    group = group_of(config, island)
    batch_size = group.batch_size
    if parts.loop is not None:
        parts.loop.seat = LoopSeat(island, group.group, config.run.steps)
    return Learner(
        parts.task,
        parts.layout,
        parts.inner,
        parts.port,
        parts.sharing,
        lambda: stream_of(parts, batch_size),
        link,
        learner_settings(config, island),
        now_s=time.perf_counter,
        lead=lead,
        clock=clock,
    )
