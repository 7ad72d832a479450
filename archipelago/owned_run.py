"""The part of the Python API that runs in the background, owned by this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Literal

import numpy as np

from archipelago.callbacks import (
    Callbacks,
    CallbackThreads,
    EvaluationEvent,
    IslandLostEvent,
    MergeEvent,
)
from archipelago.child_process import ChildProcess
from archipelago.connection import connect
from archipelago.launching import ConfigLike, Overrides, check_resuming, draft_of
from archipelago.results import RunResult, arrays_of
from archipelago.run_handle import RunHandle
from archipelago.started_run import StartedRun
from archipelago.travelling_task import MakeOptimizer, MakeTask, check_resumed
from cluster.config.schema import Config
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.ladder import chosen_rung
from cluster.storage.open_depot import depot_of
from coordinator.errors import UserMistake
from islands.data.local_paths import local_path


class Run(RunHandle):
    """A run in the background, owned by this process; `start` begins it.

    >>> import archipelago as ap
    >>> with ap.Run("run.toml", {"run.steps": 100}) as run:
    ...     run.start()
    ...     run.scale(local=2)
    >>> run.result().heldout_loss

    The run is in a child process and in processes of Ray, so it continues while this process
    computes or waits. It ends with this process: gracefully, even if this process is killed. A
    block `with` that ends normally waits for the run. A block that ends with an exception, or
    whose wait is ended by Ctrl-C, stops the run gracefully, waits for its end, and lets the
    exception through.

    The accelerators of this machine belong to the islands. Set `JAX_PLATFORMS=cpu` before you
    import JAX in this process, or JAX reserves their memory here.

    Args:
        config: A path, the tables of a TOML file, or a `Config`.
        overrides: Values that replace those of the configuration.
        task: A function `(data: DataSpec, **options) -> Task` in place of the configuration's task.
            It may be defined in a notebook or in `__main__`: it is then pickled into the
            configuration, with all that it uses of that notebook or script.
        optimizer: An `optax.GradientTransformation`, or a function that returns one, in place of
            the configuration's optimizer. It travels as a task does.
        run_dir: Where to write; a new or empty directory. By default `runs/NAME-DATE-TIME`.
        resume: Continue a run that died, in its `run_dir`, with the task that it began with.
        from_stored: With `resume`, continue from the newest stored version of each fragment.
        from_step: With `resume`, go back to the kept state of this syncer step.
        on_merge: Called with a `MergeEvent` for each merge.
        on_evaluate: Called with an `EvaluationEvent` for each point of the held-out curve.
        on_island_lost: Called with an `IslandLostEvent` for each failure of an island.

    The callbacks run in this process, on one thread of their own, up to a second after the event.
    They cannot hold up the run: if they are too slow, events are dropped and counted
    (`callback_counts`). The first exception of each callback is logged, and the run continues.

    Raises:
        UserMistake: The configuration is wrong, or the task does not travel; nothing was started.
    """

    def __init__(
        self,
        config: ConfigLike,
        overrides: Overrides | None = None,
        *,
        task: MakeTask | None = None,
        optimizer: MakeOptimizer | None = None,
        run_dir: Path | str | None = None,
        resume: bool = False,
        from_stored: bool = False,
        from_step: int | None = None,
        on_merge: Callable[[MergeEvent], object] | None = None,
        on_evaluate: Callable[[EvaluationEvent], object] | None = None,
        on_island_lost: Callable[[IslandLostEvent], object] | None = None,
    ) -> None:
        check_resuming(resume=resume, from_stored=from_stored, from_step=from_step)
        draft, self._origin = draft_of(config, overrides, task, optimizer)
        self._config, self._source = draft.accepted(), draft.origin
        self._resume, self._from_stored, self._from_step = resume, from_stored, from_step
        self._wanted_dir = None if run_dir is None else local_path("run_dir", run_dir).absolute()
        self._callbacks = Callbacks(on_merge, on_evaluate, on_island_lost)
        self._started: StartedRun | None = None

    def __repr__(self) -> str:
        state = "not started" if self._started is None else str(self._started.run_dir)
        return f"<archipelago.Run of {self._source}: {state}>"

    def start(self, address: str | None = None) -> Run:
        """Start the run in the background, and return at once.

        `status` and `wait` report what the processes of the run refuse: data, model, or cluster.

        Args:
            address: None or `"local"` starts Ray on this machine and stops it at the end; `"auto"`
                or `"HOST:PORT"` uses a Ray cluster.

        Returns:
            This run.

        Raises:
            UserMistake: It was started already, or its directory cannot be used.
        """
        if self._started is not None:
            raise UserMistake(
                f"run {self.name} was started already; make another Run for a new one"
            )
        config, wanted = self._config, self._wanted_dir
        if self._resume:
            chosen = _resumed(config, wanted, self._from_step)
        else:
            chosen = new_dir(config, self._origin, wanted, datetime.now().astimezone())
        run_dir = chosen.absolute()
        threads = CallbackThreads(run_dir, self._callbacks) if self._callbacks else None
        child = ChildProcess(
            {
                "config": config.toml(),
                "origin": self._source,
                "run_dir": str(run_dir),
                "address": address or "local",
                "resume": self._resume,
                "from_stored": self._from_stored,
                "from_step": self._from_step,
            }
        )
        self._started = StartedRun(run_dir, config, child, threads)
        if threads is not None:
            threads.start()
        return self

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._started is None:
            return
        try:
            if error is None:
                self.wait()
        except KeyboardInterrupt:
            self._started.stop_and_finish()
            raise
        if error is not None:
            self._started.stop_and_finish()

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._begun.run_dir.name

    @property
    def run_dir(self) -> Path | None:
        """The run directory; None before `start`."""
        return None if self._started is None else self._started.run_dir

    @property
    def live(self) -> bool:
        """True from `start` until the processes of the run have ended."""
        return self._started is not None and self._started.child.ending is None

    @property
    def callback_counts(self) -> dict[str, int]:
        """Events that were dropped because callbacks are too slow, and calls that have raised."""
        threads = None if self._started is None else self._started.threads
        counts = (0, 0) if threads is None else (threads.dropped, threads.failed)
        return dict(zip(("dropped", "failed"), counts, strict=True))

    def output(self) -> str:
        """Return the warnings and measurements that the run has printed so far."""
        return self._begun.child.log()

    def stop(self) -> None:
        """Stop the run gracefully: all islands hand in their work, and it ends with its summary.

        It returns at once; `wait` waits for the end. It does nothing if the run has ended.
        """
        self._begun.child.stop()

    def params(self, at: int | None = None) -> dict[str, np.ndarray]:
        """Return the model, as `ConnectedRun.params` does; live, or ended."""
        if at is not None or not self.live:
            return connect(self._begun.run_dir).params(at)
        with TemporaryDirectory(prefix="archipelago-") as folder:
            return arrays_of(Path(self.save(Path(folder) / "model.safetensors")))

    def result(self) -> RunResult:
        """Return the result of a run that has ended.

        Raises:
            UserMistake: The run was refused: its data, its model, or the cluster.
            RunFailed: It is still running, or ended without a summary; it can be resumed.
        """
        ending = self._begun.child.ending
        if ending is None or ending.kind == "finished":
            return super().result()
        raise self._begun.error(ending)

    def _status(self) -> RunStatus:
        return self._begun.status()

    def _call(self, call: Literal["scale", "drain", "save"], argument: Any) -> Any:
        return self._begun.ask(call, str(argument) if call == "save" else argument)

    def _pause(self, seconds: float) -> None:
        self._begun.pause(seconds)

    def _here(self) -> Path:
        return self._begun.run_dir

    @property
    def _begun(self) -> StartedRun:
        if self._started is None:
            raise UserMistake("the run was not started: call start() first")
        return self._started


def new_dir(config: Config, origin: Path, wanted: Path | None, now: datetime) -> Path:
    """Return the directory of a new run; without a wanted one or a name, make it.

    Its name has the time in seconds, so runs that are started in one second get a number behind it.

    Errors: `UserMistake` if it is in use, or cannot be used.
    """
    if wanted is not None or config.run.name:
        return runs.choose(config, origin, wanted, now)
    first = chosen = Path(config.run.dir) / runs.name_of(config, origin, now)
    numbers = count(2)
    while True:
        if not chosen.exists():
            runs.choose(config, origin, chosen, now)
            try:
                chosen.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):  # another process has just made it
                    chosen.mkdir()
                    return chosen
            except OSError as error:
                raise UserMistake(f"run directory {chosen} cannot be made: {error}") from error
        chosen = first.with_name(f"{first.name}-{next(numbers)}")


def _resumed(config: Config, wanted: Path | None, from_step: int | None) -> Path:
    """Return the directory of a run to resume.

    Errors: `UserMistake` if it began with other functions, or has not kept the state of that step.
    """
    chosen = runs.resumed_dir(config, wanted)
    check_resumed(config, chosen / runs.CONFIG)
    if from_step is not None:
        chosen_rung(depot_of(config, chosen), from_step)
    return chosen
