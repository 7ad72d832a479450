"""The part of the Python API that reaches a run of another process, or of a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archipelago.results import RunResult
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.files import read_figures
from coordinator.errors import RunFailed, UserMistake
from coordinator.protocol import Island

if TYPE_CHECKING:
    import numpy as np

POLL_S = 0.5
"""Seconds between two looks at a run, while `Run.wait` waits for it."""


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
    """A run, reached by its name: `status`, `scale`, `drain`, `save`, `export`, `stop`.

    Every method raises `UserMistake` if the run cannot be reached or refuses.
    """

    name: str
    run_dir: Path | None
    """The run directory; None if it is on another machine."""
    address: str | None = None

    @property
    def live(self) -> bool:
        """True if the run is live, as far as this machine can detect."""
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
        """Request that one island hands in its work and leaves."""
        from cluster.launch.client import drain

        drain(self._reached(), Island(island))

    def save(self, path: Path | str) -> str:
        """Write the current model to a path of the fleet's machine, and return that path."""
        from cluster.launch.client import save

        return save(self._reached(), Path(path).expanduser().absolute())

    def params(self, at: int | None = None) -> dict[str, np.ndarray]:
        """Return the model, live or ended: float32 arrays by the paths of their leaves.

        Args:
            at: The step of the model; by default the newest one. A step other than 0 and the last
                one needs `durability.keep_contributions`.
        """
        from cluster.launch.export import parameters

        return parameters(self._found(), at, name=self._key())

    def export(
        self, path: Path | str, at: int | None = None, *, format: str = "safetensors"
    ) -> str:
        """Write the model to a new path as `archipelago export` does, and return that path.

        Args:
            path: A new folder, or for safetensors a new name that ends with `.safetensors`.
            at: The step of the model; by default the newest one.
            format: `"safetensors"` or `"orbax"`.
        """
        from cluster.launch.export import ExportFormat, export

        if format not in (known := [*ExportFormat]):
            raise UserMistake(f"format = {format!r}: not known; there are {', '.join(known)}")
        kind = ExportFormat(format)
        return export(self._found(), Path(path), at, kind, name=self._key()).path

    def stop(self) -> None:
        """Stop the run gracefully: all islands hand in their work, and it ends with its summary."""
        from cluster.launch.client import stop

        stop(self._reached())

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait until the run has ended, and return its result.

        Raises:
            TimeoutError: It is still running after `timeout_s` seconds.
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
            RunFailed: It is still running, or ended without a summary.
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

    def _found(self) -> runs.Live | Path:
        """Return how to reach the run, or its directory if it has ended."""
        found = runs.reach(self._key(), self.address)
        if isinstance(found, runs.Live):
            found.prepare()
        return found

    def _reached(self) -> runs.Live:
        found = runs.reach(self._key(), self.address)
        if isinstance(found, Path):
            raise UserMistake(f"run {found} is not live; there is nothing to do")
        found.prepare()
        return found
