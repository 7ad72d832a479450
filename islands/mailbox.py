"""The state of a learner's life, shared by its threads, and the queues of what each of them does.

Threads that call from other processes tell what happens; the training thread and the talking thread
do what follows. One lock guards all of it, and only this module takes it: each public method is one
critical section, and nothing in it takes long. A word leaves together with its data (an adoption
with the arrays, a hand-in with the future of whoever asked), so that no key goes from one critical
section to the next.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from numpy.typing import NDArray

from coordinator.fragments import Flat
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Lease,
    Life,
    Progress,
    Version,
    Vitals,
)
from islands.exchange import Snapshot, Uplink
from islands.hosts.publication_lanes import Following
from islands.learner_life import LearnerState
from islands.learner_messages import (
    Adopt,
    Asked,
    End,
    HandOver,
    Happening,
    Keep,
    LetGo,
    Offered,
    Ready,
    Rested,
    Say,
    Step,
    Take,
    Want,
)
from islands.learner_state import happen, is_news


class Offer(NamedTuple):
    """A version to be adopted, on the host and on the devices; the mean of the islands' first
    moments, on the devices, if one came with it."""

    flat: Flat
    placed: jax.Array
    mean: jax.Array | None


class Ends(NamedTuple):
    """The two ends of the wire of one life."""

    uplink: Uplink
    following: Following


@dataclass(frozen=True, slots=True, eq=False)
class Handing:
    """A hand-in, and the future of whoever asked for it; None if nobody waits."""

    word: HandOver
    asked: Future[Snapshot | None] | None


@dataclass(frozen=True, slots=True, eq=False)
class Adoption:
    """An adoption, and the arrays of its version."""

    word: Adopt
    offer: Offer


Todo = Step | Handing | Keep | Adoption | Take | End
"""A task of the training thread, with its data."""


class Saying(NamedTuple):
    """A message of the talking thread; None if nothing came for a heartbeat."""

    word: Say | Want | None
    vitals: Vitals


@dataclass(frozen=True, slots=True, eq=False)
class Donation:
    """Moments for a learner that joins: the leaves copied so far, and all of them once they are.

    `number`: counts the donations of this process. The other hosts of the island keep their copies
    under it.
    """

    number: int
    leaves: list[NDArray[Any]]
    given: Future[Donation | None]


class Spent(NamedTuple):
    """Seconds of one step: in all, and the parts of it that were not spent on talking."""

    took_s: float
    computed_s: float
    fed_s: float
    idled_s: float


class Mailbox:
    """The state of the life that is lived, and its queues; each method takes the lock itself."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Condition(threading.RLock())
        self._now: LearnerState | None = None  # None between two lives
        self._ended, self._why = 0, ""  # the incarnation of the last life that is over
        self._broken: BaseException | None = None  # by another thread than the training thread
        self._staying = True
        self._lives: set[Life] = set()
        self._progress, self._vitals = Progress(0, 0, Lease(0)), Vitals(math.nan)
        self._ends: Ends | None = None
        self._asked: dict[Fragment, Future[Snapshot | None]] = {}  # and not decided yet
        self._owed: list[Future[Snapshot | None]] = []  # decided, to be given
        self._offers: dict[Fragment, Offer] = {}  # of the newest version, until it is adopted
        self._donations = 0  # in all lives
        self._donation: Donation | None = None
        self._todo = deque[Todo]()
        self._doing: Todo | None = None
        self._to_say = deque[Say | Want]()

    # --- lives ------------------------------------------------------------------------------------

    def begin(self, state: LearnerState, ends: Ends, first: Happening | None = None) -> None:
        """Begin a life. `first`: what happens at once; if the learner is to leave, that happens
        instead."""
        with self._lock:
            self._now, self._ends, self._offers = state, ends, {}
            self._lives.add(state.life)
            self._progress, self._vitals = state.progress, Vitals(math.nan)
            if first is not None:
                self.happens(first if self._staying else LetGo())

    def end(self, why: str = "its learner has ended this life") -> None:
        """End the life; nobody is kept waiting for it."""
        with self._lock:
            if self._now is not None:
                self._ended, self._now, self._why = self._now.life.incarnation, None, why
            for future in (*self._asked.values(), *self._owed):
                future.set_result(None)
            if self._donation is not None:
                self._donation.given.set_result(None)
            for queue in (self._asked, self._owed, self._todo, self._to_say):
                queue.clear()
            self._offers, self._ends, self._donation = {}, None, None
            self._lock.notify_all()

    def fail(self, error: BaseException) -> None:
        """Have the training thread raise what broke another thread of this learner."""
        with self._lock:
            self._broken = self._broken or error
            self._lock.notify_all()

    def leave(self) -> Progress:
        """End this life and begin no other; return how far it came."""
        with self._lock:
            self._staying = False
            self.happens(LetGo())
            self._lock.notify_all()
            return self._progress

    def outlive(self, life: Life) -> str:
        """Return when this life, which may be about to begin, is over; with the reason."""
        with self._lock:
            self._lock.wait_for(lambda: self._ended >= life.incarnation)
            return self._why

    def leaves_within(self, for_s: float) -> bool:
        """Wait so long for the word to leave; return whether it came."""
        with self._lock:
            return bool(self._lock.wait_for(lambda: not self._staying, for_s))

    def over_within(self, life: Life, for_s: float) -> bool:
        """Wait so long for the end of this life, which may be about to begin; return whether it is
        over."""
        with self._lock:
            return bool(self._lock.wait_for(lambda: self._ended >= life.incarnation, for_s))

    def _is_lived(self, life: Life) -> bool:
        return self._now is not None and self._now.life == life

    # --- what is known of it ----------------------------------------------------------------------

    @property
    def now(self) -> LearnerState | None:
        """The state of the life that is lived; None between two lives."""
        with self._lock:
            return self._now

    @property
    def broken(self) -> BaseException | None:
        """The exception that broke another thread of this learner."""
        with self._lock:
            return self._broken

    @property
    def staying(self) -> bool:
        """Whether this learner may begin another life."""
        with self._lock:
            return self._staying

    @property
    def vitals(self) -> tuple[int, Vitals]:
        """The inner steps of this life, and where their time went."""
        with self._lock:
            return self._progress.steps, self._vitals

    def is_adopting(self, p: Fragment, version: Version) -> bool:
        """Return whether the training thread has yet to put this version in place."""
        with self._lock:
            words = [each.word for each in (*self._todo, self._doing) if isinstance(each, Adoption)]
            return any((each.fragment, each.version) == (p, version) for each in words)

    def had(self, life: Life) -> bool:
        """Return whether this is one of the lives of this learner."""
        with self._lock:
            return life in self._lives

    def ends(self, life: Life) -> Ends | None:
        """Return the ends of this life's wire; None if it is not lived."""
        with self._lock:
            return self._ends if self._is_lived(life) else None

    # --- what happens -----------------------------------------------------------------------------

    def happens(self, happening: Happening, life: Life | None = None) -> None:
        """Take it in, and queue what follows. Nothing follows between two lives.

        `life`: nothing follows if another one is lived.
        """
        with self._lock:
            if self._now is None or (life is not None and self._now.life != life):
                return
            self._now, words = happen(self._now, happening)
            self._progress = self._now.progress
            for word in words:
                match word:
                    case Say() | Want():
                        self._to_say.append(word)
                    case HandOver(p):  # who asks from here on asks for what is trained after it
                        if (asked := self._asked.pop(p, None)) is not None:
                            self._owed.append(asked)
                        self._todo.append(Handing(word, asked))
                    case Adopt(p):
                        self._todo.append(Adoption(word, self._offers.pop(p)))
                    case _:
                        self._todo.append(word)
            if words:
                self._lock.notify_all()

    def asks(
        self, life: Life, p: Fragment, held: tuple[ContributionId, ...] | None
    ) -> Future[Snapshot | None] | None:
        """Ask for what was trained on a fragment; None if this life is not lived. All who ask
        before it is decided get the same answer."""
        with self._lock:
            if not self._is_lived(life):
                return None
            if (asked := self._asked.get(p)) is None:
                asked = self._asked[p] = Future()
                self.happens(Asked(p, held))
            return asked

    def answer(self, handing: Handing, snapshot: Snapshot | None) -> None:
        """Give the snapshot to whoever asked for it."""
        with self._lock:
            if handing.asked is not None:
                self._owed.remove(handing.asked)
                handing.asked.set_result(snapshot)

    def offered(self, life: Life, p: Fragment, version: Version, offer: Offer) -> None:
        """Take in a version that can be put in place; drop its arrays if it is no news."""
        with self._lock:
            if self._now is None or self._now.life != life or not is_news(self._now, p, version):
                return
            self._offers[p] = offer
            self.happens(Offered(p, version))

    def asks_moments(self, life: Life) -> Donation | None:
        """Ask for this life's moments; None if it is not lived."""
        with self._lock:
            if not self._is_lived(life):
                return None
            if self._donation is None:
                self._donations += 1
                self._donation = Donation(self._donations, [], Future())
                self._lock.notify_all()
            return self._donation

    def copied(self, life: Life) -> tuple[int, float]:
        """How many leaves of its moments this life has copied, and the seconds of its steps."""
        with self._lock:
            step_s = 0.0 if self._now is None else self._now.step_s
            lived, donation = self._is_lived(life), self._donation
            return len(donation.leaves) if lived and donation is not None else 0, step_s

    # --- the training thread ----------------------------------------------------------------------

    def next_to_do(self, for_s: float, meanwhile: Callable[[], None]) -> Todo | None:
        """Wait so long for something that the training thread has to do; None if nothing came, or
        another thread has broken. `meanwhile`: done again and again while moments are given."""
        until_s = self._now_s() + for_s
        while True:
            with self._lock:
                left_s = None if math.isinf(until_s) else until_s - self._now_s()
                self._lock.wait_for(lambda: self._todo or self._donation or self._broken, left_s)
                if self._broken is not None:
                    return None
                self._doing = self._todo.popleft() if self._todo else None
                if self._doing is not None:
                    return self._doing
            if self._now_s() >= until_s:
                return None
            meanwhile()

    def put_back(self, word: Step | End) -> None:
        """Have this done next."""
        with self._lock:
            self._todo.appendleft(word)

    @property
    def rate_clock(self) -> int:
        """The clock whose learning rate the next step takes."""
        with self._lock:
            assert self._now is not None
            return self._now.rate_clock

    def starved(self, remaining: int) -> None:
        """Take in that the data ran out, whatever the stream says `remaining`: no step begins
        before more has come."""
        with self._lock:
            assert self._now is not None
            self.happens(Ready(min(remaining, self._now.terms.batch_windows - 1)))

    def rested(self, loss: float, spent: Spent) -> None:
        """Take in that all that belongs to a step is done; count where its time went."""
        with self._lock:
            before, (took_s, computed_s, fed_s, idled_s) = self._vitals, spent
            self._vitals = replace(
                before,
                loss=loss,
                computing_s=before.computing_s + computed_s,
                talking_s=before.talking_s + took_s - computed_s - fed_s - idled_s,
                data_s=before.data_s + fed_s,
                idle_s=before.idle_s + idled_s,
            )
            self.happens(Rested(took_s))

    def donating(self) -> tuple[Donation, float] | None:
        """Return the moments that are asked for, and the seconds of a step; None if none are."""
        with self._lock:
            if self._now is None or self._donation is None:
                return None
            return self._donation, self._now.step_s

    def donated(self, donation: Donation) -> None:
        """Give the moments to whoever asked; all leaves are copied."""
        with self._lock:
            if self._donation is donation:
                self._donation = None
                donation.given.set_result(donation)

    # --- the talking thread -----------------------------------------------------------------------

    def next_to_say(self, life: Life, for_s: float) -> Saying | None:
        """Wait so long for something that the talking thread has to say; None if this life is
        over."""
        with self._lock:
            self._lock.wait_for(lambda: self._to_say or not self._is_lived(life), for_s)
            if not self._is_lived(life):
                return None
            return Saying(self._to_say.popleft() if self._to_say else None, self._vitals)
