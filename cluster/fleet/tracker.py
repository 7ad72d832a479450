"""The interface of a tracker: a place outside the run that keeps its curves, such as W&B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that a tracker follows."""

    name: str
    """The name of the run."""
    run_id: str
    """The identity of the run, stable over `--resume`: letters and digits, at most 64."""
    run_dir: Path
    """The run directory, absolute."""
    config: Mapping[str, Any]
    """The resolved configuration, as nested tables of plain values."""
    resumed: bool
    """Whether an earlier process has tracked the run before."""


class Tracker(Protocol):
    """A tracker of a run. Its methods are called by one thread, which is its own.

    `monitor.track = ["module:attribute"]` names a class or function that returns one without
    arguments. An exception is logged and counted, and never reaches the run.
    """

    def start(self, run: TrackedRun) -> None:
        """Begin to follow a run, once, before anything is logged."""
        ...

    def log(self, values: Mapping[str, float], t: int, tokens: int, unix_s: float) -> None:
        """Keep values by name.

        `t`: the syncer step. `tokens`: tokens trained by all islands. `unix_s`: seconds since 1970.
        """
        ...

    def end(self, summary: Mapping[str, Any]) -> None:
        """Keep the summary of the run; empty if the run has failed. Nothing follows."""
        ...
