"""The functions of the Python API that start, reach and judge runs.

>>> import archipelago
>>> result = archipelago.run("run.toml", {"run.steps": 100})
>>> result.heldout_loss
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.config.load import Draft, draft, read
from cluster.config.schema import Config
from cluster.config.toml import toml_value
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.files import read_figures
from coordinator.errors import RunFailed, UserMistake
from coordinator.protocol import Island

if TYPE_CHECKING:
    import numpy as np

    from archipelago.lab.planner.plan import Plan
    from archipelago.lab.study.result import Result as StudyResult
    from cluster.launch.job import Job

ConfigLike = Config | Mapping[str, Any] | Path | str
"""A configuration: a validated one, the tables of a TOML file, or the path of such a file."""
Overrides = Mapping[str, object]
"""Values that replace those of the configuration, by their path: `{"sync.every": 8}`."""
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run that has ended."""

    run_dir: Path
    """The directory with model, summary, metrics and log."""
    summary: Mapping[str, Any]
    """Every figure of `summary.json`."""

    @property
    def heldout_loss(self) -> float:
        """The held-out loss of the final model, in nats per token."""
        return float(self.summary["heldout_loss"])

    @property
    def model_path(self) -> Path:
        """The path of the model, a safetensors file with one array for each parameter."""
        return self.run_dir / "model.safetensors"

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the final model: float32 arrays by the paths of their leaves."""
        from safetensors.numpy import load_file

        return load_file(self.model_path)


def run(
    config: ConfigLike,
    overrides: Overrides | None = None,
    *,
    run_dir: Path | str | None = None,
    address: str = "local",
    resume: bool = False,
    from_stored: bool = False,
    on_status: Callable[[RunStatus], None] | None = None,
) -> RunResult:
    """Train to the end and return the result.

    The run belongs to this process: Ctrl-C ends it gracefully, and a second Ctrl-C at once.

    Args:
        config: A path, the tables of a TOML file, or a `Config`.
        overrides: Values that replace those of the configuration.
        run_dir: Where to write; a new or empty directory. By default `runs/NAME-DATE-TIME`.
        address: `"local"` starts Ray on this machine and stops it at the end; `"auto"` or
            `"HOST:PORT"` uses a Ray cluster.
        resume: Continue a run that died, in its directory.
        from_stored: With `resume`, continue from the newest stored version of each fragment.
        on_status: Called about once a second with the status of the run.

    Raises:
        UserMistake: The configuration, the task or the data are wrong; nothing was started.
        RunFailed: The run could not be completed; it can be resumed.
    """
    from cluster.launch.interrupts import Interrupts
    from cluster.launch.preflight import enter
    from cluster.launch.run import run as launch

    if from_stored and not resume:
        raise UserMistake("from_stored says how a run goes on: give resume=True as well")
    checked, origin = _draft(config, overrides)
    chosen = None if run_dir is None else Path(run_dir)
    config, chosen, layout = enter(checked, origin, chosen, _now(), resume=resume, owned=True)
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
        )
    return RunResult(chosen, outcome.summary)


def submit(
    config: ConfigLike,
    overrides: Overrides | None = None,
    *,
    address: str,
    working_dir: Path | str | None = None,
) -> Submission:
    """Hand a run over to a Ray cluster as a job, and return at once.

    Args:
        config: A path, the tables of a TOML file, or a `Config`.
        overrides: Values that replace those of the configuration.
        address: The cluster's job server, such as `"http://HEAD:8265"`.
        working_dir: A folder to send along, with the code of your task.

    Raises:
        UserMistake: The configuration is wrong, or the cluster refuses the job.
    """
    from cluster.launch import job

    folder = None if working_dir is None else Path(working_dir)
    checked, origin = _draft(config, overrides)
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


def connect(name: str | Path | None = None, *, address: str | None = None) -> Run:
    """Return a run that this process does not own, live or ended.

    Args:
        name: Its directory or its name; by default the newest run of this machine.
        address: The Ray cluster that it is in, if it is not of this machine.

    Raises:
        UserMistake: There is no such run.
    """
    found = runs.reach(None if name is None else str(name), address)
    if isinstance(found, Path):
        return Run(found.name, found, address)
    directory = None
    if found.pid:
        directory = runs.here(None if name is None else str(name))
    return Run(found.run, directory, address)


@dataclass(frozen=True, slots=True)
class Run:
    """A run, reached by its name: the commands `status`, `scale`, `drain`, `save`, `stop`.

    Every method raises `UserMistake` if the run cannot be reached or refuses.
    """

    name: str
    run_dir: Path | None
    """Its directory, if that is on this machine."""
    address: str | None = None

    @property
    def live(self) -> bool:
        """Whether the run goes on, as far as this machine can tell."""
        return self.run_dir is None or runs.live_of(self.run_dir) is not None

    def status(self) -> RunStatus:
        """Return the status of the run; if it has ended, the last one."""
        from cluster.launch.status_stream import looks

        with closing(looks(self._key(), self.address, POLL_S)) as seen:
            return next(seen)

    def scale(self, groups: Mapping[str, int]) -> None:
        """Set the number of islands of these groups: all of them, or none if one is refused."""
        from cluster.launch.client import scale

        scale(self._reached(), groups)

    def drain(self, island: str) -> None:
        """Have one island hand in its work and leave."""
        from cluster.launch.client import drain

        drain(self._reached(), Island(island))

    def save(self, path: Path | str) -> str:
        """Write the current model to a path of the fleet's machine, and return that path."""
        from cluster.launch.client import save

        return save(self._reached(), Path(path).expanduser().absolute())

    def stop(self) -> None:
        """Have all islands hand in their work, and the run end with its summary."""
        from cluster.launch.client import stop

        stop(self._reached())

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait until the run has ended, and return its result.

        Raises:
            TimeoutError: It goes on after `timeout_s` seconds.
            RunFailed: It ended without a summary.
            UserMistake: Its directory is not on this machine.
        """
        if self.run_dir is None:
            raise UserMistake(
                f"run {self.name}: its directory is not on this machine; wait for its job, with "
                f"`ray job logs {self.name} --follow`"
            )
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self.live:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(f"run {self.name} has not ended after {timeout_s:g} s")
            time.sleep(POLL_S)
        return self.result()

    def result(self) -> RunResult:
        """Return the result of a run that has ended.

        Raises:
            RunFailed: It goes on, or ended without a summary.
        """
        path = (self.run_dir or Path(self.name)) / runs.SUMMARY
        try:
            summary = read_figures(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            state = "has not ended" if self.live else "has ended without a summary"
            raise RunFailed(f"run {self.name} {state}: there is no {path}") from error
        return RunResult(path.parent, summary)

    def _key(self) -> str:
        return self.name if self.run_dir is None else str(self.run_dir)

    def _reached(self) -> runs.Live:
        found = runs.reach(self._key(), self.address)
        if isinstance(found, Path):
            raise UserMistake(f"run {found} is not live; there is nothing to do")
        found.prepare()
        return found


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of replaying a run from its log."""

    exact: bool
    """Whether everything that could be compared was equal, and something could be."""
    events: int
    """The number of events in the log."""
    figures: Mapping[str, object]
    """Everything that `archipelago replay --json` prints."""


def replay(run_dir: Path | str) -> ReplayResult:
    """Rebuild a run from its log, compare it with what it left, and check every invariant.

    Raises:
        UserMistake: There is no run in `run_dir`, or it is of a mode without a log of events.
    """
    from archipelago.lab.checks.replay import replay

    figures = replay(Path(run_dir))
    return ReplayResult(figures["exact"] is True, int(str(figures["events"])), figures)


def study(
    path: Path | str,
    overrides: Overrides | None = None,
    *,
    jobs: int = 0,
    on_cell: Callable[[str, float | None], None] | None = None,
) -> StudyResult:
    """Train the missing cells of a study in virtual time, and return the result of all.

    Args:
        path: The study's TOML file.
        overrides: Values that replace those of the file.
        jobs: Processes that train at the same time; 0: one for each core.
        on_cell: Called after each cell with its label and its held-out loss.

    Raises:
        UserMistake: The file is wrong.
    """
    from archipelago.lab.study import training_jobs
    from archipelago.lab.study.cells import CellFiles
    from archipelago.lab.study.plan import read as read_study
    from archipelago.lab.study.result import summed

    asked = read_study(Path(path), _words(overrides))
    files = CellFiles(asked.folder / "cells")
    made = training_jobs.found(files, asked.cells, retry=False)
    missing = {key: cell for key, cell in asked.cells.items() if key not in made}

    def done(key: str, cell: Any) -> None:
        made[key] = cell
        if on_cell is not None:
            on_cell(key, None if cell.failed else float(cell.figure("heldout_loss")))

    training_jobs.make(files, missing, jobs or os.cpu_count() or 1, done)
    return summed(asked, made)


def plan(path: Path | str, *, seed: int = 0) -> Plan:
    """Return how to train on a cluster, and why; nothing is started.

    Args:
        path: The cluster's TOML file: chips, regions, links, and what to train.
        seed: The seed of the simulated failures.

    Raises:
        UserMistake: The file is wrong, or no setting works on this cluster.
    """
    from archipelago.lab.planner.plan import plan as choose
    from cluster.config.machines import load_cluster

    return choose(load_cluster(Path(path)), seed)


def _draft(config: ConfigLike, overrides: Overrides | None) -> tuple[Draft, Path]:
    """Return the configuration with what is wrong with it, and the path that names the run."""
    match config:
        case str() | Path():
            return read(config, _words(overrides)), Path(config)
        case Config():
            tables: Mapping[str, Any] = tomllib.loads(config.toml())
        case _:
            tables = config
    return draft(tables, origin="configuration", overrides=_words(overrides)), Path("run")


def _words(overrides: Overrides | None) -> list[str]:
    """Return overrides as `--set` takes them."""
    return [f"{path}={toml_value(value)}" for path, value in (overrides or {}).items()]


def _now() -> datetime:
    return datetime.now().astimezone()


def _ignore(status: RunStatus) -> None:
    """Do nothing with the status of a run."""
