"""One life of a learner in virtual time: the real state and arrays, carried by callbacks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from archipelago.lab.simulation.event_loop import VirtualLoop, settle
from archipelago.lab.training.compiled_parts import CompiledParts
from coordinator.codec import Sent
from coordinator.fragments import Flat
from coordinator.protocol import (
    Adopted,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Known,
    LeaseWanted,
    Publication,
    Report,
    Version,
    Vitals,
)
from islands.corpus import Starved
from islands.encoder import Encoder
from islands.exchange import Downlink, Missed, Public, Uplink
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
    Ready,
    Rested,
    Say,
    Settled,
    Step,
    Stepped,
    Take,
    Terms,
    Want,
)
from islands.learner_state import happen
from islands.link import LearnerSettings
from islands.replica import Replica
from islands.task import StreamLike

HandedIn = tuple[HandIn, Sent]


class VirtualLearnerProcess(Protocol):
    """The part of its process that a learner uses; `VirtualProcess` is one."""

    loop: VirtualLoop
    kit: CompiledParts
    habits: LearnerSettings
    terms: Terms
    encoder: Encoder
    moments_encoder: Encoder | None
    replica: Replica
    spoil: float
    dead: bool
    frozen_s: float

    @property
    def learner(self) -> VirtualLearner | None:
        """The current learner; None between two lives."""
        ...

    def takes_s(self) -> float:
        """Return the duration of the next step in virtual seconds."""
        ...

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Return the differences from one version to another, or the whole fragment."""
        ...

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        ...

    def lease(self, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        ...

    def ends(self, learner: VirtualLearner, *, distrusted: bool) -> None:
        """End the learner's life."""
        ...


class VirtualLearner:
    """The learner of a life.

    It carries out every instruction at once. A step is computed when it begins, and ends when its
    virtual time is over.
    """

    def __init__(
        self,
        process: VirtualLearnerProcess,
        granted: Granted,
        public: dict[Fragment, Public],
        stream: StreamLike,
    ) -> None:
        """Begin a life at these public fragments; the leases of its grant are in `stream`."""
        self.process, self.life, self.stream = process, granted.life, stream
        self._uplink = Uplink(
            granted.life,
            process.encoder,
            process.kit.layout,
            process.habits.anchor,
            process.moments_encoder,
        )
        self._downlink = Downlink(public, process.missed)
        self._offers: dict[tuple[Fragment, Version], tuple[Flat, Flat | None]] = {}
        self.asks: dict[Fragment, asyncio.Future[HandedIn | None]] = {}
        versions = [version for version, _ in public.values()]
        self.now: LearnerState = begun(
            process.terms, granted, versions, stream.cursor, stream.remaining
        )
        self.spoke_s: float = process.loop.now_s
        self.stepped_s = self.spoke_s
        self.computing_s = 0.0

    def happens(self, happening: Happening) -> None:
        """Feed a happening to the learner's state, and carry out what follows."""
        self.now, words = happen(self.now, happening)
        process = self.process
        for word in words:
            match word:
                case Step(held):
                    self._step(held)
                case HandOver(p):
                    settle(self.asks.pop(p), self._handed_in(word))
                case Keep(hand_over):
                    if hand_over.contribution is not None:
                        process.replica.keep(hand_over)
                case Adopt(p, version, kept_ids):
                    self._adopt(p, version, kept_ids)
                case Take(lease):
                    self.stream.add(lease)
                    self.happens(Fed(self.stream.remaining))
                case Say(report, adopted):
                    vitals = Vitals(math.nan, computing_s=self.computing_s)
                    process.report(report, vitals, adopted)
                case Want(event):
                    process.lease(event)
                case End(distrusted):
                    process.ends(self, distrusted=distrusted)

    # --- called by others -------------------------------------------------------------------------

    def hand_in(self, p: Fragment, known: Known) -> asyncio.Future[HandedIn | None]:
        """Return a future of the work on the fragment, handed in at the next step boundary."""
        held = known.held if self._uplink.hear(p, known) else None
        waiter = self.asks.setdefault(p, asyncio.Future(loop=self.process.loop))
        self.happens(Asked(p, held))
        return waiter

    def offer(self, publication: Publication, payload: Sent) -> None:
        """Follow the public chain to this version, which is adopted at the next step boundary."""
        self._uplink.settle_merged(publication)
        self.happens(Settled(publication.merged))
        if (found := self._downlink.follow(publication, payload)) is None:
            return
        version, flat = found
        mean = self._downlink.take_mean(publication.fragment, version)
        self._offers[publication.fragment, version] = flat, mean
        self.happens(Offered(publication.fragment, version))

    def refused(self, contribution: ContributionId) -> None:
        """Take back the residual of a contribution that was discarded."""
        self._uplink.settle(contribution, merged=False)
        self.happens(Settled((contribution,)))

    # --- instructions -----------------------------------------------------------------------------

    def _handed_in(self, word: HandOver) -> HandedIn | None:
        if word.contribution is None:
            return None
        snapshot = self.process.replica.take(word)
        return self._uplink.encode(word.fragment, snapshot, self.process.spoil)

    def _adopt(self, p: Fragment, version: Version, keeps: Sequence[ContributionId]) -> None:
        flat, mean = self._offers[p, version]
        self._offers = {key: each for key, each in self._offers.items() if key[0] != p}
        inner = self.process.kit.inner
        shared = None if mean is None else inner.place_flat(mean, mean.size)
        self.process.replica.adopt(p, flat, inner.place_flat(flat, flat.size), shared, keeps=keeps)

    def _step(self, held: bool) -> None:
        process, loop = self.process, self.process.loop
        self.stepped_s = loop.now_s if held else self.stepped_s
        try:
            batch = self.stream.next()
        except Starved:
            self.happens(Ready(self.stream.remaining))
            return
        process.replica.step(batch, self.now.rate_clock)
        takes_s, tokens = process.takes_s(), process.kit.task.tokens(batch)
        loop.at(loop.now_s + takes_s, self._stepped, takes_s, int(tokens))

    def _stepped(self, takes_s: float, tokens: int) -> None:
        process, now_s = self.process, self.process.loop.now_s
        if process.dead or process.learner is not self:
            return
        if now_s < process.frozen_s:
            process.loop.at(process.frozen_s, self._stepped, takes_s, tokens)
            return
        self.computing_s += takes_s
        self.happens(Stepped(tokens, self.stream.cursor, self.stream.remaining))
        took_s, self.stepped_s = now_s - self.stepped_s, now_s
        self.happens(Rested(took_s))
