"""One life of a learner with a model: the real arrays, encoders and replica, in virtual time."""

from __future__ import annotations

import math
from typing import Protocol

from archipelago.lab.training.compiled_parts import CompiledParts
from archipelago.lab.virtual.learner import LearnerHost, VirtualLearner
from coordinator.codec import Sent
from coordinator.fragments import Flat
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Known,
    Publication,
    Version,
    Vitals,
)
from islands.corpus import Starved
from islands.encoder import Encoder
from islands.exchange import Downlink, Missed, Public, Uplink
from islands.learner_messages import Adopt, HandOver, Settled
from islands.link import LearnerSettings
from islands.replica import Replica
from islands.task import StreamLike


class DifferenceSource(Protocol):
    """The part of its process's link that a learner uses."""

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Return the differences from one version to another, or the whole fragment."""
        ...


class TrainingHost(LearnerHost, Protocol):
    """The part of its process that a learner uses; `TrainingProcess` is one."""

    kit: CompiledParts
    habits: LearnerSettings
    encoder: Encoder
    moments_encoder: Encoder | None
    replica: Replica
    spoil: float

    @property
    def link(self) -> DifferenceSource:
        """The way to the shard."""
        ...


class TrainingLearner(VirtualLearner[TrainingHost, Sent, Sent]):
    """The learner of a life; a step is computed when it begins."""

    def __init__(
        self,
        process: TrainingHost,
        granted: Granted,
        public: dict[Fragment, Public],
        stream: StreamLike,
    ) -> None:
        """Begin a life at these public fragments; the leases of its grant are in `stream`."""
        self._stream = stream
        self._uplink = Uplink(
            granted.life,
            process.encoder,
            process.kit.layout,
            process.habits.anchor,
            process.moments_encoder,
        )
        self._downlink = Downlink(public, process.link.missed, process.habits.wire_down)
        self._offers: dict[tuple[Fragment, Version], tuple[Flat, Flat | None]] = {}
        self.computing_s = 0.0
        super().__init__(process, granted, [version for version, _ in public.values()], stream)

    # --- steps ------------------------------------------------------------------------------------

    def compute(self) -> int | None:
        """Take a step on the next batch, and return its tokens; None if there is no data."""
        try:
            batch = self._stream.next()
        except Starved:
            return None
        self.process.replica.step(batch, self.now.rate_clock)
        return int(self.process.kit.task.tokens(batch))

    def computed(self, takes_s: float) -> None:
        """Count the duration of the step."""
        self.computing_s += takes_s

    def vitals(self) -> Vitals:
        """Return the seconds of computing; the loss is not measured."""
        return Vitals(math.nan, computing_s=self.computing_s)

    # --- instructions -----------------------------------------------------------------------------

    def hears(self, p: Fragment, known: Known) -> bool:
        """Settle the rounding errors of earlier hand-ins."""
        return self._uplink.hear(p, known)

    def handed_in(self, word: HandOver) -> tuple[HandIn, Sent] | None:
        """Encode the work on a fragment; None if there is nothing new."""
        if word.contribution is None:
            return None
        snapshot = self.process.replica.take(word)
        return self._uplink.encode(word.fragment, snapshot, self.process.spoil)

    def keep(self, word: HandOver) -> None:
        """Keep a copy of a fragment, which will be handed in later."""
        if word.contribution is not None:
            self.process.replica.keep(word)

    def adopt(self, word: Adopt) -> None:
        """Put an offered version in place."""
        p, replica, inner = word.fragment, self.process.replica, self.process.kit.inner
        flat, mean = self._offers[p, word.version]
        self._offers = {key: each for key, each in self._offers.items() if key[0] != p}
        shared = None if mean is None else inner.place_flat(mean, mean.size)
        replica.adopt(p, flat, inner.place_flat(flat, flat.size), shared, keeps=word.keeps)

    # --- called by its process --------------------------------------------------------------------

    def offer(self, publication: Publication, payload: Sent) -> None:
        """Settle the rounding errors of merged hand-ins, and follow the public chain."""
        self._uplink.settle_merged(publication)
        super().offer(publication, payload)

    def follow(self, publication: Publication, payload: Sent) -> Version | None:
        """Decode a publication, and keep the version until it is adopted; None if it is old."""
        if (found := self._downlink.follow(publication, payload)) is None:
            return None
        version, flat = found
        mean = self._downlink.take_mean(publication.fragment, version)
        self._offers[publication.fragment, version] = flat, mean
        return version

    def refused(self, contribution: ContributionId) -> None:
        """Take back the residual of a contribution that was discarded."""
        self._uplink.settle(contribution, merged=False)
        self.happens(Settled((contribution,)))
