"""A process of a simulated island: what it is like, and one learner after another in it."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from archipelago.lab.checks.facts import Made, Poison
from archipelago.lab.simulation.event_loop import VirtualLoop, settle
from archipelago.lab.simulation.learner import HandedIn, SimLearner
from archipelago.lab.simulation.payloads import SimDifference
from archipelago.lab.simulation.plan import LAYOUT, SimPlan, Trait
from coordinator.protocol import (
    Adopted,
    Anchor,
    Answer,
    ContributionId,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Life,
    Progress,
    Publication,
    Refused,
    Report,
    Version,
    Void,
)
from islands.learner_life import LearnerState
from islands.learner_messages import (
    Beat,
    Ceased,
    Happening,
    Heard,
    LetGo,
    Parked,
    Ready,
    Terms,
    Unheard,
)
from islands.learner_state import HEARTBEAT_S
from islands.life_start import KeepMoments, Remains, life_start

AGAIN_S = 0.5
"""Who is not there is asked again so much later."""


class SimLink(Protocol):
    """A process's way to the rest; answers come later, or `unheard` is called instead."""

    def join(self, who: SimProcess, event: Join) -> None: ...
    def whole(self, who: SimProcess) -> None: ...
    def can_follow(self, known: tuple[Version, int], said: Publication) -> bool: ...
    def follow(
        self, known: tuple[Version, int], said: Publication, payload: SimDifference
    ) -> tuple[Version, int]: ...
    def report(self, who: SimProcess, event: Report, adopted: Sequence[Adopted]) -> None: ...
    def lease(self, who: SimProcess, event: LeaseWanted) -> None: ...
    def made(self, id_: ContributionId, made: Made) -> None: ...
    def kept(self, keeps: Sequence[ContributionId]) -> None: ...
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


class Hearing(Protocol):
    """A learner of one life. `spoke_s`: when it said or heard something last; `asks`: who has asked
    it for a fragment, and has no answer."""

    now: LearnerState
    spoke_s: float
    asks: dict[Fragment, asyncio.Future[Any]]

    @property
    def life(self) -> Life: ...
    def happens(self, happening: Happening) -> None: ...


L = TypeVar("L", bound=Hearing)


class Process(ABC, Generic[L]):
    """A process with one learner after another in it: what is said of a life goes to its learner.

    `grant`: of the present life; `progress`: of the last life that is over. `dead`: it is gone;
    `frozen_s`: it stands still until then; `staying`: it was not told to leave; `let_go`: it asks
    for no life any more. `drag`: its steps take so many times as long, until `dragged_s`.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.learner: L | None = None
        self.grant: Granted
        self.progress: Progress | None = None
        self.dead, self.staying, self.let_go, self.frozen_s = False, True, False, 0.0
        self.drag, self.dragged_s = 1.0, 0.0

    # --- its way to the rest ----------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> None:
        """Ask for a life."""

    @abstractmethod
    def fetch(self) -> None:
        """Ask for all public fragments."""

    @abstractmethod
    def tell_end(self, life: Life) -> None:
        """Say that this life is over."""

    @abstractmethod
    def tell_left(self) -> None:
        """Say that its island was drained and has left."""

    # --- lives ------------------------------------------------------------------------------------

    def granted(self, answer: Granted | Refused) -> None:
        """The answer to its asking for a life."""
        if isinstance(answer, Granted):
            self.grant = answer
            self.fetch()
        elif answer.retry_s is not None:
            self.loop.at(self.loop.now_s + answer.retry_s, self._ask_again)
        elif not self.staying:
            self._leaves()
        else:
            self.rejected()

    def rejected(self) -> None:
        """Asking again would not change it."""
        self.let_go = True

    def _ask_again(self) -> None:
        """It was told to wait, and has; unless it was let go meanwhile."""
        if self.dead:
            return
        if self.staying:
            self.begin()
        else:
            self._leaves()

    def _leaves(self) -> None:
        """The process of an island that was drained is over."""
        self.let_go = True
        self.tell_left()

    def ends(self, learner: L, *, distrusted: bool) -> None:
        """A life is over; nobody is kept waiting for it. `distrusted`: so are the moments that it
        leaves behind."""
        self.learner, self.progress = None, learner.now.progress
        for waiter in learner.asks.values():
            settle(waiter, None)
        self.tell_end(learner.life)
        if self.staying:
            self.begin()
        else:
            self._leaves()

    # --- called by others -------------------------------------------------------------------------

    def reached(self, call: Callable[..., object], *arguments: Any) -> None:
        """Something that was sent is there: it is heard when the process moves again, or never."""
        if self.dead:
            return
        if self.loop.now_s < self.frozen_s:
            self.loop.at(self.frozen_s, self.reached, call, *arguments)
            return
        call(*arguments)

    @property
    def waiters(self) -> Sequence[asyncio.Future[Any]]:
        """Of all who have asked for something and have no answer."""
        return () if self.learner is None else [*self.learner.asks.values()]

    @property
    def life(self) -> Life | None:
        return None if self.learner is None else self.learner.life

    def learner_of(self, life: Life) -> L | None:
        """The learner of this life, if it is lived here."""
        return self.learner if self.life == life else None

    def beat(self, learner: L) -> None:
        """Say that it is there, if it has said nothing for a while."""
        if self.dead or self.learner is not learner:
            return
        now_s = self.loop.now_s
        if now_s >= max(learner.spoke_s + HEARTBEAT_S, self.frozen_s):
            learner.spoke_s = now_s
            learner.happens(Beat())
        self.loop.at(max(learner.spoke_s + HEARTBEAT_S, self.frozen_s), self.beat, learner)

    def cease(self, over: Void) -> None:
        if (learner := self.learner_of(over.life)) is not None:
            learner.happens(Ceased(over))

    def park(self, life: Life) -> None:
        if (learner := self.learner_of(life)) is not None:
            learner.happens(Parked())

    def leave(self) -> Progress | None:
        """End the life that is lived, and begin no other; how far it came."""
        self.staying = False
        if (learner := self.learner) is None:
            return self.progress
        learner.happens(LetGo())
        return learner.now.progress

    def heard(self, life: Life, answer: Answer | LeaseGranted | Void) -> None:
        """The answer to what was said last."""
        if (learner := self.learner_of(life)) is not None:
            learner.spoke_s = self.loop.now_s
            learner.happens(Heard(answer))

    def unheard(self, life: Life) -> None:
        """No answer came."""
        if (learner := self.learner_of(life)) is not None:
            learner.spoke_s = self.loop.now_s
            learner.happens(Unheard())


class SimProcess(Process[SimLearner]):
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
