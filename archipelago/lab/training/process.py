"""A process of an island in virtual time: its parts, and one learner after another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

import jax
from numpy.typing import NDArray
from optax import OptState

from archipelago.lab.training.compiled_parts import CompiledParts
from archipelago.lab.training.learner import TrainingLearner
from archipelago.lab.training.timing import Timing
from archipelago.lab.virtual.event_loop import VirtualLoop
from archipelago.lab.virtual.process import LearnerProcess, ProcessLink
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.workers.assembly import learner_settings
from coordinator.fragments import Flat, sew
from coordinator.protocol import ContributionId, Fragment, Island, Join, Life, Version
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
from islands.randomness import Draws
from islands.replica import Replica
from islands.task import StreamLike


class TrainingLink(ProcessLink["TrainingProcess"], Protocol):
    """A process's link to the rest."""

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


class TrainingProcess(LearnerProcess[TrainingLearner, TrainingLink]):
    """One process of one island; its hand-ins are multiplied by `spoil`."""

    def __init__(
        self,
        config: Config,
        island: Island,
        kit: CompiledParts,
        timing: Timing,
        loop: VirtualLoop,
        link: TrainingLink,
        seed: str,
    ) -> None:
        group, sync = group_of(config, island), config.sync
        self.habits = learner_settings(config, island)
        terms = self.habits.terms(kit.port.rule, group.batch_size)
        super().__init__(island, loop, link, terms)
        self.kit, self._timing, self._rng = kit, timing, random.Random(seed)
        self.encoder = ENCODERS[group.encode](sync.wire_up)
        wire = self.habits.wire_moments
        self.moments_encoder = None if wire is None else ENCODERS[group.encode](wire)
        self.replica = Replica(kit.inners[group.group], kit.port, group.encode, kit.sharing)
        self._distrusted, self.spoil = False, 1.0

    def usual_s(self) -> float:
        """Draw the duration of the next step in virtual seconds, if nothing slows it down."""
        return step_s(self._timing, self.habits, self._rng)

    # --- lives ------------------------------------------------------------------------------------

    def joining(self) -> Join:
        """Return the request for a life."""
        traits = self.habits
        return Join(self.island, traits.group, self.kit.layout.fingerprint, traits.region)

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
                moments, shared = None, self.link.shared()
            case AskDonors(donors):
                moments = self._ask_donors(donors)
            case StartAnew():
                moments = None
        versions = {Fragment(p): each for p, each in enumerate(public)}
        flats = {p: flat for p, (_, flat) in versions.items()}
        leaves = sew(self.kit.layout, [*flats.values()])
        params = jax.tree.unflatten(self.kit.structure, leaves)
        draws = Draws(self.habits.seed, self.island, self.grant.life.incarnation)
        self.replica.begin(params, moments, flats, shared, self.grant.offset, draws)
        stream = self.link.stream(self.island)
        for lease in self.grant.leases:
            stream.add(lease)
        self.learner = learner = TrainingLearner(self, self.grant, versions, stream)
        learner.happens(Ready(stream.remaining) if self.staying else LetGo())
        self.beat(learner)

    def _ask_donors(self, donors: Sequence[Life]) -> OptState | None:
        """Return the moments of the first donor whose moments fit; None if there is none."""
        for donor in donors:
            if (given := self.link.moments(donor)) is not None:
                try:
                    return self.kit.inner.accept(given)
                except ValueError:
                    continue  # as a real learner does: the next donor may have good ones
        return None

    def ends(self, learner: TrainingLearner, *, distrusted: bool) -> None:
        """End a life, and note whether its moments are distrusted."""
        self._distrusted = distrusted
        super().ends(learner, distrusted=distrusted)

    # --- called by others -------------------------------------------------------------------------

    def refused(self, contribution: ContributionId) -> None:
        """Notify the learner that its contribution was discarded."""
        if (learner := self.learner_of(contribution.life)) is not None:
            learner.refused(contribution)


def step_s(timing: Timing, habits: LearnerSettings, rng: random.Random) -> float:
    """Draw the duration of a step of such an island in virtual seconds."""
    usual_s = max(timing.step_s / habits.speed, habits.step_s)
    return usual_s * (1 + timing.jitter * (2 * rng.random() - 1))
