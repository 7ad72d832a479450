"""A learner without a model: one life that carries `islands.learner_state` in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol

from archipelago.lab.checks.facts import ContributionTruth, Poison, TokenWindow
from archipelago.lab.simulation.event_loop import VirtualLoop, settle
from archipelago.lab.simulation.lease_reader import Pages
from archipelago.lab.simulation.payloads import Parcel, SimDifference
from archipelago.lab.simulation.plan import LAYOUT, Trait
from archipelago.lab.simulation.poison import spoiled
from coordinator.protocol import (
    Adopted,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    LeaseWanted,
    Publication,
    Report,
    Version,
)
from islands.learner_life import LearnerState, begun
from islands.learner_messages import (
    Adopt,
    Asked,
    End,
    Fed,
    HandOver,
    Happening,
    Keep,
    Offered,
    Rested,
    Say,
    Settled,
    Step,
    Stepped,
    Take,
    Terms,
    Want,
)  # fmt: skip
from islands.learner_state import happen

HandedIn = tuple[HandIn, Parcel]


class LearnerLink(Protocol):
    """The part of the simulated world that a learner reaches without a message to the syncer."""

    def follow(
        self, known: tuple[Version, int], publication: Publication, payload: SimDifference
    ) -> tuple[Version, int]:
        """Return the public fragment after a publication; see `SimShards.follow`."""
        ...

    def made(self, id_: ContributionId, made: ContributionTruth) -> None:
        """Record the truth about a contribution."""
        ...

    def kept(self, keeps: Sequence[ContributionId]) -> None:
        """Record the contributions that stay in place beside an adopted version."""
        ...


class SimLearnerProcess(Protocol):
    """The part of its process that a learner uses; `SimProcess` is one."""

    loop: VirtualLoop
    terms: Terms
    trait: Trait
    rng: random.Random
    poison: Poison | None
    dead: bool
    frozen_s: float
    stuck_s: float

    @property
    def link(self) -> LearnerLink:
        """The way to the simulated world."""
        ...

    @property
    def learner(self) -> SimLearner | None:
        """The current learner; None between two lives."""
        ...

    def takes_s(self) -> float:
        """Return the duration of the next step in seconds."""
        ...

    def report(self, event: Report, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        ...

    def lease(self, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        ...

    def ends(self, learner: SimLearner, *, distrusted: bool) -> None:
        """End the learner's life."""
        ...


class SimLearner:
    """The learner of a life; whatever takes time is done by a callback."""

    def __init__(
        self, process: SimLearnerProcess, granted: Granted, public: list[tuple[Version, int]]
    ) -> None:
        """Begin a life; `public` holds the version and the value of each fragment to start from."""
        self.process, self.life = process, granted.life
        self.known, self.asks = public, dict[Fragment, asyncio.Future[HandedIn | None]]()
        self.pages = pages = Pages(process.terms.lease_windows, granted.leases)
        self.read: list[TokenWindow] = []
        self.cut: dict[Fragment, list[HandIn]] = {}  # the last two of each fragment, for all hosts
        versions = [version for version, _ in public]
        self.now: LearnerState = begun(
            process.terms, granted, versions, pages.cursor, pages.remaining
        )
        self.spoke_s: float = process.loop.now_s
        self.stepped_s = self.spoke_s

    def happens(self, happening: Happening) -> None:
        """Feed a happening to the learner's state, and carry out what follows."""
        self.now, words = happen(self.now, happening)
        process, link = self.process, self.process.link
        for word in words:
            match word:
                case Step(held):
                    self._step(held)
                case HandOver(p):
                    settle(self.asks.pop(p), self._handed_in(word))
                case Adopt(keeps=kept_ids):
                    link.kept(kept_ids)  # there are no parameters
                case Keep():
                    pass
                case Take(lease):
                    self.pages.add(lease)
                    self.happens(Fed(self.pages.remaining))
                case Say(report, adopted):
                    process.report(report, adopted)
                case Want(event):
                    process.lease(event)
                case End(distrusted):
                    process.ends(self, distrusted=distrusted)

    def hand_in(
        self, p: Fragment, held: tuple[ContributionId, ...] | None
    ) -> asyncio.Future[HandedIn | None]:
        """Return a future of the work on the fragment, handed in at the next step boundary.

        For `held` see `Asked`.
        """
        waiter = self.asks.setdefault(p, asyncio.Future(loop=self.process.loop))
        self.happens(Asked(p, held))
        return waiter

    def offer(self, publication: Publication, payload: SimDifference) -> None:
        """Follow the public chain to this version, which is adopted at the next step boundary."""
        p = publication.fragment
        self.happens(Settled(publication.merged))
        if publication.version > self.known[p][0]:
            self.known[p] = self.process.link.follow(self.known[p], publication, payload)
            self.happens(Offered(p, self.known[p][0]))

    def _handed_in(self, word: HandOver) -> HandedIn | None:
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

    def _step(self, held: bool) -> None:
        loop = self.process.loop
        self.stepped_s = loop.now_s if held else self.stepped_s
        loop.at(loop.now_s + self.process.takes_s(), self._stepped)

    def _stepped(self) -> None:
        process, now_s = self.process, self.process.loop.now_s
        if process.dead or process.learner is not self:
            return
        if now_s < (held_s := max(process.frozen_s, process.stuck_s)):
            process.loop.at(held_s, self._stepped)
            return
        self.read += [(process.trait.region, n) for n in self.pages.turn(process.trait.windows)]
        self.happens(Stepped(process.trait.tokens, self.pages.cursor, self.pages.remaining))
        took_s, self.stepped_s = now_s - self.stepped_s, now_s
        self.happens(Rested(took_s))
