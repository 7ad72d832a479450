"""What can be known of a run besides its events, and what is raised when an invariant is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from coordinator.errors import BrokenInvariant
from coordinator.protocol import ContributionId, Life, Region


class Trouble(StrEnum):
    """What can go wrong; cluster/sim/from_config.py has those that a configuration can ask for."""

    CRASH = "crash"  # a process dies, and Ray says so
    VANISH = "vanish"  # ... and nobody says so for a while
    HANG = "hang"  # a process stands still, then goes on as if nothing had been
    STUCK = "stuck"  # its step does not end for a while, and it says that it is there
    SLOW = "slow"  # its steps take so many times as long
    CUT_UP = "cut-up"  # the learner cannot be heard
    CUT_DOWN = "cut-down"  # the learner cannot hear
    CUT = "cut"  # neither
    LOSS = "loss"  # messages get lost
    TWICE = "twice"  # messages come twice, the second one late
    DELAY = "delay"  # messages take long, and overtake one another
    ECHO = "echo"  # words said long ago come again
    NAN = "nan"  # poisoned: the deltas are not finite
    INCURABLE = "incurable"  # ... in every later life of the process too
    LOUD = "loud"  # ... a thousand times too large
    FLIPPED = "flipped"  # ... of the wrong sign
    ROTTEN = "rotten"  # ... finite when they are measured, and not when they are merged
    COUNTERS = "counters"  # ... with counters that cannot be
    LAYOUT = "layout"  # ... of another layout
    FUTURE = "future"  # ... with a base that does not exist
    JUMP = "jump"  # the syncer's clock jumps forward
    DISK = "disk"  # nothing can be made durable
    SLOW_DISK = "slow-disk"
    SLOW_SHARD = "slow-shard"
    DRAIN = "drain"  # an island shall leave; it comes back later
    RUMOUR = "rumour"  # the shell believes a life lost that is not
    DOUBLE = "double"  # a second process joins under the same name
    STRAY = "stray"  # a drain of nobody, a join of another layout
    RESTART = "restart"  # the syncer dies and comes back from what is durable
    SHARD = "shard"  # the process of some fragments dies, and the syncer lives on


class Violation(BrokenInvariant):
    """Something that may never happen has happened: the invariant's name, and what was seen."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(name, words)
        self.name = name

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"


TokenWindow = tuple[Region | None, int]
"""One window of one region's corpus."""


class Made(NamedTuple):
    """The truth about one contribution: what is wrong with it, and which windows it was made of."""

    poison: Trouble | None
    windows: tuple[TokenWindow, ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of the world outside the rules; of a real run nothing is, and what hangs on it
    is left open.

    `made`: of a contribution, None if it is not known. `excused`: had this life a reason to miss
    what was asked of it between these times, in seconds of the syncer's clock?
    """

    made: Callable[[ContributionId], Made | None] = lambda said: None
    excused: Callable[[Life, float, float], bool] = lambda life, from_s, to_s: True
