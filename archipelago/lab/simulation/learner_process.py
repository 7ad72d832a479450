"""The process of an island in virtual time: one learner after another, whatever they train."""

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
    """A learner of one life. `spoke_s`: when it said or heard something last; `asks`: who has asked
    it for a fragment, and has no answer."""

    now: LearnerState
    spoke_s: float
    asks: dict[Fragment, asyncio.Future[Any]]

    @property
    def life(self) -> Life: ...
    def happens(self, happening: Happening) -> None: ...


L = TypeVar("L", bound=Hearing)


class LearnerProcess(ABC, Generic[L]):
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
