"""The part of the Python API that reaches a run of another process, or of a cluster."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from archipelago.run_handle import POLL_S, RunHandle
from cluster.launch.exit_message import not_live
from cluster.status import RunStatus
from cluster.storage import runs
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    import numpy as np


def connect(name: str | Path | None = None, *, address: str | None = None) -> ConnectedRun:
    """Return a run that this process does not own, live or ended.

    Args:
        name: Its directory or its name; by default the newest run of this machine.
        address: The Ray cluster that it is in, if it is not of this machine.

    Raises:
        UserMistake: There is no such run.
    """
    found = runs.reach(None if name is None else str(name), address)
    if isinstance(found, Path):
        return ConnectedRun(found.name, found.absolute())
    if found.pid:
        return ConnectedRun(found.run, runs.here(None if name is None else str(name)).absolute())
    return ConnectedRun(found.run, None, address)


class ConnectedRun(RunHandle):
    """A run of another process, reached by its name; `connect` returns it.

    Every method raises `UserMistake` if the run cannot be reached or refuses. `scale`, `drain`,
    `save` and `stop` connect this process to the run's Ray cluster for the length of the call.
    """

    def __init__(self, name: str, run_dir: Path | None, address: str | None = None) -> None:
        """Name a run; `address` is its Ray cluster if it is not of this machine."""
        self._name, self._run_dir = name, run_dir
        self.address = address

    def __repr__(self) -> str:
        return f"ConnectedRun({self._name!r}, {self._run_dir!r}, {self.address!r})"

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._name

    @property
    def run_dir(self) -> Path | None:
        """The run directory; None if it is on another machine."""
        return self._run_dir

    @property
    def live(self) -> bool:
        """True if the run is live, as far as this machine can detect."""
        return self._run_dir is None or runs.live_of(self._run_dir) is not None

    def _status(self) -> RunStatus:
        from cluster.launch.status_stream import status_stream

        with closing(status_stream(self._key(), self.address, POLL_S)) as seen:
            return next(seen)

    def _call(self, call: Literal["scale", "drain", "save"], argument: Any) -> Any:
        found = self._reached()  # before Ray is imported
        from cluster.launch import client

        methods = {"scale": client.scale, "drain": client.drain, "save": client.save}
        return methods[call](found, argument)

    def params(self, at: int | None = None) -> dict[str, np.ndarray]:
        """Return the model, live or ended: float32 arrays by the paths of their leaves.

        Args:
            at: The step of the model; by default the newest one. A step other than 0 and the last
                one needs `durability.keep_contributions`.
        """
        found = self._found()  # it sets Ray's token, which Ray reads when it is imported
        from cluster.launch.export import parameters

        return parameters(found, at, name=self._key())

    def export(
        self, path: Path | str, at: int | None = None, *, format: str = "safetensors"
    ) -> str:
        """Write the model to a new path as `archipelago export` does, and return that path.

        Args:
            path: A new folder, or for safetensors a new name that ends with `.safetensors`.
            at: The step of the model; by default the newest one.
            format: `"safetensors"`, `"orbax"`, or for Gemma models `"hf"`.
        """
        found = self._found()
        from archipelago.lab.checks.audit import lineage_of
        from cluster.launch.export import ExportFormat, export

        if format not in (known := [*ExportFormat]):
            raise UserMistake(f"format = {format!r}: not known; there are {', '.join(known)}")
        kind = ExportFormat(format)
        return export(found, Path(path), at, kind, name=self._key(), lineage=lineage_of).path

    def stop(self) -> None:
        """Stop the run gracefully: all islands hand in their work, and it ends with its summary.

        It returns at once; `wait` waits for the end.
        """
        found = self._reached()
        from cluster.launch.client import stop

        stop(found)

    def _key(self) -> str:
        return self._name if self._run_dir is None else str(self._run_dir)

    def _found(self) -> runs.Live | Path:
        """Return how to reach the run, or its directory if it has ended."""
        found = runs.reach(self._key(), self.address)
        if isinstance(found, runs.Live):
            found.prepare()
        return found

    def _reached(self) -> runs.Live:
        found = runs.reach(self._key(), self.address)
        if isinstance(found, Path):
            raise UserMistake(not_live(found))
        found.prepare()
        return found
