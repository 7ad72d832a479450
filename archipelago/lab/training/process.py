"""A process of an island in virtual time: its parts, and one learner after another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Protocol

import jax
from numpy.typing import NDArray
from optax import OptState

from archipelago.lab.simulation.event_loop import VirtualLoop
from archipelago.lab.simulation.learner_process import LearnerProcess
from archipelago.lab.training.compiled_parts import CompiledParts
from archipelago.lab.training.learner import HandedIn, VirtualLearner
from archipelago.lab.training.timing import Timing
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.workers.assembly import habits_of
from coordinator.codec import Sent
from coordinator.fragments import Flat, sew
from coordinator.protocol import (
    Adopted,
    ContributionId,
    Fragment,
    Island,
    Join,
    Known,
    LeaseWanted,
    Life,
    Publication,
    Report,
    Version,
    Vitals,
)
from islands.encoder import ENCODERS
from islands.exchange import Missed, Public
from islands.learner_messages import LetGo, Ready
from islands.life_start import (
    AskDonors,
    KeepMoments,
    Remains,
    StartAnew,
    TakeMeans,
    life_start,
)
from islands.link import LearnerSettings
from islands.replica import Replica
from islands.task import StreamLike


class Way(Protocol):
    """A process's link to the rest; either an answer comes later, or `unanswered` is called."""

    def join(self, process: VirtualProcess, event: Join) -> None:
        """Ask for a life."""
        ...

    def whole(self, process: VirtualProcess) -> None:
        """Ask for all public fragments."""
        ...

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Return the differences from one version to another, or the whole fragment."""
        ...

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """Return a donor's moments; None if its process is in another life."""
        ...

    def shared(self) -> dict[Fragment, Flat]:
        """Return the published means of first moments, by fragment."""
        ...

    def stream(self, island: Island) -> StreamLike:
        """Return an island's data stream."""
        ...

    def report(
        self, process: VirtualProcess, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> None:
        """Send a report to the syncer."""
        ...

    def lease(self, process: VirtualProcess, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        ...

    def ended(self, process: VirtualProcess, life: Life) -> None:
        """Report that a life is over."""
        ...

    def left(self, process: VirtualProcess) -> None:
        """Report that the island was drained and has left."""
        ...


class VirtualProcess(LearnerProcess[VirtualLearner]):
    """One process of one island; its hand-ins are multiplied by `spoil`."""

    def __init__(
        self,
        config: Config,
        island: Island,
        kit: CompiledParts,
        timing: Timing,
        loop: VirtualLoop,
        network: Way,
        seed: str,
    ) -> None:
        super().__init__(loop)
        self.island, self.kit, self.network = island, kit, network
        self._timing, self._rng = timing, random.Random(seed)
        self._group, sync = group_of(config, island), config.sync
        self.habits = habits_of(config, island)
        self.terms = self.habits.terms(kit.port.rule, self._group.batch_size)
        self.encoder = ENCODERS[self._group.encode](sync.wire_up)
        wire = self.habits.wire_moments
        self.moments_encoder = None if wire is None else ENCODERS[self._group.encode](wire)
        self.replica = Replica(kit.inner, kit.port, self._group.encode, kit.sharing)
        self._distrusted, self.spoil = False, 1.0

    def takes_s(self) -> float:
        """Draw the duration of the next step in virtual seconds."""
        return step_s(self._timing, self.habits, self._rng) * (
            self.drag if self.loop.now_s < self.dragged_s else 1.0
        )

    # --- lives ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask for a life."""
        traits = self.habits
        event = Join(self.island, traits.group, self.kit.layout.fingerprint, traits.region)
        self.network.join(self, event)

    def fetch(self) -> None:
        """Ask for all public fragments."""
        self.network.whole(self)

    def tell_end(self, life: Life) -> None:
        """Report that this life is over."""
        self.network.ended(self, life)

    def tell_left(self) -> None:
        """Report that the island was drained and has left."""
        self.network.left(self)

    def start(self, public: Sequence[Public]) -> None:
        """Begin the granted life at these public fragments, with the data of its leases.

        `life_start` decides with which moments.
        """
        moments, shared = self.replica.end(), dict[Fragment, Flat]()
        start = life_start(
            Remains(moments=moments is not None, distrusted=self._distrusted),
            island=self.island,
            donors=self.grant.donors,
            shares_moments=self.kit.sharing is not None,
        )
        match start:
            case KeepMoments():
                pass
            case TakeMeans():
                moments, shared = None, self.network.shared()
            case AskDonors(donors):
                moments = self._ask_donors(donors)
            case StartAnew():
                moments = None
        versions = {Fragment(p): each for p, each in enumerate(public)}
        flats = {p: flat for p, (_, flat) in versions.items()}
        leaves = sew(self.kit.layout, [*flats.values()])
        params = jax.tree.unflatten(self.kit.structure, leaves)
        self.replica.begin(params, moments, flats, shared, self.grant.offset)
        stream = self.network.stream(self.island)
        for lease in self.grant.leases:
            stream.add(lease)
        self.learner = learner = VirtualLearner(self, self.grant, versions, stream)
        learner.happens(Ready(stream.remaining) if self.staying else LetGo())
        self.beat(learner)

    def _ask_donors(self, donors: Sequence[Life]) -> OptState | None:
        """Return the moments of the first donor whose moments fit; None if there is none."""
        for donor in donors:
            if (given := self.network.moments(donor)) is not None:
                try:
                    return self.kit.inner.accept(given)
                except ValueError:
                    continue  # as a real learner does: the next donor may have good ones
        return None

    def ends(self, learner: VirtualLearner, *, distrusted: bool) -> None:
        """End a life, and note whether its moments are distrusted."""
        self._distrusted = distrusted
        super().ends(learner, distrusted=distrusted)

    # --- called by others -------------------------------------------------------------------------

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Return the differences from one version to another, or the whole fragment."""
        return self.network.missed(p, older, newer)

    def hand_in(
        self, life: Life, p: Fragment, known: Known
    ) -> asyncio.Future[HandedIn | None] | None:
        """Return a future of the learner's hand-in; None if this life is over."""
        learner = self.learner_of(life)
        return None if learner is None else learner.hand_in(p, known)

    def offer(self, life: Life, publication: Publication, payload: Sent) -> None:
        """Give a publication to the learner of this life."""
        if (learner := self.learner_of(life)) is not None:
            learner.offer(publication, payload)

    def refused(self, contribution: ContributionId) -> None:
        """Notify the learner that its contribution was discarded."""
        if (learner := self.learner_of(contribution.life)) is not None:
            learner.refused(contribution)

    # --- called by its learner --------------------------------------------------------------------

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        self.network.report(self, event, vitals, adopted)

    def lease(self, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        self.network.lease(self, event)


def step_s(timing: Timing, habits: LearnerSettings, rng: random.Random) -> float:
    """Draw the duration of a step of such an island in virtual seconds."""
    usual_s = max(timing.step_s / habits.speed, habits.step_s)
    return usual_s * (1 + timing.jitter * (2 * rng.random() - 1))
