"""The preflight check of a run: report every problem at once, before anything is started.

`config.load.read` checks a configuration by itself. This module checks it against the world: the
run's directory, the user's code and the data. A check that needs an unsound part of the
configuration is skipped. Only the digest of a model to start from is computed, and an optimizer of
the user's own is tried for two steps. Ray is not started, and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cluster.config.interval_inputs import bounds_of
from cluster.config.load import Draft
from cluster.config.schema import Config, Machines
from cluster.config.values import AUTO
from cluster.fleet.expected_source import check_expected
from cluster.fleet.tracking import check_trackers
from cluster.launch.initial_source import (
    COPY,
    REPORT,
    checked,
    is_durable,
    located,
    with_stored_source,
)
from cluster.names import FLEET
from cluster.package_guard import intruders
from cluster.shard.build import outer_of
from cluster.shard.own_code import own_problems
from cluster.shard.own_sources import with_sources
from cluster.storage import runs
from cluster.storage.layout import same_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.store_check import unusable
from cluster.storage.stored_interval import with_stored_interval
from cluster.workers.assembly import data_spec, layout_for, mesh_of, optimizer_problems, task_of
from cluster.workers.evaluator import EVALUATION_BATCH
from cluster.workers.loop_problems import loop_problems
from coordinator.errors import UserMistake
from coordinator.fragments import Layout, cut
from islands.adopt import layout_of
from islands.mesh_shape import misfits
from islands.sources import find_source
from islands.stream_checks import stream_problems
from islands.task import Params, Task
from islands.trainable import first_heldout, of_loss, of_parameters, shapes_of

T = TypeVar("T")
BEFORE_BEGIN = frozenset({"ray.log", REPORT, COPY})
"""The files that a run directory may have before the run has begun."""
LARGEST_INIT_BYTES = 2**30
"""The largest model, in bytes, that a task may make as a whole for islands of several hosts."""


@dataclass(slots=True)
class _Found:
    """The problems found so far, each once."""

    problems: dict[str, None] = field(default_factory=dict)

    def say(self, *problems: str) -> None:
        """Add problems."""
        self.problems |= dict.fromkeys(problems)

    def ask(self, call: Callable[[], T]) -> T | None:
        """Return the result of `call`; on a `UserMistake`, add the problem and return None."""
        try:
            return call()
        except UserMistake as error:
            self.say(str(error))
            return None


def enter(
    draft: Draft,
    config_path: Path,
    run_dir: Path | None,
    now: datetime,
    *,
    resume: bool = False,
    owned: bool = False,
) -> tuple[Config, Path, Layout]:
    """Return the checked configuration, the run's directory, and the layout of its model.

    If `sync.every` is "auto", a resumed run gets the numbers that it has stored. For a new run the
    layout is the coarsest cut that `launch.auto_interval` may choose.

    `resume`: continue an earlier run. `owned`: the run ends with this process.

    Errors: `UserMistake` with every problem found.
    """
    if foreign := intruders():
        raise UserMistake("\n".join(foreign))
    found, chosen = _Found(), None
    draft = replace(draft, config=with_sources(draft.config))
    if resume and not draft.problems:  # it compares the whole configuration with the run's
        given = draft.config
        kept = found.ask(lambda: with_stored_source(with_stored_interval(given, run_dir), run_dir))
        draft = draft if kept is None else replace(draft, config=kept)
        chosen = found.ask(lambda: runs.resume(draft.config, run_dir))
    elif not resume and draft.sound("run.dir", "run.name", "durability.dir", "regions"):
        chosen = found.ask(lambda: runs.choose(draft.config, config_path, run_dir, now))
    source = draft.config if resume else found.ask(lambda: located(draft.config))
    draft = draft if source is None else replace(draft, config=source)
    config = draft.config
    if owned and any(fault.island == FLEET for fault in config.faults.plan):
        found.say(
            "faults.plan: the fleet of `archipelago run` is not restarted, and the run would end "
            "with it; take its kill out of the plan, or use `archipelago submit`"
        )
    if draft.sound("monitor.track"):
        found.say(*check_trackers(config))
    if draft.sound("sync.outer"):
        found.ask(lambda: outer_of(config))
    layout = _layout(draft, found)
    if draft.sound("sync"):
        found.say(*own_problems(config, layout))
    if source is not None and layout is not None and draft.sound("task"):
        durable = resume and chosen is not None and is_durable(config, chosen)
        config = found.ask(lambda: checked(source, layout.leaves, durable=durable)) or config
    draft.accepted([*found.problems])
    assert chosen is not None, "nothing is left out where nothing was found"
    assert layout is not None, "nothing is left out where nothing was found"
    if resume and not same_layout(depot_of(config, chosen), layout):
        raise UserMistake(
            f"--resume: the model of {chosen} has other tensors than the task makes now; use the "
            "task and the options that the run began with, or start a new run from its weights: "
            f'task.init_from = "run:{chosen}"'
        )
    return config, chosen, layout


def model_layout(config: Config) -> Layout:
    """Return the layout of a configuration's model; the coarsest one if H and P are not chosen yet.

    Errors: `UserMistake` if the task cannot be made.
    """
    task = task_of(config)
    return _cut(config, task, shapes_of(task))


def has_begun(config: Config, run_dir: Path | None) -> bool:
    """Return whether the run has begun, so that `--continue` resumes it.

    The files of a start that was cut off before that are deleted.

    Errors: `UserMistake` if neither the directory nor the name was given, or the durable store
    cannot be used.
    """
    chosen = runs.resumed_dir(config, run_dir)
    try:
        if depot_of(config, chosen).has(runs.CONFIG):
            return True
        there = {each.name for each in chosen.iterdir()} if chosen.is_dir() else set[str]()
        if there <= BEFORE_BEGIN:
            for name in there:
                (chosen / name).unlink()
    except OSError as error:
        raise UserMistake(unusable(config, error)) from error
    return False


def _cut(config: Config, task: Task, shapes: Params) -> Layout:
    """Return the layout; the coarsest one if H and P are not chosen yet."""
    if config.sync.every != AUTO:
        return layout_for(config, task, shapes)
    leaves = layout_of(task, 1, shapes).leaves
    return cut(leaves, bounds_of(config, leaves).least_fragments)


def _of_several_devices(config: Config, task: Task, layout: Layout) -> list[str]:
    """Return what prevents this task from running on several devices or hosts; empty if nothing.

    Islands and the evaluator are checked.
    """
    machines: list[tuple[str, Machines]] = [("monitor.evaluator", config.monitor.evaluator)]
    machines += [(f"islands.{number}", group) for number, group in enumerate(config.islands)]
    problems = [
        f"{where}.mesh: {problem}"
        for where, each in machines
        if each.mesh.devices is not None
        for problem in misfits(task, mesh_of(each))
    ]
    nbytes, several = 4 * layout.parameters, any(each.hosts > 1 for _, each in machines)
    if several and nbytes > LARGEST_INIT_BYTES and task.init_is_whole:
        problems.append(
            f"task {task.name}: init makes {nbytes / 2**30:.2f} GiB at once, and several hosts "
            "are for models that no host has room for: at most "
            f"{LARGEST_INIT_BYTES / 2**30:g} GiB, or give init a method `leaf`"
        )
    return problems


def _layout(draft: Draft, found: _Found) -> Layout | None:
    """Check the task, the model and the data, and return the layout; None if it cannot be made.

    A task of the user's own may read its data as soon as it is made. It is therefore made only if
    the configuration of the data is sound.
    """
    config, task, layout, shapes = draft.config, None, None, None
    is_our_task, data_is_sound = config.task.target is None, draft.sound("data", "run.seed")
    if draft.sound("task.preset", "task.target", "task.options") and (is_our_task or data_is_sound):
        task = found.ask(lambda: task_of(config))
    if task is not None and draft.sound("monitor"):
        found.say(*check_expected(config, task.vocabulary))
    if task is not None and (shapes := found.ask(lambda: shapes_of(task))) is not None:
        unfit = of_parameters(task, shapes)
        found.say(*unfit)
        if not unfit and draft.sound("optimizer", "run.mode", "run.steps", "sync.moments"):
            found.say(*optimizer_problems(config, task), *loop_problems(config, task))
        if not unfit and draft.sound("sync.fragments"):
            layout = found.ask(lambda: _cut(config, task, shapes))
        if layout is not None and draft.sound("islands"):
            found.say(*_of_several_devices(config, task, layout))
    if task is None or not data_is_sound:
        if is_our_task and draft.sound("data.source", "data.column"):
            found.ask(lambda: find_source(data_spec(config)))
        return layout
    for size in sorted({EVALUATION_BATCH, *(group.batch_size for group in config.islands)}):
        stream = found.ask(lambda size=size: task.stream(size))
        first = found.ask(lambda size=size: first_heldout(task, size))
        if first is not None and layout is not None:
            found.say(*of_loss(task, shapes, first))
        if stream is not None and first is not None and not is_our_task:
            windows = config.data.lease_windows
            found.say(*stream_problems(task, stream, size, windows, first))
    return layout
