"""The process of a simulated island: its properties, and its link to syncer and shards."""

from __future__ import annotations

import random
from typing import Protocol

from archipelago.lab.checks.facts import Poison
from archipelago.lab.simulation.learner import LearnerLink, SimLearner
from archipelago.lab.simulation.payloads import SimDifference
from archipelago.lab.simulation.plan import LAYOUT, SimPlan, Trait
from archipelago.lab.virtual.event_loop import VirtualLoop
from archipelago.lab.virtual.process import LearnerProcess, ProcessLink
from coordinator.protocol import Anchor, Join, Life, Publication, Version
from islands.learner_messages import Ready, Terms
from islands.life_start import KeepMoments, Remains, life_start

AGAIN_S = 0.5
"""Seconds until a publication is offered again whose missed predecessors no shard has now."""


class SimLink(ProcessLink["SimProcess"], LearnerLink, Protocol):
    """A process's link to the rest."""

    def can_follow(self, known: tuple[Version, int], publication: Publication) -> bool:
        """Return whether a learner can fetch what it missed between `known` and a publication."""
        ...


def terms_of(plan: SimPlan, trait: Trait) -> Terms:
    """Return the terms of this island's learners."""
    rule, lock_step = plan.rule, plan.lock_step
    return Terms(
        rule.schedule,
        rule.overlap if lock_step is None else lock_step,
        carries=plan.carry,
        keeps=plan.carry and plan.anchor is Anchor.BASE,
        batch_windows=trait.windows,
        lease_windows=rule.lease_windows,
        until=None if lock_step is None else rule.steps,
    )


class SimProcess(LearnerProcess[SimLearner, SimLink]):
    """One process of one island.

    Attributes:
        incurable: Whether its poison survives a rejoin.
    """

    def __init__(
        self, plan: SimPlan, trait: Trait, loop: VirtualLoop, link: SimLink, seed: str
    ) -> None:
        super().__init__(trait.island, loop, link, terms_of(plan, trait))
        self.trait, self.rng = trait, random.Random(seed)
        self.poison: Poison | None = None
        self.incurable = False
        self.layout = self.joining_as = LAYOUT

    def usual_s(self) -> float:
        """Draw the duration of the next step in seconds, if nothing slows it down."""
        return self.trait.step_s * (1 + self.trait.jitter * (2 * self.rng.random() - 1))

    # --- lives ------------------------------------------------------------------------------------

    def joining(self) -> Join:
        """Return the request for a life, and note its layout."""
        self.joining_as = self.layout
        return Join(self.island, self.trait.group, self.layout, self.trait.region)

    def rejected(self) -> None:
        """Join again if the layout was repaired meanwhile; else give up."""
        if self.layout != self.joining_as:
            self.begin()  # repaired while the refusal was on its way
        else:
            super().rejected()

    def start(self, public: list[tuple[Version, int]]) -> None:
        """Begin the granted life, now that the public fragments have arrived."""
        self.learner = learner = SimLearner(self, self.grant, public)
        learner.happens(Ready(learner.pages.remaining))
        self.beat(learner)

    def ends(self, learner: SimLearner, *, distrusted: bool) -> None:
        """End a life; the poison ends with it if the moments do."""
        remains = Remains(moments=True, distrusted=distrusted)
        start = life_start(remains, island=self.island, donors=(), shares_moments=False)
        if not isinstance(start, KeepMoments) and not self.incurable:
            self.poison = None  # the poison goes with the moments; no donor is needed for that
        super().ends(learner, distrusted=distrusted)

    # --- called by others -------------------------------------------------------------------------

    def offer(self, life: Life, publication: Publication, payload: SimDifference) -> None:
        """Give a publication to the learner, or try again later if it cannot be followed yet."""
        if (learner := self.learner_of(life)) is None:
            return
        if self.link.can_follow(learner.known[publication.fragment], publication):
            learner.offer(publication, payload)
        else:
            self.loop.at(self.loop.now_s + AGAIN_S, self.offer, life, publication, payload)
