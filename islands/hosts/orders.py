"""What the first host of an island tells the others, and what they answer.

The first host carries the learner state. Whatever it does with its devices it tells the others
first, in the order in which it does so, and they do the same in that order: so all of them dispatch
the same programs, one after the other, and act at the same step boundaries. Words that are of no
boundary (`News`, `FateNotice`) are heard beside that.
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
    """Go once through what a life does first, so that nothing is left to be compiled."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A life begins: fetch the public fragments, and say of which versions they are (`Fetched`).

    `keep_moments`: those of the life before. `given`: those of another island, of which each host
    has its share already.
    """

    life: Life
    keep_moments: bool
    given: bool


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Some hosts have older versions than others: come to these, and say so again."""

    versions: Mapping[Fragment, Version]


@dataclass(frozen=True, slots=True)
class Start:
    """All have the same versions: put them in place.

    `shared`: fragments whose mean of first moments is what this learner, which has none, begins
    with, at this clock; a host that has found no such mean takes zeros for it.
    """

    clock: int
    shared: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class Feed:
    """Queue a lease of data."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class InnerStep:
    """Take the next batch, and one inner step at this clock."""

    clock: int


@dataclass(frozen=True, slots=True)
class CutOut:
    """Take the fragment as it is now, to be handed in; `keep`: once it is asked for."""

    word: HandOver
    keep: bool


@dataclass(frozen=True, slots=True)
class PutIn:
    """Put this version of the fragment in place, and beside it what was handed in and is no part
    of it (`keeps`); `mean`: with the mean of first moments that came with it, which all hosts
    have."""

    fragment: Fragment
    version: Version
    keeps: tuple[ContributionId, ...]
    mean: bool


@dataclass(frozen=True, slots=True)
class CopyOut:
    """Copy this leaf of the moments, for another island that asks for them; `donation`: the number
    under which all leaves of one question are kept."""

    donation: int
    leaf: int


@dataclass(frozen=True, slots=True)
class Over:
    """The life is over."""


@dataclass(frozen=True, slots=True)
class News:
    """A version has been published; the bytes are to be asked for."""

    life: Life
    publication: Publication


@dataclass(frozen=True, slots=True)
class FateNotice:
    """A contribution was discarded: what it took along is the learner's again."""

    said: ContributionId


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
    """Which versions this host has of all fragments."""

    versions: Mapping[Fragment, Version]


@dataclass(frozen=True, slots=True)
class Placed:
    """This version lies on this host's devices, ready to be put in place in this life; `mean`: and
    beside it the mean of first moments that came with it."""

    life: Life
    fragment: Fragment
    version: Version
    mean: bool


@dataclass(frozen=True, slots=True)
class Coming:
    """Something that this host fetches has come: the first host, which waits for all of it, says to
    the syncer that the island goes on."""


Word: TypeAlias = Fetched | Placed | Coming
