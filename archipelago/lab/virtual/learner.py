"""One life of a learner in virtual time: `islands.learner_state`, carried by callbacks.

A subclass has what depends on the payload: what a step computes, what is handed in, and what an
adopted version changes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from archipelago.lab.virtual.event_loop import VirtualLoop, settle
from coordinator.protocol import (
    Adopted,
    Fragment,
    Granted,
    HandIn,
    Known,
    Lease,
    LeaseWanted,
    Publication,
    Report,
    Version,
    Vitals,
)
from islands.learner_life import LearnerState, begun
from islands.learner_messages import (
    Adopt,
    Asked,
    End,
    Fed,
    HandOver,
    Happening,
    Keep,
    Offered,
    Ready,
    Rested,
    Say,
    Settled,
    Step,
    Stepped,
    Take,
    Terms,
    Want,
)
from islands.learner_state import happen


class LeasedData(Protocol):
    """The data of a learner: the leases that it holds, and its position in them."""

    @property
    def cursor(self) -> Lease:
        """The position of the next window to read."""
        ...

    @property
    def remaining(self) -> int:
        """Windows left in the leases held."""
        ...

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held."""
        ...


class LearnerHost(Protocol):
    """The part of its process that a learner uses; every `LearnerProcess` has it."""

    loop: VirtualLoop
    terms: Terms
    dead: bool
    frozen_s: float
    stuck_s: float

    @property
    def learner(self) -> object:
        """The current learner; None between two lives."""
        ...

    def takes_s(self) -> float:
        """Return the duration of the next step in virtual seconds."""
        ...

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> None:
        """Send a report to the syncer."""
        ...

    def lease(self, event: LeaseWanted) -> None:
        """Ask the syncer for data."""
        ...

    def ends(self, learner: Any, *, distrusted: bool) -> None:
        """End the learner's life."""
        ...


H = TypeVar("H", bound=LearnerHost)
X = TypeVar("X")
"""The kind of payload that is handed in."""
Y = TypeVar("Y")
"""The kind of payload that is published."""


class VirtualLearner(ABC, Generic[H, X, Y]):
    """The learner of one life; it carries out every instruction at once.

    A step begins with `compute`, and ends when its virtual time is over.

    Attributes:
        now: Its state.
        asks: The unanswered requests for its fragments.
        spoke_s: The time at which it last sent or received something, in seconds.
        stepped_s: The time at which its last step ended, in seconds.
    """

    def __init__(
        self, process: H, granted: Granted, versions: Sequence[Version], data: LeasedData
    ) -> None:
        """Begin a life at these public versions; `data` has the leases of its grant."""
        self.process, self.life, self.data = process, granted.life, data
        self.asks: dict[Fragment, asyncio.Future[tuple[HandIn, X] | None]] = {}
        self.now: LearnerState = begun(
            process.terms, granted, versions, data.cursor, data.remaining
        )
        self.spoke_s: float = process.loop.now_s
        self.stepped_s = self.spoke_s

    # --- what depends on the payload --------------------------------------------------------------

    @abstractmethod
    def compute(self) -> int | None:
        """Begin a step, and return the tokens of its batch; None if there is no data for it."""

    @abstractmethod
    def computed(self, takes_s: float) -> None:
        """Complete a step, which took so long, before its end is reported to the state."""

    @abstractmethod
    def vitals(self) -> Vitals:
        """Return the measurements beside a report."""

    @abstractmethod
    def hears(self, p: Fragment, known: Known) -> bool:
        """Note what became of earlier hand-ins; return False if that is older than known."""

    @abstractmethod
    def handed_in(self, word: HandOver) -> tuple[HandIn, X] | None:
        """Return the hand-in of a fragment; None if there is nothing new."""

    @abstractmethod
    def keep(self, word: HandOver) -> None:
        """Keep a copy of a fragment, which will be handed in later."""

    @abstractmethod
    def adopt(self, word: Adopt) -> None:
        """Put an offered version in place."""

    @abstractmethod
    def follow(self, publication: Publication, payload: Y) -> Version | None:
        """Return the version to adopt after a publication; None if there is no newer one."""

    # --- instructions -----------------------------------------------------------------------------

    def happens(self, happening: Happening) -> None:
        """Feed a happening to the learner's state, and carry out what follows."""
        self.now, words = happen(self.now, happening)
        for word in words:
            match word:
                case Step(held):
                    self._step(held)
                case HandOver(p):
                    settle(self.asks.pop(p), self.handed_in(word))
                case Adopt():
                    self.adopt(word)
                case Keep(hand_over):
                    self.keep(hand_over)
                case Take(lease):
                    self.data.add(lease)
                    self.happens(Fed(self.data.remaining))
                case Say(report, adopted):
                    self.process.report(report, self.vitals(), adopted)
                case Want(event):
                    self.process.lease(event)
                case End(distrusted):
                    self.process.ends(self, distrusted=distrusted)

    def _step(self, held: bool) -> None:
        loop = self.process.loop
        if held:
            self.stepped_s = loop.now_s
        if (tokens := self.compute()) is None:
            self.happens(Ready(self.data.remaining))
            return
        takes_s = self.process.takes_s()
        loop.at(loop.now_s + takes_s, self._stepped, takes_s, tokens)

    def _stepped(self, takes_s: float, tokens: int) -> None:
        process, now_s = self.process, self.process.loop.now_s
        if process.dead or process.learner is not self:
            return
        if now_s < (held_s := max(process.frozen_s, process.stuck_s)):
            process.loop.at(held_s, self._stepped, takes_s, tokens)
            return
        self.computed(takes_s)
        self.happens(Stepped(tokens, self.data.cursor, self.data.remaining))
        took_s, self.stepped_s = now_s - self.stepped_s, now_s
        self.happens(Rested(took_s))

    # --- called by its process --------------------------------------------------------------------

    def hand_in(self, p: Fragment, known: Known) -> asyncio.Future[tuple[HandIn, X] | None]:
        """Return a future of the work on the fragment, handed in at the next step boundary."""
        held = known.held if self.hears(p, known) else None
        waiter = self.asks.setdefault(p, asyncio.Future(loop=self.process.loop))
        self.happens(Asked(p, held))
        return waiter

    def offer(self, publication: Publication, payload: Y) -> None:
        """Follow the public chain to this version, which is adopted at the next step boundary."""
        self.happens(Settled(publication.merged))
        if (version := self.follow(publication, payload)) is not None:
            self.happens(Offered(publication.fragment, version))
