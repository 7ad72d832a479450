"""A shard and a disk whose fragments are integers: each token merged adds one.

The public chain is followed by everyone, and the master must be the sum of the tokens that the
ledger calls merged; an order that a real shard could not carry out is a `Violation`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cluster.checks.truth import Violation
from cluster.sim.loop import VirtualLoop
from coordinator.chain import Kept, between, lengthened
from coordinator.protocol import (
    Contribution,
    Fragment,
    HandIn,
    Merge,
    Merged,
    Publication,
    Publish,
    Reference,
    Unsound,
    Version,
)

KEEP_DIFFERENCES = (2, 0)
"""Of even fragments, and of odd ones: so that learners catch up either way."""
ALIKE, CHANCE, MEASURED = 0.3, 0.02, 10_000
"""The cosine of two healthy deltas, what it is off by, and from how many elements it is said to be
measured."""


class Parcel(NamedTuple):
    """What stands for an encoded delta: the tokens that went into it, its norm and its sign.

    `rotten`: its numbers were finite when it came, and are not when it is merged.
    """

    tokens: int
    norm: float
    sign: int = 1
    rotten: bool = False


class SimDifference(NamedTuple):
    """What stands for a publication's payload."""

    tokens: int


def followed(
    known: tuple[Version, int],
    said: Publication,
    payload: SimDifference,
    missed: Callable[[Fragment, Version, Version], list[SimDifference] | tuple[Version, int]],
) -> tuple[Version, int]:
    """The public fragment, as a learner that knew it like this has it after a publication."""
    version, value = known
    found = [] if said.previous == version else missed(said.fragment, version, said.previous)
    if not isinstance(found, list):
        return found
    return said.version, value + sum(each.tokens for each in (*found, payload))


@dataclass(slots=True)
class HeldFragment:
    """One fragment: the public value, its version and its last differences; the next version while
    it is not public."""

    version: Version
    value: int
    staged: tuple[Version, int] | None = None
    chain: tuple[Kept[SimDifference], ...] = ()


class SimShard:
    """All fragments; one thing after another.

    `away`: fragments whose process is dead; `deaths`: of each one's, so many.
    """

    def __init__(self, loop: VirtualLoop, fragments: int, rng: random.Random) -> None:
        self._loop, self._rng, self._free_s, self._received = loop, rng, 0.0, 0
        first = Version(0, 0)
        self.holdings = [HeldFragment(first, 0) for _ in range(fragments)]
        self.disk = [[(first, 0)] for _ in range(fragments)]
        self.inbox: dict[Reference, Parcel] = {}
        self._fragment_of: dict[Reference, Fragment] = {}
        self.away, self.deaths = set[Fragment](), [0] * fragments
        self.history = {(Fragment(p), first): 0 for p in range(fragments)}

    async def work(self, takes_s: float) -> None:
        """Wait for one's turn, and until it is done."""
        self._free_s = max(self._free_s, self._loop.now_s) + takes_s
        await self._loop.pause(self._free_s - self._loop.now_s)

    def receive(self, hand_in: HandIn, parcel: Parcel) -> Contribution:
        self._received += 1
        reference = Reference(f"{self._received}")
        self.inbox[reference], self._fragment_of[reference] = parcel, hand_in.id.fragment
        return Contribution(
            hand_in.id,
            hand_in.base,
            hand_in.since_step,
            hand_in.tokens,
            hand_in.fingerprint,
            hand_in.progress,
            parcel.norm,
            2 * parcel.tokens,
            reference,
        )

    def merge(self, order: Merge) -> Merged | Unsound:
        holding = self.holdings[order.fragment]
        if holding.staged is not None:
            raise Violation("one merge at a time", f"{holding.staged} is staged, then {order}")
        named = [*(contribution for contribution, _ in order.items), *order.trial]
        if missing := [c.id for c in named if c.reference not in self.inbox]:
            raise Violation("merge what is there", f"no bytes of {missing}")
        merging = [(w, self.inbox[c.reference]) for c, w in order.items]
        norm = sum(w * parcel.norm for w, parcel in merging)
        if any(parcel.rotten for _, parcel in merging):
            norm = math.nan
        if not norm <= order.limit:
            spoiled = [c.id for c, _ in order.items if self.inbox[c.reference].rotten]
            return Unsound(order.fragment, order.version, norm, tuple(spoiled))
        trial = [self.inbox[c.reference] for c in order.trial]
        cosines = self._cosines(merging, trial) if order.measure else ()
        value = holding.value + sum(parcel.tokens for _, parcel in merging)
        for contribution, _ in order.items:
            del self.inbox[contribution.reference]
        holding.staged = (order.version, value)
        measured = MEASURED if cosines else 0
        return Merged(order.fragment, order.version, norm, cosines, measured)

    def _cosines(
        self, merging: Sequence[tuple[float, Parcel]], trial: Sequence[Parcel]
    ) -> tuple[float | None, ...]:
        """Of each to the weighted mean of the others, as if any two healthy ones were ALIKE."""

        def cosine(sign: int, others: Sequence[tuple[float, Parcel]]) -> float | None:
            along = sum(w * parcel.sign for w, parcel in others)
            square = ALIKE * along**2 + (1 - ALIKE) * sum(w * w for w, _ in others)
            chance = self._rng.gauss(0, CHANCE)
            return sign * ALIKE * along / math.sqrt(square) + chance if square > 0 else None

        rest = [[*merging[:i], *merging[i + 1 :]] for i in range(len(merging))]
        own = [cosine(m.sign, others) for (_, m), others in zip(merging, rest, strict=True)]
        return (*own, *(cosine(parcel.sign, merging) for parcel in trial))

    def store(self, p: Fragment, version: Version) -> None:
        """Make the staged version durable."""
        staged = self.holdings[p].staged
        if staged is None or staged[0] != version:
            raise Violation("store what is merged", f"f{p} {version}, but staged is {staged}")
        self.disk[p].append(staged)

    def publish(self, order: Publish) -> tuple[Publication, SimDifference]:
        p, holding = order.fragment, self.holdings[order.fragment]
        if holding.staged is None or holding.staged[0] != order.version:
            raise Violation("publish what is merged", f"f{p} {order.version}, not {holding.staged}")
        if order.previous != holding.version:
            raise Violation("the public chain", f"{order.previous} is not {holding.version}")
        version, value = holding.staged
        difference = SimDifference(value - holding.value)
        kept = Kept(holding.version, version, difference)
        chain = lengthened(holding.chain, kept, KEEP_DIFFERENCES[p % 2])
        self.holdings[p] = HeldFragment(version, value, chain=chain)
        self.history[p, version] = value
        return Publication(p, version, order.previous, order.merged), difference

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[SimDifference] | tuple[Version, int]:
        """The differences that lead from one version to another; the value if they are not kept."""
        holding = self.holdings[p]
        found = between(holding.chain, older, newer)
        return (holding.version, holding.value) if found is None else found

    def recover(self, wanted: Sequence[Version], *, dies: bool) -> tuple[Version, ...]:
        """Go back to these published versions, or to the newest before them that are stored.

        A shard that `dies` has nothing but what is stored; so has one that was about to publish.
        """
        self.inbox.clear()
        self.away.clear()
        for p, (holding, version) in enumerate(zip(self.holdings, wanted, strict=True)):
            if dies or holding.version != version or holding.staged is not None:
                stored = max(each for each in self.disk[p] if each[0] <= version)
                self.holdings[p] = HeldFragment(*stored)
            self.holdings[p].chain = ()
        return tuple(holding.version for holding in self.holdings)

    def die(self, fragments: Sequence[Fragment]) -> None:
        """The process of these is gone, with all that was handed in for them."""
        for reference in [r for r in self.inbox if self._fragment_of[r] in fragments]:
            del self.inbox[reference]
        self.away.update(fragments)
        for p in fragments:
            self.deaths[p] += 1

    def come_back(self, wanted: Mapping[Fragment, Version]) -> bool:
        """Another process has what is stored of these fragments; is that what is wanted?"""
        self.away.difference_update(wanted)
        for p, version in wanted.items():
            stored = max(each for each in self.disk[p] if each[0] <= version)
            self.disk[p] = [each for each in self.disk[p] if each[0] <= version]
            self.holdings[p] = HeldFragment(*stored)
        return all(self.holdings[p].version == version for p, version in wanted.items())
