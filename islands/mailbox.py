"""The state of a learner's life, shared by its threads, and the queues of their tasks.

Threads that serve calls of other processes report what happens; the training thread and the talking
thread do what follows. One lock guards all of it, and only this module, `life_history` and
`donations` take it: each public method is one critical section, and nothing in it takes long. A
word leaves together with its data (an adoption with the arrays, a hand-in with the future of the
caller), so that no key goes from one critical section to the next.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future

from coordinator.protocol import (
    ContributionId,
    Fragment,
    Lease,
    Life,
    Progress,
    Version,
    Vitals,
)
from islands.activity_clock import ActivityClock
from islands.donations import Donations
from islands.exchange import FragmentSnapshot
from islands.learner_life import LearnerState
from islands.learner_messages import (
    Asked,
    End,
    Happening,
    LetGo,
    Offered,
    Ready,
    Rested,
    Step,
)
from islands.learner_state import happen, is_news
from islands.life_history import LifeHistory
from islands.thread_queues import ThreadQueues
from islands.thread_tasks import Adoption, Ends, HandInTask, Offer, Outgoing, Todo
from islands.time_budget import Activity


class Mailbox:
    """The state of the present life, and its queues; each method takes the lock itself."""

    def __init__(self, now_s: Callable[[], float], clock: ActivityClock | None = None) -> None:
        self._now_s, self._clock = now_s, clock or ActivityClock(now_s)
        self._lock = threading.Condition(threading.RLock())
        self._now: LearnerState | None = None  # None between two lives
        self._history = LifeHistory(self._lock)
        self._donations = Donations(self._lock, lambda: self._now)
        self._progress, self._loss = Progress(0, 0, Lease(0)), math.nan
        self._ends: Ends | None = None
        self._queues = ThreadQueues()
        self._doing: Todo | None = None

    # --- lives ------------------------------------------------------------------------------------

    def begin(self, state: LearnerState, ends: Ends, first: Happening | None = None) -> None:
        """Begin a life with the happening `first`, or with `LetGo` if the learner must leave."""
        with self._lock:
            self._now, self._ends = state, ends
            self._history.add(state.life)
            self._progress, self._loss = state.progress, math.nan
            if first is not None:
                self.happens(first if self._history.staying else LetGo())

    def end(self, why: str = "its learner has ended this life") -> None:
        """End the life, and release all threads that wait for it."""
        with self._lock:
            ended, self._now, self._ends = self._now, None, None
            self._queues.end()
            self._donations.end()
            if ended is not None:
                self._history.end(ended.life, why)  # wakes all waiting threads

    def leave(self) -> Progress:
        """End this life and begin no other; return its progress."""
        with self._lock:
            self._history.leave()
            self.happens(LetGo())
            return self._progress

    def _is_lived(self, life: Life) -> bool:
        return self._now is not None and self._now.life == life

    @property
    def history(self) -> LifeHistory:
        """The lives of this learner; the same lock guards them."""
        return self._history

    @property
    def donations(self) -> Donations:
        """The moments that are asked for; the same lock guards them."""
        return self._donations

    # --- the state of the life
    # ------------------------------------------------------------------------

    @property
    def now(self) -> LearnerState | None:
        """The state of the present life; None between two lives."""
        with self._lock:
            return self._now

    @property
    def vitals(self) -> tuple[int, Vitals]:
        """The inner steps of this life, and where the time of this process went."""
        with self._lock:
            return self._progress.steps, self._clock.vitals(self._loss)

    @property
    def waits_for(self) -> Activity:
        """The activity of a training thread that has nothing to do and waits."""
        with self._lock:
            if (now := self._now) is None or not now.stepping:
                return Activity.IDLE
            return Activity.WAITING if now.held else Activity.DATA

    def is_adopting(self, p: Fragment, version: Version) -> bool:
        """Return whether the training thread has yet to put this version in place."""
        with self._lock:
            tasks = (*self._queues.todo, self._doing)
            words = [each.word for each in tasks if isinstance(each, Adoption)]
            return any((each.fragment, each.version) == (p, version) for each in words)

    def ends(self, life: Life) -> Ends | None:
        """Return the ends of this life's wire; None if it is not the present life."""
        with self._lock:
            return self._ends if self._is_lived(life) else None

    # --- what happens -----------------------------------------------------------------------------

    def happens(self, happening: Happening, life: Life | None = None) -> None:
        """Change the state by this happening, and queue what follows.

        Nothing follows between two lives, or if `life` is given and is not the present one.
        """
        with self._lock:
            if self._now is None or (life is not None and self._now.life != life):
                return
            self._now, words = happen(self._now, happening)
            self._progress = self._now.progress
            self._queues.follow(words)
            if words:
                self._lock.notify_all()

    def asks(
        self, life: Life, p: Fragment, held: tuple[ContributionId, ...] | None
    ) -> Future[FragmentSnapshot | None] | None:
        """Ask for the work on a fragment; None if this is not the present life.

        All callers before the answer is decided get the same one.
        """
        with self._lock:
            if not self._is_lived(life):
                return None
            is_first = not self._queues.is_asked(p)
            future = self._queues.ask(p)
            if is_first:
                self.happens(Asked(p, held))
            return future

    def answer(self, handing: HandInTask, snapshot: FragmentSnapshot | None) -> None:
        """Give the snapshot to the callers that asked for it."""
        with self._lock:
            self._queues.answer(handing, snapshot)

    def offered(self, life: Life, p: Fragment, version: Version, offer: Offer) -> None:
        """Queue a version that can be put in place; drop its arrays if it is not newer."""
        with self._lock:
            if self._now is None or self._now.life != life or not is_news(self._now, p, version):
                return
            self._queues.offers[p] = offer
            self.happens(Offered(p, version))

    # --- the training thread ----------------------------------------------------------------------

    def next_to_do(self, for_s: float, meanwhile: Callable[[], None]) -> Todo | None:
        """Return the training thread's next task; None after `for_s` seconds, or if a thread broke.

        `meanwhile`: called again and again while moments are donated.
        """
        until_s = self._now_s() + for_s
        while True:
            with self._lock:
                left_s = None if math.isinf(until_s) else until_s - self._now_s()
                self._lock.wait_for(self._has_work, left_s)
                if self._history.broken is not None:
                    return None
                self._doing = self._queues.todo.popleft() if self._queues.todo else None
                if self._doing is not None:
                    return self._doing
            if self._now_s() >= until_s:
                return None
            meanwhile()

    def _has_work(self) -> bool:
        """Return whether the training thread has work; the caller holds the lock."""
        broken = self._history.broken is not None
        return bool(self._queues.todo) or self._donations.asked() is not None or broken

    def put_back(self, word: Step | End) -> None:
        """Put this task back at the head of the queue."""
        with self._lock:
            self._queues.todo.appendleft(word)

    @property
    def rate_clock(self) -> int:
        """The clock whose learning rate the next step takes."""
        with self._lock:
            assert self._now is not None
            return self._now.rate_clock

    def starved(self, remaining: int) -> None:
        """Record that the data ran out, even if the stream claims that windows are `remaining`."""
        with self._lock:
            assert self._now is not None
            self.happens(Ready(min(remaining, self._now.terms.batch_windows - 1)))

    def rested(self, loss: float, took_s: float) -> None:
        """Record that all work of a step is done, and the seconds that it took."""
        with self._lock:
            self._loss = loss
            self.happens(Rested(took_s))

    # --- the talking thread -----------------------------------------------------------------------

    def next_to_say(self, life: Life, for_s: float) -> Outgoing | None:
        """Return the talking thread's next message, or an empty one after `for_s` seconds.

        It is None if this life is over.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._queues.to_say or not self._is_lived(life), for_s)
            if not self._is_lived(life):
                return None
            to_say = self._queues.to_say
            word = to_say.popleft() if to_say else None
            return Outgoing(word, self._clock.vitals(self._loss))
