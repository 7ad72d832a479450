"""The threads of an island of three hosts: lead and followers, over a gang in memory.

Orders reach each other host in order, and late. Publications and fates arrive on threads of their
own beside the orders. Replies come back over one queue for each host. All hosts have to dispatch
the same, so each part of a hand-in must be of the same version and the same steps.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from coordinator.codec import decode, split
from coordinator.parts import Part
from coordinator.protocol import HandIn, Known, Life
from islands import donations, exchange, learner, mailbox, thread_queues, trainer
from islands import message_thread as talker
from islands.donations import Donation
from islands.hosts import host_life, lead
from islands.hosts import publication_lanes as following
from islands.hosts.follower import Follower
from islands.hosts.lead import Lead
from islands.hosts.orders import FateNotice, News, Order, Word
from tests.shells import gang_shell
from tests.shells.given import CALL_S, INNER, LAYOUT, Numbers, Port, habits_of
from tests.shells.learner_shell import ANSWER_S, LearnerPlay
from tests.shells.scheduler import Scheduler

OTHERS = 2
"""The number of hosts beside the first."""


def play(s: Scheduler) -> None:
    """Play one schedule. The seed chooses as for one host."""
    with s.controls(
        donations,
        exchange,
        following,
        gang_shell,
        host_life,
        lead,
        learner,
        mailbox,
        talker,
        thread_queues,
        trainer,
    ):
        _Gang(s).run()


class _Host:
    """A host other than the first, and the queues between the two."""

    def __init__(self, s: Scheduler, number: int, lead: Lead[Order], play: _Gang) -> None:
        self.s, self.number, self.lead = s, number, lead
        self.port = Port(play.rule)
        self.down, self.orders = (
            queue.SimpleQueue[Order | None](),
            queue.SimpleQueue[Order | None](),
        )
        self.up = queue.SimpleQueue[Word]()
        self.follower = Follower(
            LAYOUT,
            INNER,
            self.port,
            Numbers,
            play.world,
            habits_of(play.overlap),
            self.up.put,
            lambda: None,
            None,
        )
        self.spawn(self.hears, "hears", daemon=True)
        self.spawn(self.tells, "tells", daemon=True)
        self.spawn(lambda: self.follower.run(self.given()), "follows")

    def spawn(self, body: Callable[[], None], name: str, *, daemon: bool = False) -> None:
        self.s.spawn(body, f"host {self.number} {name}", daemon=daemon)

    def hears(self) -> None:
        """Sort the first host's messages: orders go to a queue, the others to threads."""
        while True:
            said = self.down.get()
            self.s.nap("on its way", CALL_S)
            match said:
                case News(life, publication):
                    self.spawn(partial(self.follower.offer, life, publication), "offer")
                case FateNotice(contribution):
                    self.spawn(partial(self.follower.refused, contribution), "fate")
                case order:
                    self.orders.put(order)

    def tells(self) -> None:
        while True:
            word = self.up.get()
            self.s.nap("on its way", CALL_S)
            self.lead.heard(word)

    def given(self) -> Iterator[Order]:
        while (order := self.orders.get()) is not None:
            yield order


class _Gang(LearnerPlay):
    def __init__(self, s: Scheduler) -> None:
        self.hosts: list[_Host] = []
        first = Lead[Order](self.send, OTHERS)
        super().__init__(s, first)
        self.hosts = [_Host(s, number, first, self) for number in range(1, OTHERS + 1)]

    def send(self, order: Order) -> None:
        for host in self.hosts:
            host.down.put(order)

    def handed(self, facts: HandIn, known: Known) -> None:
        for host in self.hosts:
            with self.s.within(ANSWER_S, f"a part of fragment {facts.id.fragment}"):
                part = host.follower.part(facts.id, known)
            if part is None:
                assert self.is_over(facts.id.life), "its life goes on"
                continue
            assert isinstance(part, Part), part
            assert part.facts == facts
            size = LAYOUT.sizes[facts.id.fragment]
            assert not np.any(decode(split(part.payload)[0], size)), (
                f"host {host.number} has another"
            )
            assert host.port.taken[facts.id.fragment] == facts.base.number, f"host {host.number}"

    def given(self, life: Life, donation: Donation) -> None:
        for host in self.hosts:
            with self.s.within(ANSWER_S, "a share of the moments"):
                share = host.follower.moments(life, donation.number)
            if share is None:
                assert self.is_over(life), "its life goes on"
            else:
                assert len(share) == len(host.follower.shares)

    def is_over(self, life: Life) -> bool:
        state = self.learner.now
        return state is None or state.life != life or not state.goes_on

    def trained(self) -> None:
        for host in self.hosts:
            host.down.put(None)
