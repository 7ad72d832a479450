"""What the threads of a learner share: the state of its life, and who has what to do.

Threads that call from other processes tell what happens, the training thread and the talking thread
do what follows. One lock guards all of it; nothing here takes long.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import jax
from numpy.typing import NDArray

from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Lease, Life, Progress, Version, Vitals
from islands.exchange import Downlink, Snapshot, Uplink
from islands.learner_life import LearnerState
from islands.learner_state import happen
from islands.learner_words import Adopt, End, HandOver, Happening, Keep, Say, Step, Take, Want


class Offer(NamedTuple):
    """A version to be adopted, on the host and on the devices; the mean of the islands' first
    moments, on the devices, if one came with it."""

    flat: Flat
    placed: jax.Array
    mean: jax.Array | None


Todo = Step | HandOver | Keep | Adopt | Take | End
"""What the training thread does."""


@dataclass(frozen=True, slots=True)
class Donation:
    """Moments for a learner that joins: the leaves copied so far, and all of them once they are."""

    leaves: list[NDArray[Any]] = field(default_factory=list[NDArray[Any]])
    given: Future[list[NDArray[Any]] | None] = field(
        default_factory=Future[list[NDArray[Any]] | None]
    )


class Mailbox:
    """Every field is read and written with `lock` held. Methods take it themselves, `is_lived` and
    `forget_offers` aside: who calls these two holds it.

    `now`: of the life that is lived, None between two lives. `ended`: the incarnation of the last
    life that is over. `mute`: what broke the talking thread.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.lock = threading.Condition(threading.RLock())
        self.now: LearnerState | None = None
        self.ended = 0
        self.mute: BaseException | None = None
        self.staying = True
        self.lives: set[Life] = set()
        self.progress, self.vitals = Progress(0, 0, Lease(0)), Vitals(math.nan)
        self.asked: dict[Fragment, Future[Snapshot | None]] = {}  # and not decided yet
        self.answers: dict[Fragment, deque[Future[Snapshot | None]]] = {}  # decided, to be given
        self.offers: dict[tuple[Fragment, Version], Offer] = {}
        self.adopting: set[tuple[Fragment, Version]] = set()  # by the training thread, just now
        self.donations: dict[Life, Donation] = {}
        self.uplink: Uplink | None = None
        self.downlink: Downlink | None = None
        self._todo = deque[Todo]()
        self._to_say = deque[Say | Want]()

    def begin(self, state: LearnerState, uplink: Uplink, downlink: Downlink) -> None:
        """A life is lived from here on."""
        with self.lock:
            self.now, self.uplink, self.downlink, self.offers = state, uplink, downlink, {}
            self.lives.add(state.life)
            self.progress, self.vitals = state.progress, Vitals(math.nan)

    def end(self) -> None:
        """The life is over; nobody is kept waiting for it."""
        with self.lock:
            if self.now is not None:
                self.ended, self.now = self.now.life.incarnation, None
            for future in (*self.asked.values(), *chain(*self.answers.values())):
                future.set_result(None)
            for donation in self.donations.values():
                donation.given.set_result(None)
            for queue in (self.asked, self.answers, self.donations, self._todo, self._to_say):
                queue.clear()
            self.offers, self.uplink, self.downlink = {}, None, None
            self.lock.notify_all()

    def is_lived(self, life: Life) -> bool:
        """Is this the life that is lived? The lock is held."""
        return self.now is not None and self.now.life == life

    def happens(self, happening: Happening) -> None:
        """Take it in; whoever is to do what follows is told. Nothing follows between two lives."""
        with self.lock:
            if self.now is None:
                return
            self.now, words = happen(self.now, happening)
            self.progress = self.now.progress
            for word in words:
                match word:
                    case Say() | Want():
                        self._to_say.append(word)
                    case HandOver(p):  # who asks from here on asks for what is trained after it
                        if (future := self.asked.pop(p, None)) is not None:
                            self.answers.setdefault(p, deque()).append(future)
                        self._todo.append(word)
                    case _:
                        self._todo.append(word)
            if words:
                self.lock.notify_all()

    def forget_offers(self) -> None:
        """Let go of the arrays of offers that will not be adopted. The lock is held."""
        if self.now is None:
            return
        wanted = {(each.fragment, each.version) for each in self._todo if isinstance(each, Adopt)}
        wanted |= {(p, self.now.newest[p]) for p in self.now.news} | self.adopting
        self.offers = {key: each for key, each in self.offers.items() if key in wanted}

    def next_to_do(self, for_s: float, meanwhile: Callable[[], None]) -> Todo | None:
        """Wait so long for something that the training thread has to do; None if nothing came, or
        the talking thread has broken. `meanwhile`: done again and again while moments are given."""
        until_s = self._now_s() + for_s
        while True:
            with self.lock:
                left_s = None if math.isinf(until_s) else until_s - self._now_s()
                self.lock.wait_for(lambda: self._todo or self.donations or self.mute, left_s)
                if self.mute is not None:
                    return None
                if self._todo:
                    return self._todo.popleft()
            if self._now_s() >= until_s:
                return None
            meanwhile()

    def put_back(self, word: Step | End) -> None:
        """Have this done next."""
        with self.lock:
            self._todo.appendleft(word)

    def next_to_say(self, life: Life, for_s: float) -> Say | Want | None:
        """Wait so long for something that the talking thread has to say; None if nothing came."""
        with self.lock:
            self.lock.wait_for(lambda: self._to_say or not self.is_lived(life), for_s)
            return self._to_say.popleft() if self._to_say else None
