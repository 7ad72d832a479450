"""The process of an island in virtual time: one learner after another, with or without a model."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from archipelago.lab.virtual.event_loop import VirtualLoop, settle
from archipelago.lab.virtual.learner import VirtualLearner
from coordinator.protocol import (
    Adopted,
    Answer,
    Fragment,
    Granted,
    Island,
    Join,
    Known,
    LeaseGranted,
    LeaseWanted,
    Life,
    Progress,
    Publication,
    Refused,
    Report,
    Vitals,
    Void,
)
from islands.learner_messages import Beat, Ceased, Heard, LetGo, Parked, Terms, Unheard
from islands.learner_state import HEARTBEAT_S

E_contra = TypeVar("E_contra", contravariant=True)


class ProcessLink(Protocol[E_contra]):
    """A process's link to the rest; either an answer comes later, or `unanswered` is called."""

    def join(self, process: E_contra, event: Join) -> None:
        """Ask for a life."""
        ...

    def whole(self, process: E_contra) -> None:
        """Ask for all public fragments."""
        ...

    def report(
        self, process: E_contra, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> None:
        """Send a report to the syncer."""
        ...

    def lease(self, process: E_contra, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        ...

    def ended(self, process: E_contra, life: Life) -> None:
        """Report that a life is over."""
        ...

    def left(self, process: E_contra) -> None:
        """Report that the island was drained and has left."""
        ...


L = TypeVar("L", bound=VirtualLearner[Any, Any, Any])
K = TypeVar("K", bound=ProcessLink[Any])


class LearnerProcess(ABC, Generic[L, K]):
    """A process with one learner after another; a message goes to the learner of its life.

    Attributes:
        grant: The grant of the present life.
        progress: The progress of the last life that is over.
        dead: Whether the process has ended.
        frozen_s: The process stands still until this time.
        stuck_s: No step ends before this time.
        staying: False once it was asked to leave.
        let_go: Whether it asks for no further life.
        drag: The factor on its step times, until `dragged_s`.
    """

    def __init__(self, island: Island, loop: VirtualLoop, link: K, terms: Terms) -> None:
        self.island, self.loop, self.link, self.terms = island, loop, link, terms
        self.learner: L | None = None
        self.grant: Granted
        self.progress: Progress | None = None
        self.dead, self.staying, self.let_go = False, True, False
        self.frozen_s = self.stuck_s = 0.0
        self.drag, self.dragged_s = 1.0, 0.0

    # --- what depends on the payload --------------------------------------------------------------

    @abstractmethod
    def joining(self) -> Join:
        """Return the request for a life."""

    @abstractmethod
    def start(self, public: Any) -> None:
        """Begin the granted life, now that the public fragments have arrived."""

    @abstractmethod
    def usual_s(self) -> float:
        """Draw the duration of the next step in virtual seconds, if nothing slows it down."""

    def takes_s(self) -> float:
        """Draw the duration of the next step in virtual seconds."""
        return self.usual_s() * (self.drag if self.loop.now_s < self.dragged_s else 1.0)

    # --- lives ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask for a life."""
        self.link.join(self, self.joining())

    def granted(self, answer: Granted | Refused) -> None:
        """Handle the answer to the request for a life."""
        if isinstance(answer, Granted):
            self.grant = answer
            self.link.whole(self)
        elif answer.retry_s is not None:
            self.loop.at(self.loop.now_s + answer.retry_s, self._ask_again)
        elif not self.staying:
            self._leaves()
        else:
            self.rejected()

    def rejected(self) -> None:
        """Give up, since a retry would not change the answer."""
        self.let_go = True

    def _ask_again(self) -> None:
        """Ask for a life again after the wait, or leave if it was drained meanwhile."""
        if self.dead:
            return
        if self.staying:
            self.begin()
        else:
            self._leaves()

    def _leaves(self) -> None:
        """End the process of a drained island."""
        self.let_go = True
        self.link.left(self)

    def ends(self, learner: L, *, distrusted: bool) -> None:
        """End a life, and answer all waiting requests with None.

        `distrusted`: the moments that it leaves behind are not trusted either.
        """
        self.learner, self.progress = None, learner.now.progress
        for waiter in learner.asks.values():
            settle(waiter, None)
        self.link.ended(self, learner.life)
        if self.staying:
            self.begin()
        else:
            self._leaves()

    # --- called by others -------------------------------------------------------------------------

    def reached(self, call: Callable[..., object], *arguments: Any) -> None:
        """Deliver a message once the process moves again, or never if it is dead."""
        if self.dead:
            return
        if self.loop.now_s < self.frozen_s:
            self.loop.at(self.frozen_s, self.reached, call, *arguments)
            return
        call(*arguments)

    @property
    def waiters(self) -> Sequence[asyncio.Future[Any]]:
        """The unanswered requests for fragments."""
        return () if self.learner is None else [*self.learner.asks.values()]

    @property
    def life(self) -> Life | None:
        """The present life, or None."""
        return None if self.learner is None else self.learner.life

    def learner_of(self, life: Life) -> L | None:
        """Return the learner of this life, if it is the present one."""
        return self.learner if self.life == life else None

    def beat(self, learner: L) -> None:
        """Send a heartbeat if no message passed for a while, and schedule the next one."""
        if self.dead or self.learner is not learner:
            return
        now_s = self.loop.now_s
        if now_s >= max(learner.spoke_s + HEARTBEAT_S, self.frozen_s):
            learner.spoke_s = now_s
            learner.happens(Beat())
        self.loop.at(max(learner.spoke_s + HEARTBEAT_S, self.frozen_s), self.beat, learner)

    def hand_in(self, life: Life, p: Fragment, known: Known) -> asyncio.Future[Any] | None:
        """Return a future of the learner's hand-in; None if this life is over."""
        learner = self.learner_of(life)
        return None if learner is None else learner.hand_in(p, known)

    def offer(self, life: Life, publication: Publication, payload: Any) -> None:
        """Give a publication to the learner of this life."""
        if (learner := self.learner_of(life)) is not None:
            learner.offer(publication, payload)

    def cease(self, over: Void) -> None:
        """Notify the learner that its life is void."""
        if (learner := self.learner_of(over.life)) is not None:
            learner.happens(Ceased(over))

    def park(self, life: Life) -> None:
        """Order the learner to stop stepping."""
        if (learner := self.learner_of(life)) is not None:
            learner.happens(Parked())

    def leave(self) -> Progress | None:
        """End the present life, begin no other, and return how far it came."""
        self.staying = False
        if (learner := self.learner) is None:
            return self.progress
        learner.happens(LetGo())
        return learner.now.progress

    def answered(self, life: Life, answer: Answer | LeaseGranted | Void) -> None:
        """Deliver the answer to the last message."""
        if (learner := self.learner_of(life)) is not None:
            learner.spoke_s = self.loop.now_s
            learner.happens(Heard(answer))

    def unanswered(self, life: Life) -> None:
        """Notify the learner that its last message got no answer."""
        if (learner := self.learner_of(life)) is not None:
            learner.spoke_s = self.loop.now_s
            learner.happens(Unheard())

    # --- called by its learner --------------------------------------------------------------------

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        self.link.report(self, event, vitals, adopted)

    def lease(self, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        self.link.lease(self, event)
