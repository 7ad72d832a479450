"""A learner's uplink loses no rounding error, and its downlink no bit of the public chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.shard.arrays import fresh
from coordinator.codec import Sent, Wire, decode, encode, split
from coordinator.fragments import Flat, Layout, Leaf, cut
from coordinator.merge import MergeRule
from coordinator.protocol import (
    Anchor,
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Known,
    Lease,
    Life,
    Merge,
    Progress,
    Publication,
    Publish,
    Version,
)
from islands.encoder import OnHost
from islands.exchange import Basis, Cut, Downlink, FragmentSnapshot, Missed, Public, Uplink
from islands.learner_messages import HandOver, Track
from tests.given import array_shard, outer_rule

LAYOUT: Layout = cut(
    [Leaf("w", (60, 5)), Leaf("b", (40,)), Leaf("table", (30, 2), embedding=True)], 2
)
LIFE = Life(Island("a"), Incarnation(3))
F0, F1 = Fragment(0), Fragment(1)
V0, V1, V2, V3, V4 = (Version(0, number) for number in range(5))


def numbers(seed: int, p: Fragment = F0) -> Flat:
    return np.random.default_rng(seed).normal(size=LAYOUT.sizes[p]).astype(np.float32)


# --- up -------------------------------------------------------------------------------------------


@dataclass
class Sender:
    """A learner that hands in deltas of one step each over its own uplink."""

    wire: Wire = Wire.BF16
    steps: int = 0
    uplink: Uplink = field(init=False)

    def __post_init__(self) -> None:
        self.uplink = Uplink(LIFE, OnHost(self.wire), LAYOUT)

    def send(self, delta: Flat, p: Fragment = F0) -> tuple[ContributionId, Flat]:
        """Return the id of the message and the delta that arrives."""
        snapshot = self.snapshot(delta)
        said, payload = self.uplink.encode(p, snapshot)
        assert snapshot.cut is None, "it may be asked for long after, and a fragment is large"
        return said.id, decode(split(payload)[0], delta.size)

    def snapshot(self, delta: Flat) -> FragmentSnapshot:
        origin: Any = np.zeros_like(delta)
        track = Track(V0, self.steps, self.steps, 10 * self.steps)
        self.steps += 1
        progress = Progress(self.steps, 10 * self.steps, Lease(0, self.steps))
        flat: Any = delta
        return FragmentSnapshot(handed(track, progress), Cut(flat, Basis(origin, origin)))


def handed(track: Track, progress: Progress, p: Fragment = F0) -> HandOver:
    return HandOver(p, ContributionId(LIFE, p, track.from_step, progress.steps), track, progress)


def rounded(values: np.ndarray) -> Flat:
    return decode(encode(Wire.BF16, values.astype(np.float32)), values.size)


def test_hand_in_carries_its_facts() -> None:
    flat: Any = numbers(1) + numbers(2)
    progress = Progress(steps=9, tokens=700, lease=Lease(4, 2))
    basis = Basis(numbers(1), numbers(1))
    snapshot = FragmentSnapshot(handed(Track(V2, 5, 5, 300), progress), Cut(flat, basis))
    said, payload = Uplink(LIFE, OnHost(Wire.F32), LAYOUT).encode(F0, snapshot)
    assert said == HandIn(
        id=ContributionId(LIFE, F0, 5, 9),
        base=V2,
        since_step=5,
        tokens=400,
        fingerprint=LAYOUT.fingerprint,
        progress=progress,
    )
    np.testing.assert_array_equal(payload, flat - numbers(1))


def test_with_current_anchor_each_hand_in_is_relative_to_the_base() -> None:
    """The delta counts from the base; steps and tokens are those of the interval."""
    flat: Any = numbers(1) + numbers(2)
    progress = Progress(steps=9, tokens=700, lease=Lease(4, 2))
    uplink = Uplink(LIFE, OnHost(Wire.F32), LAYOUT, Anchor.CURRENT)
    again = handed(Track(V2, 5, 7, 500), progress)
    snapshot = FragmentSnapshot(again, Cut(flat, Basis(numbers(1), numbers(3))))
    said, payload = uplink.encode(F0, snapshot)
    assert said.id == ContributionId(LIFE, F0, 7, 9)
    assert (said.since_step, said.tokens) == (5, 200)
    np.testing.assert_array_equal(payload, flat - numbers(1))


def test_merged_message_leaves_its_rounding_error_to_the_next() -> None:
    sender = Sender()
    said, first = sender.send(numbers(1))
    np.testing.assert_array_equal(first, rounded(numbers(1)))
    sender.uplink.settle(said, merged=True)
    _, second = sender.send(numbers(2))
    left = numbers(1) - rounded(numbers(1))
    assert np.any(left != 0)
    np.testing.assert_array_equal(second, rounded(numbers(2) + left))


def test_refused_message_returns_the_residual_it_carried() -> None:
    """A refused message does not return its own error, since its delta is discarded."""
    sender = Sender()
    first, arrived = sender.send(numbers(1))
    sender.uplink.settle(first, merged=True)
    second, _ = sender.send(numbers(2))
    sender.uplink.settle(second, merged=False)
    _, third = sender.send(numbers(3))
    np.testing.assert_array_equal(third, rounded(numbers(3) + (numbers(1) - arrived)))


def test_residual_is_not_sent_while_its_message_is_unresolved() -> None:
    sender = Sender()
    first, arrived = sender.send(numbers(1))
    _, second = sender.send(numbers(2))
    np.testing.assert_array_equal(second, rounded(numbers(2)))
    sender.uplink.settle(first, merged=True)
    _, third = sender.send(numbers(3))
    np.testing.assert_array_equal(third, rounded(numbers(3) + (numbers(1) - arrived)))


def test_next_request_resolves_earlier_messages() -> None:
    """A message is merged, held, or lost, on its way or with its shard."""
    sender = Sender()
    merged, arrived = sender.send(numbers(1))
    held, _ = sender.send(numbers(2))
    lost, _ = sender.send(numbers(3))
    sender.uplink.hear(F0, Known((0, 1), (merged, held)))
    sender.uplink.hear(F0, Known((0, 2), (held,), (merged,)))
    sender.uplink.settle(lost, merged=True)  # too late
    _, fourth = sender.send(numbers(4))
    left = numbers(1) - arrived
    np.testing.assert_array_equal(fourth, rounded(numbers(4) + left))
    sender.uplink.hear(F1, Known((0, 3)))
    sender.uplink.hear(F0, Known((0, 1)))  # a delayed message
    sender.uplink.settle(held, merged=True)
    _, fifth = sender.send(numbers(5))
    np.testing.assert_array_equal(fifth, rounded(numbers(5) + (numbers(2) - rounded(numbers(2)))))


def test_each_fragment_has_its_own_residual() -> None:
    sender = Sender()
    said, _ = sender.send(numbers(1))
    sender.uplink.settle(said, merged=True)
    _, other = sender.send(numbers(2, F1), F1)
    np.testing.assert_array_equal(other, rounded(numbers(2, F1)))


def test_settling_twice_is_idempotent() -> None:
    sender = Sender()
    said, arrived = sender.send(numbers(1))
    sender.uplink.settle(said, merged=True)
    sender.uplink.settle(said, merged=True)
    sender.uplink.settle(said, merged=False)
    sender.uplink.settle(ContributionId(LIFE, F0, 90, 99), merged=True)
    _, second = sender.send(numbers(2))
    np.testing.assert_array_equal(second, rounded(numbers(2) + (numbers(1) - arrived)))


@pytest.mark.parametrize("fate", [None, True, False])
def test_repeated_requests_for_the_same_steps_get_the_same_bytes(fate: bool | None) -> None:
    """A draining learner is asked for everything, including what it was asked for before.

    The first answer may be merged or refused before the second is encoded.
    """
    sender = Sender()
    first, arrived = sender.send(numbers(1))
    sender.uplink.settle(first, merged=True)
    snapshot = sender.snapshot(numbers(2))
    said, payload = sender.uplink.encode(F0, snapshot)
    if fate is not None:
        sender.uplink.settle(said.id, merged=fate)
    assert sender.uplink.encode(F0, snapshot)[0] == said
    np.testing.assert_array_equal(sender.uplink.encode(F0, snapshot)[1], payload)
    sender.uplink.settle(said.id, merged=False)
    _, third = sender.send(numbers(3))
    before = numbers(1) - arrived
    left = numbers(2) + before - decode(split(payload)[0], numbers(2).size) if fate else before
    np.testing.assert_array_equal(third, rounded(numbers(3) + left))


def test_f32_has_no_residual() -> None:
    sender = Sender(Wire.F32)
    for number, merged in enumerate([True, False, True]):
        said, arrived = sender.send(numbers(number))
        np.testing.assert_array_equal(arrived, numbers(number))
        sender.uplink.settle(said, merged=merged)


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["send", "merged", "refused"]), max_size=30), st.randoms())
def test_no_rounding_error_is_lost_in_any_order_of_answers(does: list[str], chance: Any) -> None:
    """The merged deltas and one last message together are all that was trained.

    A message without an answer keeps the error that it carries; here every message is answered at
    the end.
    """
    sender, open_ids = Sender(), dict[ContributionId, tuple[Flat, Flat]]()
    wanted = got = np.zeros(LAYOUT.sizes[F0])

    def answer(merged: bool) -> None:
        nonlocal wanted, got
        said = chance.choice(sorted(open_ids))
        delta, arrived = open_ids.pop(said)
        sender.uplink.settle(said, merged=merged)
        wanted, got = wanted + merged * delta, got + merged * arrived

    for number, what in enumerate(does):
        if what == "send":
            said, arrived = sender.send(numbers(number))
            open_ids[said] = numbers(number), arrived
        elif open_ids:
            answer(what == "merged")
    while open_ids:
        answer(chance.random() < 0.5)
    _, last = sender.send(np.zeros(LAYOUT.sizes[F0], np.float32))
    np.testing.assert_allclose(got + last, wanted, atol=1e-4)


# --- down -----------------------------------------------------------------------------------------


@dataclass
class Publisher:
    """A shard that merges the training of one learner again and again, and publishes it.

    `fetched`: the answers to requests for missed publications.
    """

    wire: Wire = Wire.BF16
    keep_differences: int = 0
    generation: int = 0
    number: int = 0
    fetched: list[Missed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shard = array_shard(
            LAYOUT,
            fresh([numbers(7, F0), numbers(7, F1)]),
            merge_rule=MergeRule.RDA,
            outer=outer_rule(0.7, 0.9),
            wire_up=self.wire,
            wire_down=self.wire,
            keep_differences=self.keep_differences,
        )

    def downlink(self) -> Downlink:
        return Downlink(self.public(), self.missed)

    def public(self) -> dict[Fragment, Public]:
        return dict(zip((F0, F1), self.shard.whole([F0, F1]), strict=True))

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        found = self.shard.missed(p, older, newer)
        self.fetched.append(found)
        return found

    @property
    def fetched_bytes(self) -> int:
        return sum(
            sum(each.nbytes for each in found) if isinstance(found, list) else found[1].nbytes
            for found in self.fetched
        )

    def publish(self, p: Fragment = F0) -> tuple[Publication, Sent]:
        before, _ = self.public()[p]
        version = Version(self.generation, before.number + 1)
        number = self.number = self.number + 1
        said = ContributionId(LIFE, p, number - 1, number)
        progress = Progress(number, 10 * number, Lease(0, number))
        handed = HandIn(said, before, number - 1, 10, LAYOUT.fingerprint, progress)
        contribution = self.shard.receive(handed, encode(self.wire, 1e-3 * numbers(number, p)))
        self.shard.merge(Merge(p, version, (Item(contribution, 1.0),), "all delivered"))
        published = self.shard.publish(Publish(p, version, before, (LIFE,), (said,)))
        assert published is not None
        return published


def same(found: Public | None, wanted: Public) -> bool:
    return found is not None and found[0] == wanted[0] and np.array_equal(found[1], wanted[1])


@pytest.mark.parametrize("wire", Wire)
def test_public_chain_equals_the_shards_bit_for_bit(wire: Wire) -> None:
    publisher = Publisher(wire)
    downlink = publisher.downlink()
    for p in (F0, F1, F0, F0, F1, F0):
        newest = downlink.follow(*publisher.publish(p))
        assert same(newest, publisher.public()[p])
    assert publisher.public()[F0][0] == V4
    assert not publisher.fetched, "nothing but differences has travelled"


def test_public_chain_stays_near_the_master_despite_rounding() -> None:
    """The rounding error of one publication is part of the next difference."""
    coarse, exact = Publisher(Wire.BF16), Publisher(Wire.F32)
    for _ in range(20):
        coarse.publish()
        exact.publish()
    moved = exact.public()[F0][1] - numbers(7, F0)
    apart = np.linalg.norm(coarse.public()[F0][1] - exact.public()[F0][1])
    assert apart < 5e-3 * np.linalg.norm(moved)


def wholes(publisher: Publisher) -> list[bool]:
    """Return for each fetch whether the whole fragment came."""
    return [not isinstance(found, list) for found in publisher.fetched]


@pytest.mark.parametrize("keep", [0, 4])
def test_chain_continues_after_a_missed_publication(keep: int) -> None:
    publisher = Publisher(Wire.INT4, keep)
    downlink = publisher.downlink()
    publisher.publish()  # missed
    assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
    assert wholes(publisher) == [keep == 0]
    assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
    assert len(publisher.fetched) == 1


@pytest.mark.parametrize("keep", [0, 4])
def test_publication_without_payload_is_fetched(keep: int) -> None:
    """One request also fetches what was missed before; the chain continues from there."""
    publisher = Publisher(Wire.INT4, keep)
    downlink = publisher.downlink()
    said, _ = publisher.publish()
    assert same(downlink.follow(said, None), publisher.public()[F0])
    publisher.publish()  # missed
    said, _ = publisher.publish()
    assert same(downlink.follow(said, None), publisher.public()[F0])
    assert downlink.follow(said, None) is None
    assert wholes(publisher) == [keep == 0] * 2
    assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
    assert len(publisher.fetched) == 2


def test_fetches_the_whole_fragment_after_missing_too_many() -> None:
    publisher = Publisher(Wire.INT4, 4)
    for missed, whole in ((3, [False]), (4, [True]), (0, []), (1, [False])):
        downlink, before = publisher.downlink(), len(publisher.fetched)
        for _ in range(missed):
            publisher.publish()
        assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
        assert wholes(publisher)[before:] == whole


def test_keeps_only_differences_smaller_than_the_fragment() -> None:
    for wire, most in {Wire.F32: 0, Wire.BF16: 2, Wire.INT8: 4, Wire.INT4: 4}.items():
        publisher = Publisher(wire, 4)
        before = publisher.shard.bytes_held
        for _ in range(9):
            publisher.publish()
        assert publisher.shard.bytes_held - before == most * wire.bytes_of(LAYOUT.sizes[F0])


def test_learner_of_an_older_generation_fetches_the_whole_fragment() -> None:
    publisher = Publisher(Wire.INT4, 4)
    downlink = publisher.downlink()
    publisher.publish()
    version, _ = publisher.public()[F0]
    publisher.generation = 1
    assert publisher.shard.recover({F0: version}, 1) == {F0: version}, "it is in memory"
    publisher.publish()
    assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
    assert wholes(publisher) == [True]


@settings(max_examples=60, deadline=None)
@given(
    wire=st.sampled_from(Wire),
    keep=st.integers(0, 5),
    heard=st.lists(st.lists(st.booleans(), min_size=2, max_size=2), max_size=14),
    late=st.integers(0, 3),
)
def test_learners_that_miss_offers_end_with_the_same_bits(
    wire: Wire, keep: int, heard: list[list[bool]], late: int
) -> None:
    """Two learners miss some offers, and receive some late or twice."""
    publisher = Publisher(wire, keep)
    downlinks = [publisher.downlink() for _ in range(2)]
    offers: list[tuple[Publication, Sent]] = []
    for both in heard:
        offers.append(publisher.publish())
        for downlink, hears in zip(downlinks, both, strict=True):
            if hears:
                assert same(downlink.follow(*offers[-1]), publisher.public()[F0])
            else:
                newest = downlink.follow(*offers[max(0, len(offers) - 1 - late)])
                assert newest is None or newest[0] <= publisher.public()[F0][0]
    last = publisher.publish()
    for downlink in downlinks:
        assert same(downlink.follow(*last), publisher.public()[F0])


def test_int4_differences_are_much_smaller_than_the_fragment() -> None:
    """Every second publication is missed; a fetch costs half a byte a parameter instead of four."""
    fetched: list[int] = []
    for keep in (4, 0):
        publisher = Publisher(Wire.INT4, keep)
        downlink = publisher.downlink()
        for _ in range(10):
            publisher.publish()
            assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
        fetched.append(publisher.fetched_bytes)
    assert fetched == [10 * Wire.INT4.bytes_of(LAYOUT.sizes[F0]), 10 * 4 * LAYOUT.sizes[F0]]


def test_old_publications_are_ignored() -> None:
    publisher = Publisher()
    downlink = publisher.downlink()
    first, second = publisher.publish(), publisher.publish()
    newest = downlink.follow(*second)  # it overtook the first one
    assert same(newest, publisher.public()[F0])
    assert downlink.follow(*first) is None
    assert downlink.follow(*second) is None
    assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
    assert len(publisher.fetched) == 1


def test_fetch_may_return_a_newer_version() -> None:
    publisher = Publisher()
    downlink = publisher.downlink()
    _, second, third = publisher.publish(), publisher.publish(), publisher.publish()
    newest = downlink.follow(*second)
    assert newest is not None
    assert newest[0] == V3
    assert downlink.follow(*third) is None
    assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])


def test_next_fetch_recovers_from_a_failed_one() -> None:
    publisher, lost = Publisher(Wire.INT4, 4), list[Fragment]()

    def missed(p: Fragment, older: Version, newer: Version) -> Missed:
        if not lost:
            lost.append(p)
            raise ConnectionError("the shard is out of reach")
        return publisher.missed(p, older, newer)

    downlink = Downlink(publisher.public(), missed)
    publisher.publish()
    with pytest.raises(ConnectionError):
        downlink.follow(*publisher.publish())
    assert same(downlink.follow(*publisher.publish()), publisher.public()[F0])
    assert wholes(publisher) == [False]


def test_public_fragment_is_never_overwritten() -> None:
    """Learners keep it as their base while newer versions arrive."""
    publisher = Publisher()
    downlink = publisher.downlink()
    held: Sequence[Public | None] = [downlink.follow(*publisher.publish()) for _ in range(3)]
    flats = [public[1] for public in held if public is not None]
    assert len({flat.tobytes() for flat in flats}) == 3
