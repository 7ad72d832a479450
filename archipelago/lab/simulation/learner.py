"""A learner without a model: its steps compute nothing, and its hand-ins are counts of tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

from archipelago.lab.checks.facts import ContributionTruth, Poison, TokenWindow
from archipelago.lab.simulation.lease_reader import Pages
from archipelago.lab.simulation.payloads import Parcel, SimDifference
from archipelago.lab.simulation.plan import LAYOUT, Trait
from archipelago.lab.simulation.poison import spoiled
from archipelago.lab.virtual.learner import LearnerHost, VirtualLearner
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Known,
    Life,
    Publication,
    Version,
    Vitals,
)
from islands.learner_messages import Adopt, HandOver

SILENT_VITALS = Vitals(math.nan)
"""The vitals of learners without a model, which measure nothing."""


class LearnerLink(Protocol):
    """The part of the simulated world that a learner reaches without a message to the syncer."""

    def follow(
        self, known: tuple[Version, int], publication: Publication, payload: SimDifference
    ) -> tuple[Version, int]:
        """Return the public fragment after a publication; see `SimShards.follow`."""
        ...

    def hears(self, life: Life, p: Fragment, known: Known) -> bool:
        """Check the reported outcomes; return False if they are older than those before."""
        ...

    def made(self, id_: ContributionId, made: ContributionTruth) -> None:
        """Record the truth about a contribution."""
        ...

    def kept(self, keeps: Sequence[ContributionId]) -> None:
        """Record the contributions that stay in place beside an adopted version."""
        ...


class SimLearnerHost(LearnerHost, Protocol):
    """The part of its process that a learner uses; `SimProcess` is one."""

    trait: Trait
    rng: random.Random
    poison: Poison | None

    @property
    def link(self) -> LearnerLink:
        """The way to the simulated world."""
        ...


class SimLearner(VirtualLearner[SimLearnerHost, Parcel, SimDifference]):
    """The learner of a life; `cut` has the last two hand-ins of each fragment, for all hosts."""

    def __init__(
        self, process: SimLearnerHost, granted: Granted, public: list[tuple[Version, int]]
    ) -> None:
        """Begin a life; `public` holds the version and the value of each fragment to start from."""
        self.known = public
        self.pages = pages = Pages(process.terms.lease_windows, granted.leases)
        self.read: list[TokenWindow] = []
        self.cut: dict[Fragment, list[HandIn]] = {}
        super().__init__(process, granted, [version for version, _ in public], pages)

    def compute(self) -> int:
        """Return the tokens of a step; it reads its windows at its end."""
        return self.process.trait.tokens

    def computed(self, takes_s: float) -> None:
        """Read the windows of the step."""
        trait = self.process.trait
        self.read += [(trait.region, n) for n in self.pages.turn(trait.windows)]

    def vitals(self) -> Vitals:
        """Return no measurements."""
        return SILENT_VITALS

    def hears(self, p: Fragment, known: Known) -> bool:
        """Have the reported outcomes checked."""
        return self.process.link.hears(self.life, p, known)

    def keep(self, word: HandOver) -> None:
        """Do nothing: there are no parameters."""

    def adopt(self, word: Adopt) -> None:
        """Record what stays in place; there are no parameters."""
        self.process.link.kept(word.keeps)

    def follow(self, publication: Publication, payload: SimDifference) -> Version | None:
        """Follow the public chain to this version, unless it is known already."""
        p = publication.fragment
        if publication.version <= self.known[p][0]:
            return None
        self.known[p] = self.process.link.follow(self.known[p], publication, payload)
        return self.known[p][0]

    def handed_in(self, word: HandOver) -> tuple[HandIn, Parcel] | None:
        """Return the hand-in of a fragment, changed by the poison; None if there is nothing new."""
        if word.contribution is None:
            return None
        process, track = self.process, word.track
        windows, (_, _, start, stop) = process.trait.windows, word.contribution
        norm = (stop - start) * process.rng.uniform(0.8, 1.25)
        facts = HandIn(word.contribution, track.base, start, word.tokens, LAYOUT, word.progress)
        hand_in = spoiled(process.poison, facts, norm, process.rng)
        read_windows = tuple(self.read[start * windows : stop * windows])
        process.link.made(hand_in[0].id, ContributionTruth(process.poison, read_windows))
        p = word.contribution.fragment
        self.cut[p] = [*self.cut.get(p, ())[-1:], hand_in[0]]
        return hand_in
