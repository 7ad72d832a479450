"""Tests that no rounding error is lost, whatever is late, repeated or lost, and whatever dies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.shard.fates import MERGED_KEPT, Fates
from coordinator.codec import Wire, decode, split
from coordinator.fragments import Flat, Leaf, cut
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Incarnation,
    Island,
    Known,
    Lease,
    Life,
    Progress,
    Version,
)
from islands.encoder import OnHost
from islands.exchange import Basis, Cut, FragmentSnapshot, Uplink
from islands.learner_messages import HandOver, Track

SIZE = 40
LAYOUT = cut([Leaf("w", (SIZE,)), Leaf("b", (SIZE,))], 2)
F0, F1 = Fragment(0), Fragment(1)
A1, A2 = (Life(Island("a"), Incarnation(n)) for n in (1, 2))
B1 = Life(Island("b"), Incarnation(1))


def said(life: Life, start: int = 0, p: Fragment = F0) -> ContributionId:
    return ContributionId(life, p, start, start + 1)


def test_contribution_is_held_until_it_is_freed_or_public() -> None:
    fates = Fates()
    for start in range(3):
        fates.arrived(said(A1, start))
    fates.freed(said(A1, 0))
    fates.published([said(A1, 1), said(B1)])
    fates.freed(said(A1, 1))
    assert fates.known(A1, F0) == Known((0, 1), (said(A1, 2),), (said(A1, 1),))
    assert fates.known(A1, F1) == Known((0, 2))
    assert fates.known(B1, F0) == Known((0, 3), (), (said(B1),))
    assert set(fates.merged([F0])) == {said(A1, 1), said(B1)}


def test_dropped_copy_leaves_the_contribution_held() -> None:
    """Otherwise the learner would take back the residual of a message that will be merged."""
    fates = Fates()
    for _ in range(2):
        fates.arrived(said(A1))
    assert fates.known(A1, F0).held == (said(A1),)
    fates.freed(said(A1))
    assert fates.known(A1, F0).held == (said(A1),)
    fates.arrived(said(A1))
    fates.published([said(A1)])
    fates.freed(said(A1))
    assert fates.known(A1, F0) == Known((0, 3), (), (said(A1),))


def test_shard_death_loses_held_contributions_but_not_public_ones() -> None:
    fates = Fates()
    fates.arrived(said(A1, 0))
    fates.published([said(A1, 1)])
    assert fates.known(A1, F0) == Known((0, 1), (said(A1, 0),), (said(A1, 1),))
    fates.died(1)
    assert fates.known(A1, F0) == Known((1, 1), (), (said(A1, 1),))


def test_remembers_only_the_newest_life_of_an_island() -> None:
    fates = Fates()
    fates.arrived(said(A1))
    fates.published([said(A1, 1)])
    fates.arrived(said(A2))
    fates.published([said(A1, 2)])
    fates.arrived(said(A1, 3))
    assert fates.known(A1, F0) == Known((0, 1))
    assert fates.known(A2, F0) == Known((0, 2), (said(A2),))


def test_remembers_a_bounded_number_of_merged_contributions() -> None:
    fates = Fates()
    for start in range(100):
        fates.arrived(said(A1, start))
        fates.published([said(A1, start)] * 2)
    assert fates.known(A1, F0).merged == tuple(said(A1, n) for n in range(100)[-MERGED_KEPT:])


# --- random histories of messages -----------------------------------------------------------------


@dataclass
class Call:
    """A requested hand-in, with the shard's facts at the time and its progress."""

    known: Known
    heard: bool = False
    snapshot: FragmentSnapshot | None = None


@dataclass
class World:
    """One learner's fragment, its shard and its syncer, and what is true of each message.

    `orphans` are calls of a shard that has died since; they still run at the learner.
    """

    chance: random.Random
    wire: Wire
    steps: int = 0
    deaths: int = 0
    call: Call | None = None
    orphans: list[Call] = field(default_factory=list[Call])
    inbox: list[ContributionId] = field(default_factory=list[ContributionId])
    staged: list[ContributionId] = field(default_factory=list[ContributionId])
    slow: list[FragmentSnapshot] = field(default_factory=list[FragmentSnapshot])
    merged: set[ContributionId] = field(default_factory=set[ContributionId])
    arrived: set[ContributionId] = field(default_factory=set[ContributionId])
    deltas: dict[ContributionId, Flat] = field(default_factory=dict[ContributionId, Flat])
    decoded: dict[ContributionId, Flat] = field(default_factory=dict[ContributionId, Flat])

    def __post_init__(self) -> None:
        self.uplink = Uplink(A1, OnHost(self.wire), LAYOUT)
        self.shard, self.syncer = Fates(), Fates()

    def maybe(self) -> bool:
        return self.chance.random() < 0.5

    def ask(self) -> None:
        """Open a round, unless an answer is owed or three contributions are waiting."""
        if self.call is None and len(self.inbox) + len(self.staged) < 3:
            self.call = Call(self.shard.known(A1, F0))

    def goes_on(self) -> None:
        """Advance one of the calls: it is received, then served at a boundary, then answered."""
        calls = [*self.orphans, *([self.call] if self.call else [])]
        if not calls:
            return
        call = self.chance.choice(calls)
        if not call.heard:
            call.heard = True
            self.uplink.hear(F0, call.known)
        elif call.snapshot is None:
            snapshot = self.boundary()
            for each in calls:  # calls that wait for the same boundary share its snapshot
                if each.heard and each.snapshot is None:
                    each.snapshot = snapshot
        else:
            self.answer(call, call.snapshot)

    def boundary(self) -> FragmentSnapshot:
        origin: Any = np.zeros(SIZE, np.float32)
        flat: Any = np.random.default_rng(self.steps).normal(size=SIZE).astype(np.float32)
        track = Track(Version(0, 0), self.steps, self.steps, 10 * self.steps)
        self.steps += 1
        progress = Progress(self.steps, 10 * self.steps, Lease(0, self.steps))
        said = ContributionId(A1, F0, self.steps - 1, self.steps)
        word = HandOver(F0, said, track, progress)
        return FragmentSnapshot(word, Cut(flat, Basis(origin, origin)))

    def answer(self, call: Call, snapshot: FragmentSnapshot) -> None:
        """Answer, or lose the answer on its way."""
        cut = snapshot.cut
        facts, payload = self.uplink.encode(F0, snapshot)
        if self.maybe():
            self.slow.append(snapshot)
        if cut is not None:
            self.deltas[facts.id] = np.asarray(cut.flat)
        self.decoded[facts.id] = decode(split(payload)[0], SIZE)
        if call is not self.call:
            self.orphans.remove(call)
            return
        self.call = None
        if self.maybe() or self.maybe():
            self.shard.arrived(facts.id)
            if facts.id in self.arrived:
                self.discard(facts.id)  # superseded
            else:
                self.arrived.add(facts.id)
                self.inbox.append(facts.id)

    def is_asked_twice(self) -> None:
        """Answer a second call of a draining learner that waited for the same boundary."""
        if self.slow:
            said, payload = self.uplink.encode(F0, self.slow.pop())
            assert np.array_equal(decode(split(payload)[0], SIZE), self.decoded[said.id])
            if said.id not in (*self.inbox, *self.staged):
                self.discard(said.id)  # superseded

    def discard(self, one: ContributionId, *, told: bool = False) -> None:
        self.shard.freed(one)
        if told:
            self.uplink.settle(one, merged=False)

    def refuse(self) -> None:
        """Refuse a contribution at the gate or as stale; the learner may not be notified."""
        if self.inbox:
            one = self.inbox.pop(self.chance.randrange(len(self.inbox)))
            self.discard(one, told=self.maybe())

    def merge(self) -> None:
        if not self.staged:
            self.staged, self.inbox = self.inbox, []

    def publish(self) -> None:
        """Publish. The learner may receive the merges, or fetch the version later without them."""
        merged, self.staged = self.staged, []
        self.merged |= set(merged)
        self.syncer.published(merged)
        self.shard.published(merged)
        if self.maybe():
            self.heard_of(merged)

    def heard_of(self, merged: list[ContributionId]) -> None:
        for one in merged:
            self.uplink.settle(one, merged=True)

    def heard_late(self) -> None:
        """Deliver a message about a merge that was on its way for long."""
        if self.merged:
            self.heard_of([self.chance.choice(sorted(self.merged))])

    def shard_dies(self) -> None:
        """Lose all that the shard held, even if the syncer had no record of it.

        The shard may have had the order to publish what it had staged.
        """
        if self.staged and self.maybe():
            self.merged |= set(self.staged)
            self.syncer.published(self.staged)
            self.staged = []
        for one in (*self.inbox, *self.staged):
            if self.maybe():
                self.uplink.settle(one, merged=False)
        self.inbox, self.staged = [], []
        if self.call is not None:
            self.orphans.append(self.call)
            self.call = None
        self.deaths += 1
        self.shard = Fates()
        self.shard.died(self.deaths)
        self.shard.published(self.syncer.merged([F0]))

    def settles(self) -> None:
        """Finish everything under way, merge and publish it, and notify the learner."""
        while self.call or self.orphans:
            self.goes_on()
        for _ in range(2):
            self.merge()
            self.publish()
        self.uplink.hear(F0, self.shard.known(A1, F0))

    def errors_held(self) -> Flat:
        """Return the rounding errors that the next message would carry."""
        rounding = self.uplink._roundings[F0]
        assert not rounding.sent
        ready: Any = rounding.ready
        return np.zeros(SIZE, np.float32) if ready is None else ready


WHAT = {
    "ask": World.ask,
    "goes on": World.goes_on,
    "is asked twice": World.is_asked_twice,
    "refuse": World.refuse,
    "merge": World.merge,
    "publish": World.publish,
    "heard late": World.heard_late,
    "shard dies": World.shard_dies,
}


@settings(max_examples=100, deadline=None)
@given(
    happens=st.lists(
        st.sampled_from([*WHAT, "ask", "goes on", "goes on", "goes on"]), min_size=40, max_size=120
    ),
    chance=st.randoms(use_true_random=False),
    wire=st.sampled_from([Wire.BF16, Wire.INT4]),
)
def test_merged_values_plus_held_errors_equal_what_was_trained(
    happens: list[str], chance: random.Random, wire: Wire
) -> None:
    """The sum covers all that reached a merge; the rest is known to be discarded or lost."""
    world = World(chance, wire)
    for what in happens:
        WHAT[what](world)
    world.settles()
    trained = sum((world.deltas[one] for one in world.merged), np.zeros(SIZE, np.float32))
    got = sum((world.decoded[one] for one in world.merged), world.errors_held())
    np.testing.assert_allclose(got, trained, atol=1e-4)
