"""The functions of the Python API that start runs: here, or as a job of a cluster.

>>> import archipelago
>>> result = archipelago.run("run.toml", {"run.steps": 100})
>>> result.heldout_loss
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archipelago.results import RunResult
from archipelago.travelling_task import MakeOptimizer, MakeTask, with_optimizer, with_task
from cluster.config.load import Draft, draft, tables_of
from cluster.config.schema import Config
from cluster.config.toml import toml_value
from cluster.status import RunStatus
from cluster.storage import runs
from coordinator.errors import UserMistake
from islands.data.local_paths import local_path

if TYPE_CHECKING:
    from cluster.launch.job import Job

ConfigLike = Config | Mapping[str, Any] | Path | str
"""A configuration: a validated one, the tables of a TOML file, or the path of such a file."""
Overrides = Mapping[str, object]
"""Values that replace those of the configuration, by their path: `{"sync.every": 8}`."""


def run(
    config: ConfigLike,
    overrides: Overrides | None = None,
    *,
    task: MakeTask | None = None,
    optimizer: MakeOptimizer | None = None,
    run_dir: Path | str | None = None,
    address: str = "local",
    resume: bool = False,
    from_stored: bool = False,
    from_step: int | None = None,
    on_status: Callable[[RunStatus], None] | None = None,
) -> RunResult:
    """Train to the end and return the result.

    The run belongs to this process: Ctrl-C ends it gracefully, and a second Ctrl-C at once.
    The accelerators of this machine belong to the islands. So if this process has not imported JAX
    yet, JAX uses the CPU in it from here on, unless `JAX_PLATFORMS` names another platform.

    Args:
        config: A path, the tables of a TOML file, or a `Config`.
        overrides: Values that replace those of the configuration.
        task: A function `(data: DataSpec, **options) -> Task` in place of the configuration's task.
            It may be defined in a notebook or a script: it is then pickled into the configuration.
        optimizer: An `optax.GradientTransformation`, or a function that returns one, in place of
            the configuration's optimizer. It travels as a task does.
        run_dir: Where to write; a new or empty directory. By default `runs/NAME-DATE-TIME`.
        address: `"local"` starts Ray on this machine and stops it at the end; `"auto"` or
            `"HOST:PORT"` uses a Ray cluster.
        resume: Continue a run that died, in its directory.
        from_stored: With `resume`, continue from the newest stored version of each fragment.
        from_step: With `resume`, go back to the kept state of this syncer step.
        on_status: Called about once a second with the status of the run.

    Raises:
        UserMistake: The configuration, the task or the data are wrong; nothing was started.
        RunFailed: The run could not be completed; it can be resumed.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX reads it when it is imported
    from cluster.launch.interrupts import Interrupts
    from cluster.launch.preflight import enter
    from cluster.launch.run import run as launch
    from cluster.storage.ladder import chosen_rung
    from cluster.storage.open_depot import depot_of

    check_resuming(resume=resume, from_stored=from_stored, from_step=from_step)
    checked, origin = draft_of(config, overrides, task, optimizer)
    chosen = None if run_dir is None else local_path("run_dir", run_dir)
    config, chosen, layout = enter(checked, origin, chosen, _now(), resume=resume, owned=True)
    if from_step is not None:
        chosen_rung(depot_of(config, chosen), from_step)
    result_dir = chosen.absolute()  # the caller may change the working directory
    with Interrupts() as interrupts:
        outcome = launch(
            config,
            chosen,
            layout,
            address=address,
            show=on_status or _ignore,
            interrupts=interrupts,
            resumes=resume,
            from_stored=from_stored,
            from_step=from_step,
        )
    return RunResult(result_dir, outcome.summary)


def check_resuming(*, resume: bool, from_stored: bool, from_step: int | None) -> None:
    """Check that the options of a resumed run belong together; `UserMistake` otherwise."""
    if from_stored and not resume:
        raise UserMistake("from_stored is an option of resume: give resume=True as well")
    if from_step is not None and (not resume or from_stored):
        raise UserMistake("from_step is an option of resume, without from_stored")


def submit(
    config: ConfigLike,
    overrides: Overrides | None = None,
    *,
    address: str,
    task: MakeTask | None = None,
    optimizer: MakeOptimizer | None = None,
    working_dir: Path | str | None = None,
) -> Submission:
    """Hand a run over to a Ray cluster as a job, and return at once.

    Args:
        config: A path, the tables of a TOML file, or a `Config`.
        overrides: Values that replace those of the configuration.
        address: The cluster's job server, such as `"http://HEAD:8265"`.
        task: A function in place of the configuration's task, as in `run`. The cluster must have
            the same version of Python.
        optimizer: An optimizer in place of the configuration's, as in `run`.
        working_dir: A folder to send along, with the modules that your task imports.

    Raises:
        UserMistake: The task does not travel, the configuration is wrong, or the cluster refuses
            the job.
    """
    from cluster.launch import job

    folder = None if working_dir is None else Path(working_dir)
    checked, origin = draft_of(config, overrides, task, optimizer)
    accepted = checked.accepted(job.problems(address, folder))
    name = runs.name_of(accepted, origin, _now())
    return Submission(job.submit(accepted, name, address, folder))


@dataclass(frozen=True, slots=True)
class Submission:
    """A run that was handed over to a cluster."""

    job: Job

    @property
    def name(self) -> str:
        """The name of the run, which is the submission id of its job, too."""
        return self.job.name

    def follow(self, write: Callable[[str], None] = print) -> int:
        """Pass on what the job prints until it ends; return its exit code.

        Raises:
            RunFailed: The cluster could not start the job.
        """
        from cluster.launch.job import follow

        return follow(self.job, write)


def draft_of(
    config: ConfigLike,
    overrides: Overrides | None,
    task: MakeTask | None,
    optimizer: MakeOptimizer | None = None,
) -> tuple[Draft, Path]:
    """Return the configuration with its problems, and the path that names the run.

    `task` and `optimizer`: replace those of the configuration; None: keep that.

    Errors: `UserMistake` if the file cannot be read, or the task does not travel.
    """
    match config:
        case str() | Path():
            tables: Mapping[str, Any] = tables_of(config)
            origin, path = str(config), Path(config)
        case Config():
            tables = tomllib.loads(config.toml())
            origin, path = "configuration", Path("run")
        case _:
            tables, origin, path = config, "configuration", Path("run")
    if task is not None:
        tables = with_task(tables, task)
    if optimizer is not None:
        tables = with_optimizer(tables, optimizer)
    return draft(tables, origin=origin, overrides=override_arguments(overrides)), path


def override_arguments(overrides: Overrides | None) -> list[str]:
    """Return overrides in the notation of `--set`: `a.b=c`.

    Errors: `UserMistake` if a value has no notation in TOML, such as None.
    """
    return [f"{path}={toml_value(_plain(path, each))}" for path, each in (overrides or {}).items()]


def _plain(path: str, value: object) -> object:
    """Return a value as TOML has it: paths as text, numbers of NumPy as numbers of Python.

    Errors: `UserMistake` if TOML has no such value.
    """
    match value:
        case Path():
            return str(value)
        case Mapping():
            return {key: _plain(f"{path}.{key}", each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(path, each) for each in value]
        case bool() | int() | float() | str() | date() | time():
            return float(value) if isinstance(value, float) else value
        case np.generic():
            return value.item()
        case _:
            raise UserMistake(
                f"override {path} = {value!r}: give a value of TOML, not a {type(value).__name__}; "
                "to keep the default, leave it out"
            )


def _now() -> datetime:
    return datetime.now().astimezone()


def _ignore(status: RunStatus) -> None:
    """Do nothing with the status of a run."""
