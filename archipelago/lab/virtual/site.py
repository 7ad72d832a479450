"""The state that all parts of a run in virtual time share: clock, islands' places, and syncer."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from archipelago.lab.virtual.event_loop import VirtualLoop, running
from archipelago.lab.virtual.process import LearnerProcess
from cluster.syncer.shell import Syncer
from coordinator.protocol import Island
from coordinator.state import State

C = TypeVar("C", bound=LearnerProcess[Any, Any])
"""The kind of process that runs at a place."""
N = TypeVar("N", bound="IslandPlace[Any]")
"""The kind of place that an island has."""


@dataclass(slots=True)
class IslandPlace(Generic[C]):
    """One island's place: its link, and the process that runs there."""

    island: Island
    process: C | None = None
    started: int = 0
    """The number of processes that have started there."""
    up_cut_s: float = 0.0
    """Messages from the island are lost until this time."""
    down_cut_s: float = 0.0
    """Messages to the island are lost until this time."""
    retired: bool = False
    """Whether the island is no longer wanted, so that no process starts."""


class VirtualSite(Generic[N]):
    """The state that all parts of a run share."""

    def __init__(self, seed: object, places: Iterable[N]) -> None:
        """Create a site; `seed` determines everything random in its processes."""
        self.seed, self.loop = seed, VirtualLoop()
        self.places = {place.island: place for place in places}
        self.syncer: Syncer | None = None  # while it is alive

    def now_s(self) -> float:
        """Return the time on the syncer's clock."""
        return self.loop.now_s

    @contextmanager
    def playing(self) -> Generator[VirtualLoop]:
        """Make the loop the running one; close the syncer and cancel all requests at the end."""
        with running(self.loop), quiet():
            try:
                yield self.loop
            finally:
                if self.syncer is not None:
                    self.syncer.close()
                self.close()
                self.loop.finish()

    def close(self) -> None:
        """Cancel requests that are still open; by default there are none."""

    def failed(self) -> bool:
        """Return whether the syncer has failed."""
        return self.syncer is not None and self.syncer.failure is not None

    def check(self) -> None:
        """Raise what has failed the syncer, if anything did."""
        if self.syncer is not None and self.syncer.failure is not None:
            raise self.syncer.failure


def progress_text(state: State, steps: int) -> str:
    """Return how far a run of `steps` steps has come, and the status of every member."""
    members = [f"{m.life} is {m.status}: {m.why}" for m in state.members.values()]
    return "; ".join([f"{state.phase} at t = {state.t} of {steps}", *members])


@contextmanager
def quiet() -> Generator[None]:
    """Silence the shell's log, whose lines are not needed in thousands of runs."""
    log = logging.getLogger("archipelago.syncer")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled
