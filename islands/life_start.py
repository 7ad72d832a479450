"""The rule of how a life begins: from which optimizer moments, and why; one rule for all carriers.

A life's parameters are always the public fragments. Its optimizer moments are the first available
of these:

1. those of the life before, unless the syncer distrusts that life;
2. the mean of the islands' first moments, if islands share them;
3. those of a donor, a learner whose life continues;
4. none: the optimizer starts with fresh moments.

The carrier does what `life_start` decides. A fragment without a mean gets fresh moments, and so
does a life to which no donor gives moments that it can use.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.protocol import Island, Life


@dataclass(frozen=True, slots=True)
class Remains:
    """The state that a process still holds of its previous life."""

    moments: bool
    """Whether the process still has the moments of that life; a new process has none."""
    distrusted: bool
    """Whether the syncer distrusts that life (`End.distrusted`)."""


@dataclass(frozen=True, slots=True)
class KeepMoments:
    """The decision to start with the moments of the life before."""

    why: str


@dataclass(frozen=True, slots=True)
class TakeMeans:
    """The decision to start with the mean of the islands' first moments, asked of the shards."""

    why: str


@dataclass(frozen=True, slots=True)
class AskDonors:
    """The decision to ask these learners for moments in order, and use the first that fit."""

    donors: tuple[Life, ...]
    why: str


@dataclass(frozen=True, slots=True)
class StartAnew:
    """The decision to start with the moments of an optimizer that has seen no step."""

    why: str


LifeStart: TypeAlias = KeepMoments | TakeMeans | AskDonors | StartAnew


def life_start(
    remains: Remains, *, island: Island, donors: Sequence[Life], shares_moments: bool
) -> LifeStart:
    """Return the moments that the next life of this island's learner starts with.

    `donors`: as the answer to its Join names them, best first. `shares_moments`: whether islands
    share the mean of their first moments.
    """
    if remains.moments and not remains.distrusted:
        return KeepMoments("the life before has left its moments")
    lacking = "the life before is distrusted" if remains.distrusted else "this process has none"
    if shares_moments:
        return TakeMeans(f"{lacking}, and islands share their first moments")
    if not donors:
        return StartAnew(f"{lacking}, and no learner is named that could give its own")
    return AskDonors(donors_in_turn(island, donors), f"{lacking}, and there are donors")


def donors_in_turn(island: Island, donors: Sequence[Life]) -> tuple[Life, ...]:
    """Return the donors in the order in which this island asks them for moments.

    All islands that join at once receive the same donors, best first. The island's name chooses
    the first one, so that they do not all ask the same donor. The grant itself is not reordered:
    tapes of earlier runs must still replay to the last bit.
    """
    first = zlib.crc32(island.encode()) % max(1, len(donors))
    return (*donors[first:], *donors[:first])
