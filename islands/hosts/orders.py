"""The orders of an island's first host to the others, and their answers.

The first host carries the learner state. It announces everything that it does with its devices to
the others, before it does it and in order, and they do the same in that order. So all of them
dispatch the same programs, one after the other, and act at the same step boundaries. Orders that
belong to no boundary (`News`, `FateNotice`) are handled beside that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.protocol import (
    ContributionId,
    Fragment,
    Lease,
    Life,
    Publication,
    Version,
)
from islands.learner_messages import HandOver


@dataclass(frozen=True, slots=True)
class Rehearse:
    """The order to run once through the first actions of a life, so that all is compiled."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a life: fetch the public fragments, and answer `Fetched` with their versions."""

    life: Life
    keep_moments: bool
    """Whether the life starts with the moments of the life before."""
    given: bool
    """Whether it starts with another island's moments; each host has its share already."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The order to fetch these versions, since other hosts have newer ones, and to answer again."""

    versions: Mapping[Fragment, Version]


@dataclass(frozen=True, slots=True)
class Start:
    """The order to put the versions in place, which all hosts have now."""

    clock: int
    """The learner's clock."""
    shared: tuple[Fragment, ...]
    """Fragments that start with the mean of first moments, since the learner has no moments.

    A host that has found no such mean takes zeros.
    """


@dataclass(frozen=True, slots=True)
class Feed:
    """The order to queue a lease of data."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class InnerStep:
    """The order to take the next batch, and one inner step at this clock."""

    clock: int


@dataclass(frozen=True, slots=True)
class CutOut:
    """The order to copy the fragment as it is now, for a hand-in."""

    word: HandOver
    keep: bool
    """Whether it is handed in only once it is asked for."""


@dataclass(frozen=True, slots=True)
class PutIn:
    """The order to put this version of the fragment in place."""

    fragment: Fragment
    version: Version
    keeps: tuple[ContributionId, ...]
    """Contributions that are no part of it and stay in place beside it."""
    mean: bool
    """Whether the mean of first moments that came with it, which all hosts have, is put in, too."""


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The order to copy this leaf of the moments, for another island."""

    donation: int
    """The number under which all leaves of one donation are kept."""
    leaf: int


@dataclass(frozen=True, slots=True)
class Over:
    """The end of the life."""


@dataclass(frozen=True, slots=True)
class News:
    """The news that a version was published; each host fetches its bytes itself."""

    life: Life
    publication: Publication


@dataclass(frozen=True, slots=True)
class FateNotice:
    """The news that a contribution was discarded: its rounding error is the learner's again."""

    contribution: ContributionId


Order: TypeAlias = (
    Rehearse
    | Begin
    | CatchUp
    | Start
    | Feed
    | InnerStep
    | CutOut
    | PutIn
    | CopyOut
    | Over
    | News
    | FateNotice
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The versions that this host has of all fragments."""

    versions: Mapping[Fragment, Version]


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer that this version is on this host's devices, ready to be put in place."""

    life: Life
    fragment: Fragment
    version: Version
    mean: bool
    """Whether the mean of first moments that came with it is there, too."""


@dataclass(frozen=True, slots=True)
class Coming:
    """The news that something this host fetches has come.

    The first host waits for all of it, and reports to the syncer that the island continues.
    """


Word: TypeAlias = Fetched | Placed | Coming
