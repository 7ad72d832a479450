"""The process of an island in virtual time: one learner after another, with or without a model."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from archipelago.lab.simulation.event_loop import VirtualLoop, settle
from coordinator.protocol import (
    Answer,
    Fragment,
    Granted,
    LeaseGranted,
    Life,
    Progress,
    Refused,
    Void,
)
from islands.learner_life import LearnerState
from islands.learner_messages import Beat, Ceased, Happening, Heard, LetGo, Parked, Unheard
from islands.learner_state import HEARTBEAT_S


class Hearing(Protocol):
    """A learner of one life."""

    now: LearnerState
    spoke_s: float
    """The time at which it last sent or received something, in seconds."""
    asks: dict[Fragment, asyncio.Future[Any]]
    """The unanswered requests for its fragments."""

    @property
    def life(self) -> Life:
        """The life of this learner."""
        ...

    def happens(self, happening: Happening) -> None:
        """Feed a happening to the learner's state, and carry out what follows."""
        ...


L = TypeVar("L", bound=Hearing)


class LearnerProcess(ABC, Generic[L]):
    """A process with one learner after another; a message goes to the learner of its life.

    Attributes:
        grant: The grant of the present life.
        progress: The progress of the last life that is over.
        dead: Whether the process has ended.
        frozen_s: The process stands still until this time.
        staying: False once it was asked to leave.
        let_go: Whether it asks for no further life.
        drag: The factor on its step times, until `dragged_s`.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.learner: L | None = None
        self.grant: Granted
        self.progress: Progress | None = None
        self.dead, self.staying, self.let_go, self.frozen_s = False, True, False, 0.0
        self.drag, self.dragged_s = 1.0, 0.0

    # --- its way to the syncer --------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> None:
        """Ask for a life."""

    @abstractmethod
    def fetch(self) -> None:
        """Ask for all public fragments."""

    @abstractmethod
    def tell_end(self, life: Life) -> None:
        """Report that this life is over."""

    @abstractmethod
    def tell_left(self) -> None:
        """Report that the island was drained and has left."""

    # --- lives ------------------------------------------------------------------------------------

    def granted(self, answer: Granted | Refused) -> None:
        """Handle the answer to the request for a life."""
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
        self.tell_left()

    def ends(self, learner: L, *, distrusted: bool) -> None:
        """End a life, and answer all waiting requests with None.

        `distrusted`: the moments that it leaves behind are not trusted either.
        """
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
