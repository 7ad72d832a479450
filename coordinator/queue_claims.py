"""The vocabulary of a cluster's queue: the runs that it decides about, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coordinator.machine_room import IslandNodes, Need
from coordinator.protocol import Island


class Standing(StrEnum):
    """The position of a run in the life that the queue sees."""

    QUEUED = "queued"  # it holds nothing, and asks whether it may start
    STARTING = "starting"  # it may start, and its islands are not placed yet
    LIVE = "live"  # its fleet decides which islands are placed


@dataclass(frozen=True, slots=True)
class ClaimedIsland:
    """One island of a run in the queue's table."""

    island: Island
    need: Need
    takeable: bool = False
    """Whether a run of higher priority may take its machines."""
    holds: IslandNodes = ()
    """The nodes that it holds, also while it hands in its work; empty: none."""
    withheld: bool = False
    """Whether it was taken from its run, and is not back."""


@dataclass(frozen=True, slots=True)
class RunClaim:
    """One run in the queue's table."""

    run: str
    owner: str
    priority: int
    """Importance: runs with a larger number come first."""
    since_s: float
    """The time of submission, in seconds since 1970."""
    standing: Standing
    islands: tuple[ClaimedIsland, ...]
    """The islands that the run should have, the most important first."""
    least: int = 1
    """Islands without which it cannot merge: its quorum."""

    @property
    def rank(self) -> tuple[int, float, str]:
        """The position in the order of runs; a smaller one comes first."""
        return -self.priority, self.since_s, self.run

    @property
    def firm(self) -> tuple[ClaimedIsland, ...]:
        """The islands that no other run may take."""
        return tuple(each for each in self.islands if not each.takeable)

    @property
    def required(self) -> tuple[ClaimedIsland, ...]:
        """The islands without which the run does not start.

        These are the firm ones, and as many others as its quorum needs on top.
        """
        firm, others = self.firm, [each for each in self.islands if each.takeable]
        return (*firm, *others[: max(0, self.least - len(firm))])

    @property
    def optional(self) -> tuple[Island, ...]:
        """The islands without which the run starts; they follow once there is room for them."""
        required = {each.island for each in self.required}
        return tuple(each.island for each in self.islands if each.island not in required)

    @property
    def own(self) -> tuple[ClaimedIsland, ...]:
        """The islands that an admitted run keeps, whatever the other runs need."""
        return self.required if self.standing is Standing.STARTING else self.firm

    def __str__(self) -> str:
        return f"run {self.run} (priority {self.priority})"


class QueueVerdict(StrEnum):
    """The answer to a queued run."""

    START = "start"
    WAIT = "wait"
    REFUSE = "refuse"  # it can never start under the quota of its owner


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """A verdict with its reason."""

    verdict: QueueVerdict
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The queue's decision about all runs at one moment."""

    answers: Mapping[str, QueueAnswer]
    """The answer to each queued run."""
    withheld: Mapping[str, Mapping[Island, str]]
    """For each live run the islands that it must do without, with the reasons."""


UNDECIDED = Decision({}, {})
"""The decision before the first look."""
