"""The threads of a learner (mailbox, trainer, message thread, wire) against a random coordinator.

One thread for each fragment requests hand-ins, and publishes a version. Others publish versions in
which the learner has no part. Offers come late, twice and out of order. Lives end; moments are
requested. Every answer has to come within a bound of virtual time, so that a lost wake-up is found.
Every array has to be the one of its version.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import numpy as np

from coordinator.codec import Sent, decode, split
from coordinator.protocol import Fragment, HandIn, Known, Life, Publication, Void
from islands import donations, exchange, learner, mailbox, thread_queues, trainer
from islands import message_thread as talker
from islands.adopt import AdoptRule
from islands.donations import Donation
from islands.hosts import publication_lanes as following
from islands.hosts.lead import Lead
from islands.hosts.orders import Order
from islands.learner import Learner
from tests.shells.given import (
    EVERYTHING,
    INNER,
    LAYOUT,
    TASK,
    Numbers,
    Port,
    World,
    flat_of,
    flats_of,
    habits_of,
)
from tests.shells.scheduler import Scheduler, Task

ROUNDS = 4
"""The number of hand-ins of each fragment."""
OTHERS = 3
"""The number of versions of each fragment in which the learner has no part."""
ANSWER_S = 60.0
"""The bound of an answer in virtual seconds; only a lost wake-up exceeds it."""
PAUSE_S = 0.05
DISCARDED = 0.2
"""The share of contributions that are discarded."""


def play(s: Scheduler) -> None:
    """Play one schedule. The seed chooses the rule of adoption, the overlap and the events."""
    with s.controls(
        donations, exchange, following, learner, mailbox, talker, thread_queues, trainer
    ):
        LearnerPlay(s).run()


class LearnerPlay:
    """One schedule of one learner. An island of several hosts extends it."""

    def __init__(self, s: Scheduler, lead: Lead[Order] | None = None) -> None:
        self.s, self.world = s, World(s)
        self.rule = s.rng.choice((AdoptRule.OVERWRITE, AdoptRule.CARRY))
        self.port = Port(self.rule)
        self.overlap = s.rng.choice((0, 2, 2))
        self.learner = Learner(
            TASK,
            LAYOUT,
            INNER,
            self.port,
            None,
            Numbers,
            self.world,
            habits_of(self.overlap),
            now_s=s.clock,
            lead=lead,
        )
        self.asked = [0 for _ in EVERYTHING]
        self.tasks: list[Task] = []
        self.asking: list[Task] = []  # the tasks that request hand-ins

    def run(self) -> None:
        training = self.s.spawn(self.learner.run, "train")
        for p in EVERYTHING:
            self.asking.append(self.does(partial(self.rounds, p), f"rounds of {p}"))
        for p in EVERYTHING:
            self.does(partial(self.others, p), f"others of {p}")
        for body in (self.asks_moments, self.ceases, self.outlives):
            if self.s.rng.random() < 0.5:
                self.does(body, body.__name__)
        self.s.spawn(partial(self.leaves, training), "leaves")
        self.s.run()
        for p, flat in zip(EVERYTHING, flats_of(self.learner.params), strict=True):
            number = int(flat[0])
            assert np.array_equal(flat, flat_of(p, number)), f"fragment {p} is of two versions"
        said = self.world.adopted
        for p in EVERYTHING:
            for life in {each.life for each in said}:
                mine = [each.version for each in said if (each.fragment, each.life) == (p, life)]
                assert mine == sorted(mine), f"{life} says that it goes back: {mine}"

    def does(self, body: Callable[[], None], name: str) -> Task:
        self.tasks.append(self.s.spawn(body, name))
        return self.tasks[-1]

    def now(self) -> Life:
        """Return the life that was granted last, once there is one."""
        self.s.point("a life", lambda: self.world.life)
        assert self.world.life is not None
        return self.world.life

    def rounds(self, p: Fragment) -> None:
        """Request hand-ins of a fragment, `ROUNDS` in all; publish a version or discard each."""
        done = 0
        while done < ROUNDS:
            life = self.now()
            self.asked[p] += 1
            known = Known((0, self.asked[p]))
            with self.s.within(ANSWER_S, f"a hand-in of fragment {p}"):
                handed = self.learner.hand_in(life, p, known)
            if handed is None:  # the life is over, or has not begun
                self.s.nap("no life", PAUSE_S)
                continue
            facts, sent = handed
            assert facts.id.life == life
            assert facts.id.fragment == p
            assert self.port.taken[p] == facts.base.number, f"{facts.base} is another array"
            self.handed(facts, known)
            assert not np.any(decode(split(sent)[0], LAYOUT.sizes[p])), (
                f"{facts.base} is another array"
            )
            done += 1
            if self.s.rng.random() < DISCARDED:
                self.learner.refused(facts.id)
            else:
                self.offers(self.world.publish(p, (facts.id,)))

    def handed(self, facts: HandIn, known: Known) -> None:
        """Do nothing: an island of one host has no other parts of what was handed in."""

    def given(self, life: Life, donation: Donation) -> None:
        """Do nothing: an island of one host has no other shares of the moments."""

    def trained(self) -> None:
        """Do nothing: an island of one host has no others to end."""

    def others(self, p: Fragment) -> None:
        """Publish versions in which the learner has no part.

        In lock-step (an overlap of 0) the learner waits for a version at each due point. So
        versions are published there until all has been handed in.
        """
        for _ in count() if self.overlap == 0 else range(OTHERS):
            self.s.nap("others", PAUSE_S if self.overlap else 10 * PAUSE_S)
            if all(task.done for task in self.asking):
                return
            self.now()
            self.offers(self.world.publish(p))

    def offers(self, publication: Publication) -> None:
        """Offer a version on threads of its own: late, twice, or without its difference."""
        p, chance = publication.fragment, self.s.rng
        difference = flat_of(p, publication.version.number) - flat_of(
            p, publication.previous.number
        )
        for _ in range(chance.choice((1, 1, 1, 2))):
            sent = None if chance.random() < 0.2 else difference

            def offer(sent: Sent | None = sent) -> None:
                self.s.nap("offer", PAUSE_S)
                with self.s.within(ANSWER_S, "an offer"):
                    self.learner.offer(self.now(), publication, sent)

            self.does(offer, f"offer {publication.version.number} of {p}")

    def asks_moments(self) -> None:
        for _ in range(2):
            self.s.nap("moments", PAUSE_S)
            with self.s.within(ANSWER_S, "moments"):
                life = self.now()
                if (given := self.learner.moments(life)) is not None:
                    assert len(given.leaves) == len(self.learner.shares)
                    self.given(life, given)

    def ceases(self) -> None:
        for _ in range(2):
            self.s.nap("ceases", 4 * PAUSE_S)
            self.learner.cease(Void(self.now(), "over", self.s.rng.random() < 0.5))

    def outlives(self) -> None:
        life = self.now()
        with self.s.within(100 * ANSWER_S, "the end of a life"):
            self.learner.outlive(life)

    def all_answered(self) -> None:
        """Wait until every call is answered; each publication brings more offers."""
        while watched := [t for t in self.tasks if not t.done and t.name != "outlives"]:
            self.s.point("all answers", lambda: all(task.done for task in watched))

    def has_all(self) -> bool:
        """Return whether the learner has adopted the newest version of each fragment."""
        state = self.learner.now
        bases = [] if state is None else [track.base for track in state.tracks]
        return bases == [version for version, _ in self.world.public]

    def leaves(self, training: Task) -> None:
        """Let the learner leave once all answers have come."""
        self.all_answered()
        while (state := self.learner.now) is None or not state.goes_on:
            self.s.nap("another life begins", PAUSE_S)
        for _ in range(2):
            for p in EVERYTHING:
                self.offers(self.world.publish(p))
        self.all_answered()
        with self.s.within(ANSWER_S, "the newest versions"):
            while not self.has_all():
                self.s.nap("adoptions", PAUSE_S)
        with self.s.within(ANSWER_S, "the end of training"):
            self.learner.leave()
            self.s.point("training ends", lambda: training.done)
        self.trained()
