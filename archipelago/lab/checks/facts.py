"""What can be known of a run besides its events, and what is raised when an invariant is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from coordinator.errors import BrokenInvariant
from coordinator.protocol import ContributionId, Life, Region


class Poison(StrEnum):
    """What is wrong with the deltas of a learner."""

    NAN = "nan"  # they are not finite
    LOUD = "loud"  # a thousand times too large
    FLIPPED = "flipped"  # of the wrong sign
    ROTTEN = "rotten"  # finite when they are measured, and not when they are merged
    COUNTERS = "counters"  # with counters that cannot be
    LAYOUT = "layout"  # of another layout
    FUTURE = "future"  # with a base that does not exist
    LYING = "lying"  # with a number that is another one; so are those of its other words


class Violation(BrokenInvariant):
    """Something that may never happen has happened: the invariant's name, and what was seen."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(name, words)
        self.name = name

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"


TokenWindow = tuple[Region | None, int]
"""One window of one region's corpus."""


class ContributionTruth(NamedTuple):
    """The truth about one contribution: what is wrong with it, and which windows it was made of."""

    poison: Poison | None
    windows: tuple[TokenWindow, ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of the world outside the rules; of a real run nothing is, and what hangs on it
    is left open.

    `made`: of a contribution, None if it is not known. `excused`: had this life a reason to miss
    what was asked of it between these times, in seconds of the syncer's clock? `lied`: may a word
    of this life have been untrue? `fastest_s`: the shortest step of this island, in seconds; 0 if
    that is not known.
    """

    made: Callable[[ContributionId], ContributionTruth | None] = lambda said: None
    excused: Callable[[Life, float, float], bool] = lambda life, from_s, to_s: True
    lied: Callable[[Life], bool] = lambda life: True
    fastest_s: Callable[[Life], float] = lambda life: 0.0
