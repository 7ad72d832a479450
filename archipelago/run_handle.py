"""The methods that every run has in the Python API, whichever process owns it."""

from __future__ import annotations

import json
import logging
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from archipelago.progress import ProgressDisplay, StatusTable
from archipelago.results import RunResult
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.files import read_figures
from cluster.storage.metrics_log import LOOKS
from coordinator.errors import RunFailed, UserMistake
from coordinator.protocol import Island
from islands.data.local_paths import local_path

log = logging.getLogger(__name__)

POLL_S = 0.5
"""Seconds between two looks at a run, while `wait` waits for it."""


class RunHandle(ABC):
    """A run: the commands `status`, `scale`, `drain`, `save`, `stop`, its metrics and its result.

    `Run` is a run of this process, `ConnectedRun` a run of another one. Every method raises
    `UserMistake` if the run cannot be reached or refuses.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the run."""

    @property
    @abstractmethod
    def run_dir(self) -> Path | None:
        """The run directory; None if it is on another machine."""

    @property
    @abstractmethod
    def live(self) -> bool:
        """True if the run is live, as far as this machine can detect."""

    @abstractmethod
    def _status(self) -> RunStatus:
        """Return the status of the run; if it has ended, the last one."""

    @abstractmethod
    def _call(self, call: Literal["scale", "drain", "save"], argument: Any) -> Any:
        """Call a method of the run's fleet, and return its answer."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the run gracefully: all islands hand in their work, and it ends with its summary.

        It returns at once; `wait` waits for the end.
        """

    def status(self) -> RunStatus:
        """Return the status of the run; if it has ended, the last one.

        It is a dictionary. A notebook shows it as a table.
        """
        return StatusTable.of(self._status())

    def scale(self, groups: Mapping[str, int] | None = None, /, **counts: int) -> None:
        """Set the number of islands of these groups: all of them, or none if one is refused.

        Args:
            groups: The number by group, `{"my-group": 6}`.
            counts: Further groups, whose names are Python names: `run.scale(local=6)`.

        Raises:
            UserMistake: A number is not a whole number of 0 or more; or the run refuses it.
        """
        wanted = {**(groups or {}), **counts}
        if not wanted:
            raise UserMistake("scale: name a group and its number of islands, as in local=6")
        self._call("scale", {group: _count(group, count) for group, count in wanted.items()})

    def drain(self, island: str) -> None:
        """Request that one island, such as "local-0", hands in its work and leaves."""
        self._call("drain", Island(island))

    def save(self, path: Path | str) -> str:
        """Write the current model to a path of the fleet's machine, and return that path.

        Raises:
            UserMistake: The path is the address of a bucket.
        """
        return self._call("save", local_path("save", path).expanduser().absolute())

    def metrics(self) -> Any:
        """Return the history of the run: the rows of `metrics.jsonl`, oldest first.

        Each row is a status. Nested tables are columns such as `figures.tokens_merged`; lists, such
        as `islands`, stay lists. In a long run, rows of earlier times are thinned out.

        Returns:
            A `pandas.DataFrame` if pandas is installed, else a list of dictionaries.

        Raises:
            UserMistake: The run directory is not on this machine.
        """
        rows = [*metrics_rows(self._here() / LOOKS)]
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            return rows
        return pandas.DataFrame(rows)

    def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> RunResult:
        """Wait until the run has ended, and return its result.

        Args:
            timeout_s: The most seconds to wait; None: no limit.
            progress: Show the status while waiting: one line of a terminal, or one table of a
                notebook, which is updated.

        Raises:
            TimeoutError: It is still running after `timeout_s` seconds.
            RunFailed: It ended without a summary.
            UserMistake: Its directory is not on this machine.
        """
        self._here()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with ProgressDisplay(enabled=progress) as shown:
            while self.live:
                if deadline_s is not None and time.monotonic() >= deadline_s:
                    raise TimeoutError(f"run {self.name} has not ended after {timeout_s:g} s")
                shown.show(self._status)
                self._pause(POLL_S)
            shown.show(self._status)
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

    def _pause(self, seconds: float) -> None:
        """Sleep, or return early at the end of the run."""
        time.sleep(seconds)

    def _here(self) -> Path:
        """Return the run directory.

        Errors: `UserMistake` if it is not on this machine.
        """
        if self.run_dir is None:
            raise UserMistake(
                f"run {self.name}: its directory is not on this machine; wait for its job, with "
                f"`ray job logs {self.name} --follow`"
            )
        return self.run_dir


def _count(group: str, given: Any) -> int:
    """Return a number of islands. Errors: `UserMistake` if it is none."""
    try:
        count = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        count = -1
    if count < 0:
        raise UserMistake(f"scale: {group} = {given!r}: give a whole number of islands, 0 or more")
    return count


def metrics_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a metrics log, flat; nothing if the file is not there yet.

    A fleet that ends while it writes leaves a torn line. It is left out with a warning.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # it is being written
                try:
                    row = dict(_flat(json.loads(line), ""))
                except (ValueError, AttributeError):
                    log.warning("%s: line %d is damaged, and is left out", path, number)
                else:
                    yield row
    except FileNotFoundError:
        return


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
