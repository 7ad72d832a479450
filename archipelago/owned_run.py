"""The part of the Python API that runs in the background, owned by this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from archipelago.child_process import ChildProcess, Ending
from archipelago.launching import ConfigLike, Overrides, draft_of
from archipelago.results import RunResult
from archipelago.run_handle import POLL_S, RunHandle
from archipelago.travelling_task import MakeTask
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import RunFailed, UserMistake

if TYPE_CHECKING:
    from archipelago.callbacks import (
        CallbackThreads,
        EvaluationEvent,
        IslandLostEvent,
        MergeEvent,
    )

CALLBACKS_END_S = 2.0
"""Seconds that `wait` grants callbacks for the last events."""


class Run(RunHandle):
    """A run in the background, owned by this process; `start` begins it.

    >>> import archipelago as ap
    >>> with ap.Run("run.toml", {"run.steps": 100}) as run:
    ...     run.start()
    ...     run.scale(local=2)
    >>> run.result().heldout_loss

    The run is in a child process and in processes of Ray, so it goes on while this process computes
    or waits. It ends with this process: gracefully, even if this process is killed. A block `with`
    that ends normally waits for the run; a block that ends with an exception stops it gracefully,
    waits for its end, and lets the exception through.

    The accelerators of this machine belong to the islands. Set `JAX_PLATFORMS=cpu` before you
    import JAX in this process, or JAX reserves their memory here.

    Args:
        config: A path, the tables of a TOML file, or a `Config`.
        overrides: Values that replace those of the configuration.
        task: A function `(data: DataSpec, **options) -> Task` in place of the configuration's task.
            It may be defined in a notebook or in `__main__`: it is then pickled into the
            configuration, with all that it uses of that notebook or script.
        run_dir: Where to write; a new or empty directory. By default `runs/NAME-DATE-TIME`.
        resume: Continue a run that died, in its directory `run_dir`, with the task that it began
            with.
        from_stored: With `resume`, continue from the newest stored version of each fragment.
        on_merge: Called with a `MergeEvent` for each merge.
        on_evaluate: Called with an `EvaluationEvent` for each point of the held-out curve.
        on_island_lost: Called with an `IslandLostEvent` for each failure of an island.

    The callbacks run in this process, on one thread of their own, up to a second after the event.
    They cannot hold up the run: if they are too slow, events are dropped and counted
    (`dropped_events`). The first exception of each callback is logged, and the run continues.

    Raises:
        UserMistake: The configuration is wrong, or the task does not travel; nothing was started.
    """

    def __init__(
        self,
        config: ConfigLike,
        overrides: Overrides | None = None,
        *,
        task: MakeTask | None = None,
        run_dir: Path | str | None = None,
        resume: bool = False,
        from_stored: bool = False,
        on_merge: Callable[[MergeEvent], object] | None = None,
        on_evaluate: Callable[[EvaluationEvent], object] | None = None,
        on_island_lost: Callable[[IslandLostEvent], object] | None = None,
    ) -> None:
        from archipelago.callbacks import Callbacks

        if from_stored and not resume:
            raise UserMistake("from_stored is an option of resume: give resume=True as well")
        draft, self._origin = draft_of(config, overrides, task)
        self._config, self._source = draft.accepted(), draft.origin
        self._resume, self._from_stored = resume, from_stored
        self._wanted_dir = None if run_dir is None else Path(run_dir).absolute()
        self._callbacks = Callbacks(on_merge, on_evaluate, on_island_lost)
        self._run_dir: Path | None = None
        self._child: ChildProcess | None = None
        self._threads: CallbackThreads | None = None

    def __repr__(self) -> str:
        state = "not started" if self._run_dir is None else str(self._run_dir)
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
        from archipelago.callbacks import CallbackThreads

        if self._child is not None:
            raise UserMistake(
                f"run {self.name} was started already; make another Run for a new one"
            )
        config, wanted = self._config, self._wanted_dir
        if self._resume:
            chosen = runs.resumed_dir(config, wanted)
        else:
            chosen = runs.choose(config, self._origin, wanted, datetime.now().astimezone())
        self._run_dir = chosen.absolute()
        if self._callbacks:
            self._threads = CallbackThreads(self._run_dir, self._callbacks)
        self._child = ChildProcess(
            {
                "config": config.toml(),
                "origin": self._source,
                "run_dir": str(self._run_dir),
                "address": address or "local",
                "resume": self._resume,
                "from_stored": self._from_stored,
            }
        )
        if self._threads is not None:
            self._threads.start()
        return self

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is None:
            return
        if error is None:
            self.wait()
            return
        self._child.stop()
        try:
            self._finish(self._child)
        except KeyboardInterrupt:
            self._child.end_now()
            self._finish(self._child)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._started_dir.name

    @property
    def run_dir(self) -> Path | None:
        """The run directory; None before `start`."""
        return self._run_dir

    @property
    def live(self) -> bool:
        """True from `start` until the processes of the run have ended."""
        return self._child is not None and self._child.ending is None

    @property
    def dropped_events(self) -> int:
        """Events that were dropped because callbacks are too slow."""
        return 0 if self._threads is None else self._threads.dropped

    @property
    def failed_callbacks(self) -> int:
        """Calls of callbacks that have raised."""
        return 0 if self._threads is None else self._threads.failed

    def output(self) -> str:
        """Return the warnings and measurements that the run has printed so far."""
        return self._started.log()

    def drain(self, island: str) -> None:
        """Request that one island, such as "local-0", hands in its work and leaves."""
        self._ask("drain", island)

    def save(self, path: Path | str) -> str:
        """Write the current model to a path of the fleet's machine, and return that path."""
        return str(self._ask("save", str(Path(path).expanduser().absolute())))

    def stop(self) -> None:
        """Stop the run gracefully: all islands hand in their work, and it ends with its summary.

        It returns at once; `wait` waits for the end. It does nothing if the run has ended.
        """
        self._started.stop()

    def result(self) -> RunResult:
        """Return the result of a run that has ended.

        Raises:
            UserMistake: The run was refused: its data, its model, or the cluster.
            RunFailed: It is still running, or ended without a summary; it can be resumed.
        """
        ending = self._started.ending
        if ending is None or ending.kind == "finished":
            return super().result()
        raise self._error(ending)

    def _error(self, ending: Ending) -> UserMistake | RunFailed:
        if ending.kind == "mistake":
            return UserMistake(ending.message)
        directory = self._started_dir
        begun = (directory / runs.CONFIG).exists()
        hint = f"; resume it with Run({str(directory / runs.CONFIG)!r}, " if begun else ""
        hint += f"run_dir={str(directory)!r}, resume=True).start()" if begun else ""
        return RunFailed(f"run {self.name} has failed: {ending.message}{hint}")

    def _status(self) -> RunStatus:
        from cluster.launch.remote_status import from_json, status_at

        directory = self._started_dir
        if self.live and (seen := status_at(directory)) is not None:
            return seen
        if (text := last_look(directory / LOOKS)) is not None:
            return from_json(text)
        ending = self._started.ending
        if ending is not None and ending.kind != "finished":
            raise self._error(ending)
        return _starting(self.name, self._config.run.steps, len(self._config.island_names))

    def _scale(self, counts: Mapping[str, int]) -> None:
        self._ask("scale", dict(counts))

    def _ask(self, call: str, *arguments: Any) -> Any:
        """Wait until the run has begun, and pass a request on.

        Errors: `UserMistake` if the run refuses, or has ended.
        """
        child = self._started
        while child.ending is None and runs.live_of(self._started_dir) is None:
            child.wait(POLL_S)
        if child.ending is not None:
            raise UserMistake(f"run {self.name} has ended; there is nothing to do")
        return child.ask(call, *arguments)

    def _pause(self, seconds: float) -> None:
        ending = self._started.wait(seconds)
        if ending is not None and self._threads is not None:
            self._threads.end(CALLBACKS_END_S)

    def _finish(self, child: ChildProcess) -> None:
        while child.ending is None:
            self._pause(POLL_S)

    def _here(self) -> Path:
        return self._started_dir

    @property
    def _started(self) -> ChildProcess:
        if self._child is None:
            raise UserMistake("the run was not started: call start() first")
        return self._child

    @property
    def _started_dir(self) -> Path:
        if self._run_dir is None:
            raise UserMistake("the run was not started: call start() first")
        return self._run_dir


def _starting(name: str, steps: int, islands: int) -> RunStatus:
    """Return the status of a run that has not reported one yet."""
    return {
        "run": name, "t": 0, "steps": steps, "elapsed_s": 0.0, "left_s": None, "phase": "starting",
        "islands": [], "fragments": [], "participants": 0.0, "alive": 0, "merges": 0,
        "tokens_trained": 0, "tokens_per_s": 0.0, "heldout": [], "faults": 0, "wanted": islands,
        "spares": 0, "refusals": {}, "failures": {}, "unjudged": {}, "figures": None,
    }  # fmt: skip
