"""The process of a simulated island: what it is like, and how it reaches the rest."""

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
"""Who is not there is asked again so much later."""


class SimLink(LearnerLink, Protocol):
    """A process's way to the rest; answers come later, or `unheard` is called instead."""

    def join(self, who: SimProcess, event: Join) -> None: ...
    def whole(self, who: SimProcess) -> None: ...
    def can_follow(self, known: tuple[Version, int], said: Publication) -> bool: ...
    def report(self, who: SimProcess, event: Report, adopted: Sequence[Adopted]) -> None: ...
    def lease(self, who: SimProcess, event: LeaseWanted) -> None: ...
    def ended(self, who: SimProcess, life: Life) -> None: ...
    def left(self, who: SimProcess) -> None: ...


def terms_of(plan: SimPlan, trait: Trait) -> Terms:
    """What this island's learners work by."""
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

    `stuck_s`: no step of it ends before. `incurable`: what is wrong outlives its lives.
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
        return self.trait.island

    def takes_s(self) -> float:
        """How long its next step takes."""
        jitter = 1 + self.trait.jitter * (2 * self.rng.random() - 1)
        return self.trait.step_s * jitter * (self.drag if self.loop.now_s < self.dragged_s else 1.0)

    # --- lives ------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.joining_as = self.layout
        self.link.join(self, Join(self.island, self.trait.group, self.layout, self.trait.region))

    def fetch(self) -> None:
        self.link.whole(self)

    def tell_end(self, life: Life) -> None:
        self.link.ended(self, life)

    def tell_left(self) -> None:
        self.link.left(self)

    def rejected(self) -> None:
        if self.layout != self.joining_as:
            self.begin()  # mended, while the refusal was on its way
        else:
            super().rejected()

    def start(self, public: list[tuple[Version, int]]) -> None:
        """The public fragments have come: live."""
        self.learner = learner = SimLearner(self, self.grant, public)
        learner.happens(Ready(learner.pages.remaining))
        self.beat(learner)

    def ends(self, learner: SimLearner, *, distrusted: bool) -> None:
        remains = Remains(moments=True, distrusted=distrusted)
        start = life_start(remains, island=self.island, donors=(), shares_moments=False)
        if not isinstance(start, KeepMoments) and not self.incurable:
            self.poison = None  # it goes with the moments; no donor is needed to know that
        super().ends(learner, distrusted=distrusted)

    # --- called by others -------------------------------------------------------------------------

    def hand_in(
        self, life: Life, p: Fragment, held: tuple[ContributionId, ...] | None
    ) -> asyncio.Future[HandedIn | None] | None:
        learner = self.learner_of(life)
        return None if learner is None else learner.hand_in(p, held)

    def offer(self, life: Life, said: Publication, payload: SimDifference) -> None:
        if (learner := self.learner_of(life)) is None:
            return
        if self.link.can_follow(learner.known[said.fragment], said):
            learner.offer(said, payload)
        else:
            self.loop.at(self.loop.now_s + AGAIN_S, self.offer, life, said, payload)

    # --- called by its learner --------------------------------------------------------------------

    def report(self, event: Report, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        self.link.report(self, event, adopted)

    def lease(self, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        self.link.lease(self, event)
