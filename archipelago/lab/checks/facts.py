"""The truth about a run besides its events, and the error for a broken invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from coordinator.errors import BrokenInvariant
from coordinator.protocol import ContributionId, Life, Region


class Poison(StrEnum):
    """A kind of damage to the deltas of a learner."""

    NAN = "nan"
    """The deltas are not finite."""
    LOUD = "loud"
    """The deltas are a thousand times too large."""
    FLIPPED = "flipped"
    """The deltas have the wrong sign."""
    ROTTEN = "rotten"
    """The deltas are finite when they are measured, and not when they are merged."""
    COUNTERS = "counters"
    """The counters are impossible."""
    LAYOUT = "layout"
    """The deltas have another layout."""
    FUTURE = "future"
    """The base is a version that does not exist."""
    LYING = "lying"
    """One number of a hand-in is changed, and so are numbers in other messages of the learner."""


class Violation(BrokenInvariant):
    """A broken invariant: its name, and what was observed."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(name, words)
        self.name = name

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"


TokenWindow = tuple[Region | None, int]
"""A window of one region's corpus: the region and the window's number."""


class ContributionTruth(NamedTuple):
    """The truth about one contribution."""

    poison: Poison | None
    """The damage to it; None if it is healthy."""
    windows: tuple[TokenWindow, ...]
    """The windows that it was trained on."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The known facts of the world outside the rules.

    The simulator has all of them. The defaults are for a real run, which has none of them, so that
    the checks that need a fact are skipped.
    """

    made: Callable[[ContributionId], ContributionTruth | None] = lambda contribution: None
    """The truth about a contribution; None if it is unknown."""
    excused: Callable[[Life, float, float], bool] = lambda life, from_s, to_s: True
    """Whether a life had a reason to miss a request between two times of the syncer's clock."""
    lied: Callable[[Life], bool] = lambda life: True
    """Whether a message of this life may have been untrue."""
    fastest_s: Callable[[Life], float] = lambda life: 0.0
    """The shortest step of this life's island, in seconds; 0 if it is not known."""
