"""The process of a simulated island: its properties, and its link to syncer and shards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol

from archipelago.lab.checks.facts import Poison
from archipelago.lab.simulation.event_loop import VirtualLoop
from archipelago.lab.simulation.learner import HandedIn, LearnerLink, SimLearner
from archipelago.lab.simulation.learner_process import LearnerProcess
from archipelago.lab.simulation.payloads import SimDifference
from archipelago.lab.simulation.plan import LAYOUT, SimPlan, Trait
from coordinator.protocol import (
    Adopted,
    Anchor,
    ContributionId,
    Fragment,
    Island,
    Join,
    LeaseWanted,
    Life,
    Publication,
    Report,
    Version,
)
from islands.learner_messages import (
    Ready,
    Terms,
)
from islands.life_start import KeepMoments, Remains, life_start

AGAIN_S = 0.5
"""Seconds until a publication is offered again whose missed predecessors no shard has now."""


class SimLink(LearnerLink, Protocol):
    """A process's link to the rest; either an answer comes later, or `unanswered` is called."""

    def join(self, process: SimProcess, event: Join) -> None:
        """Ask for a life."""
        ...

    def whole(self, process: SimProcess) -> None:
        """Ask for all public fragments."""
        ...

    def can_follow(self, known: tuple[Version, int], publication: Publication) -> bool:
        """Return whether a learner can fetch what it missed between `known` and a publication."""
        ...

    def report(self, process: SimProcess, event: Report, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        ...

    def lease(self, process: SimProcess, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        ...

    def ended(self, process: SimProcess, life: Life) -> None:
        """Report that a life is over."""
        ...

    def left(self, process: SimProcess) -> None:
        """Report that the island was drained and has left."""
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


class SimProcess(LearnerProcess[SimLearner]):
    """One process of one island.

    Attributes:
        stuck_s: No step ends before this time.
        incurable: Whether its poison survives a rejoin.
    """

    def __init__(
        self, plan: SimPlan, trait: Trait, loop: VirtualLoop, link: SimLink, seed: str
    ) -> None:
        super().__init__(loop)
        self.trait, self.link = trait, link
        self.rng = random.Random(seed)
        self.terms = terms_of(plan, trait)
        self.poison: Poison | None = None
        self.incurable, self.stuck_s = False, 0.0
        self.layout = self.joining_as = LAYOUT

    @property
    def island(self) -> Island:
        """The name of the island."""
        return self.trait.island

    def takes_s(self) -> float:
        """Draw the duration of the next step in seconds."""
        jitter = 1 + self.trait.jitter * (2 * self.rng.random() - 1)
        return self.trait.step_s * jitter * (self.drag if self.loop.now_s < self.dragged_s else 1.0)

    # --- lives ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask for a life."""
        self.joining_as = self.layout
        self.link.join(self, Join(self.island, self.trait.group, self.layout, self.trait.region))

    def fetch(self) -> None:
        """Ask for all public fragments."""
        self.link.whole(self)

    def tell_end(self, life: Life) -> None:
        """Report that this life is over."""
        self.link.ended(self, life)

    def tell_left(self) -> None:
        """Report that the island was drained and has left."""
        self.link.left(self)

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

    def hand_in(
        self, life: Life, p: Fragment, held: tuple[ContributionId, ...] | None
    ) -> asyncio.Future[HandedIn | None] | None:
        """Return a future of the learner's hand-in; None if this life is over."""
        learner = self.learner_of(life)
        return None if learner is None else learner.hand_in(p, held)

    def offer(self, life: Life, publication: Publication, payload: SimDifference) -> None:
        """Give a publication to the learner, or try again later if it cannot be followed yet."""
        if (learner := self.learner_of(life)) is None:
            return
        if self.link.can_follow(learner.known[publication.fragment], publication):
            learner.offer(publication, payload)
        else:
            self.loop.at(self.loop.now_s + AGAIN_S, self.offer, life, publication, payload)

    # --- called by its learner --------------------------------------------------------------------

    def report(self, event: Report, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        self.link.report(self, event, adopted)

    def lease(self, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        self.link.lease(self, event)
