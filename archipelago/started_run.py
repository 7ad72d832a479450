"""A background run from its start on: its child process, directory, status and callbacks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipelago.callbacks import CallbackThreads
from archipelago.child_process import ChildProcess, Ending
from cluster.config.schema import Config
from cluster.launch.remote_status import from_json, status_at
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import RunFailed, UserMistake

BEGIN_LOOK_S = 0.5
"""Seconds between two looks whether a run has begun."""
CALLBACKS_END_S = 2.0
"""Seconds that callbacks have for the last events."""


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was started: live or ended."""

    run_dir: Path
    """The absolute path of the run directory."""
    config: Config
    """The configuration that it was started with."""
    child: ChildProcess
    """The process that has it."""
    threads: CallbackThreads | None
    """The threads of the callbacks; None if there are no callbacks."""

    def status(self) -> RunStatus:
        """Return the status; if it has ended, the last one.

        Errors: the error that the run ended with, if it ended before its first status.
        """
        if self.child.ending is None and (seen := status_at(self.run_dir)) is not None:
            return seen
        if (text := last_look(self.run_dir / LOOKS)) is not None:
            return from_json(text)
        if (ending := self.child.ending) is not None and ending.kind != "finished":
            raise self.error(ending)
        return starting(self.run_dir.name, self.config)

    def error(self, ending: Ending) -> UserMistake | RunFailed:
        """Return the error of a run that has not finished, with how to resume it."""
        if ending.kind == "mistake":
            return UserMistake(ending.message)
        hint, directory = "", str(self.run_dir)
        if (path := self.run_dir / runs.CONFIG).exists():
            hint = f"; resume it with Run({str(path)!r}, run_dir={directory!r}, resume=True)"
        return RunFailed(f"run {self.run_dir.name} has failed: {ending.message}{hint}")

    def ask(self, call: str, *arguments: Any) -> Any:
        """Wait until the run has begun, and call a method of its fleet.

        Errors: `UserMistake` if the run refuses, or has ended.
        """
        while self.child.ending is None and runs.live_of(self.run_dir) is None:
            self.child.wait(BEGIN_LOOK_S)
        if self.child.ending is not None:
            raise UserMistake(f"run {self.run_dir.name} has ended; there is nothing to do")
        return self.child.ask(call, *arguments)

    def pause(self, seconds: float) -> None:
        """Sleep, or return at the end of the run, with its last events delivered."""
        if self.child.wait(seconds) is not None and self.threads is not None:
            self.threads.end(CALLBACKS_END_S)

    def finish(self) -> None:
        """Wait until the processes of the run have ended, whatever the result."""
        while self.child.ending is None:
            self.pause(BEGIN_LOOK_S)

    def stop_and_finish(self) -> None:
        """Stop the run gracefully and wait for its end; Ctrl-C meanwhile ends it at once."""
        self.child.stop()
        try:
            self.finish()
        except KeyboardInterrupt:
            self.child.end_now()
            self.finish()


def starting(name: str, config: Config) -> RunStatus:
    """Return the status of a run that has not reported one yet."""
    return {
        "run": name, "t": 0, "steps": config.run.steps, "elapsed_s": 0.0, "left_s": None,
        "phase": "starting", "islands": [], "fragments": [], "participants": 0.0, "alive": 0,
        "merges": 0, "tokens_trained": 0, "tokens_per_s": 0.0, "heldout": [], "faults": 0,
        "wanted": len(config.island_names), "spares": 0, "refusals": {}, "failures": {},
        "unjudged": {}, "figures": None,
    }  # fmt: skip
