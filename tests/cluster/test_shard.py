"""Tests of the shard's arithmetic: what a contribution is the difference to when it is merged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.shard.arithmetic import Files
from cluster.shard.arrays import ArrayArithmetic, ArrayShard, fresh
from cluster.shard.files import NoFiles
from cluster.shard.method import Method
from cluster.shard.retention import Retention
from cluster.shard.shard import Shard
from cluster.storage.format import Damaged
from cluster.storage.fragments import Arrays
from coordinator.codec import Payload, Wire, decode, encode
from coordinator.errors import Misordered, NoModel, Outdated
from coordinator.fragments import Flat, Leaf, cut
from coordinator.merge import MergeRule
from coordinator.protocol import (
    Anchor,
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Reference,
    Unsound,
    Version,
)
from tests.given import array_shard, outer_rule

LAYOUT = cut([Leaf("w", (6, 5)), Leaf("b", (4,))], 1)
F0 = Fragment(0)
AS_IT_IS = outer_rule(learning_rate=1.0, momentum=0.0)
A, B = Life(Island("a"), Incarnation(1)), Life(Island("b"), Incarnation(2))
STALENESS = 2


def numbers(seed: int) -> Flat:
    return np.random.default_rng(seed).normal(size=LAYOUT.sizes[F0]).astype(np.float32)


class Shelf(NoFiles):
    """Files that are in-memory copies of what is saved."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Fragment, Version], Arrays] = {}

    def save(self, p: Fragment, arrays: Callable[[], Arrays], *, first: bool) -> None:
        stored = arrays()
        self.kept[p, stored.version] = copied(stored)

    def has(self, p: Fragment, version: Version) -> bool:
        return (p, version) in self.kept

    def load(self, p: Fragment, version: Version) -> Arrays:
        return copied(self.kept[p, version])

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        newest = max(version for q, version in self.kept if q == p and version <= upto)
        return self.load(p, newest)

    def forget_after(self, p: Fragment, version: Version) -> None:
        self.kept = {key: a for key, a in self.kept.items() if key[0] != p or key[1] <= version}


class Story:
    """A shard that merges the plain mean of contributions, and publishes it at once."""

    def __init__(
        self,
        anchor: Anchor,
        wire: Wire = Wire.F32,
        keep_differences: int = 0,
        wire_up: Wire | None = None,
        files: Files[Arrays] | None = None,
        every: int = 1,
    ) -> None:
        self.wire_up = wire if wire_up is None else wire_up
        self.shard = array_shard(
            LAYOUT,
            fresh([numbers(0)]),
            merge_rule=MergeRule.MEAN,
            outer=AS_IT_IS,
            wire_up=self.wire_up,
            wire_down=wire,
            anchor=anchor,
            max_staleness=STALENESS,
            keep_differences=keep_differences,
            files=files,
            every=every,
        )

    @property
    def public(self) -> Flat:
        return self.shard.whole([F0])[0][1]

    @property
    def version(self) -> Version:
        return self.shard.whole([F0])[0][0]

    def hand_in(self, life: Life, base: int, payload: Payload) -> Item:
        """Hand in what was trained from version number `base` until now."""
        now = self.version.number + 1
        id_, progress = ContributionId(life, F0, now - 1, now), Progress(now, now, Lease(0))
        said = HandIn(id_, Version(0, base), id_.from_step, 1, LAYOUT.fingerprint, progress)
        return Item(self.shard.receive(said, payload), 1.0)

    def merge(self, deltas: dict[Life, tuple[int, Flat]], *, stored: bool = False) -> None:
        """Merge each learner's delta from its base, the version of that number, in equal shares."""
        following = Version(0, self.version.number + 1)
        items = [
            self.hand_in(life, base, encode(self.wire_up, delta))._replace(weight=1 / len(deltas))
            for life, (base, delta) in deltas.items()
        ]
        self.shard.merge(Merge(F0, following, tuple(items), "all delivered"))
        if stored:
            assert self.shard.store(F0, following)
        said = tuple(item.contribution.id for item in items)
        self.shard.publish(Publish(F0, following, self.version, tuple(deltas), said))


@pytest.mark.parametrize("bad", [False, True], ids=["other bytes", "other encoding"])
def test_second_copy_with_other_bytes_is_dropped_alone(*, bad: bool) -> None:
    """The rules keep the first copy: its bytes must still be there when it is merged."""
    story = Story(Anchor.BASE)
    before, delta = story.public, numbers(1)
    item = story.hand_in(A, 0, encode(Wire.F32, delta))
    copy = story.hand_in(A, 0, encode(Wire.INT4 if bad else Wire.F32, numbers(2)))
    assert copy.contribution.id == item.contribution.id
    assert bool(copy.contribution.flaw) is bad
    story.shard.drop(copy.contribution.reference)
    assert len(story.shard.inbox) == 1
    assert isinstance(story.shard.merge(Merge(F0, Version(0, 1), (item,), "")), Merged)
    story.shard.publish(Publish(F0, Version(0, 1), story.version, (A,), (item.contribution.id,)))
    np.testing.assert_allclose(story.public, before + delta, rtol=1e-6)
    assert not story.shard.inbox, "nothing of either copy is left"


def test_stale_contribution_pulls_back_with_the_syncers_anchor() -> None:
    """The learner's parameters, base + delta, are what counts, whatever the syncer did since."""
    story = Story(Anchor.CURRENT)
    base = story.public
    story.merge({A: (0, numbers(1))})
    after = story.public
    story.merge({A: (1, numbers(2)), B: (0, numbers(3))})
    learners = ((after + numbers(2)) + (base + numbers(3))) / 2
    np.testing.assert_allclose(story.public, learners, atol=1e-5)


def test_stale_contribution_adds_only_its_progress_with_its_own_base() -> None:
    story = Story(Anchor.BASE)
    story.merge({A: (0, numbers(1))})
    after = story.public
    story.merge({A: (1, numbers(2)), B: (0, numbers(3))})
    np.testing.assert_allclose(story.public, after + (numbers(2) + numbers(3)) / 2, atol=1e-5)


def test_anchors_agree_bit_for_bit_if_nothing_was_missed() -> None:
    both = Story(Anchor.BASE), Story(Anchor.CURRENT)
    for story in both:
        for number in range(4):
            story.merge({A: (number, numbers(number)), B: (number, numbers(10 + number))})
    np.testing.assert_array_equal(both[0].public, both[1].public)


def test_public_fragments_are_kept_as_long_as_the_gate_accepts_them() -> None:
    story = Story(Anchor.CURRENT)
    kept = [story.public]
    for number in range(5):
        story.merge({A: (number, numbers(number))})
        kept.append(story.public)
    story.merge({B: (5 - STALENESS, numbers(9))})
    np.testing.assert_allclose(story.public, kept[5 - STALENESS] + numbers(9), atol=1e-5)
    assert story.shard.bytes_held == kept[0].nbytes * (3 + STALENESS)


def test_missing_base_is_an_error() -> None:
    """The gate refuses contributions of that age, so this is a defect and ends the run."""
    story = Story(Anchor.CURRENT)
    for number in range(5):
        story.merge({A: (number, numbers(number))})
    with pytest.raises(Misordered, match=r"counts from v0, which is not kept"):
        story.merge({B: (0, numbers(9))})


def test_contribution_from_a_version_that_never_was_is_flawed() -> None:
    """One false word about a base once raised an error in the merge, which ended the run."""
    story = Story(Anchor.CURRENT)
    story.merge({A: (0, numbers(1))})
    id_, progress = ContributionId(B, F0, 1, 2), Progress(2, 2, Lease(0))
    for base, flaw in ((Version(0, 0), ""), (Version(-1, 1), "never had")):
        said = HandIn(id_, base, 1, 1, LAYOUT.fingerprint, progress)
        told = story.shard.receive(said, encode(Wire.F32, numbers(2))).flaw
        assert (flaw in told) if flaw else not told
    assert len(story.shard.inbox) == 1, "what is flawed is not held"


def test_shard_holds_twelve_bytes_per_parameter_and_contributions_in_flight() -> None:
    """The shard also holds the last differences, however many versions there were."""
    size, wire, keep = LAYOUT.sizes[F0], Wire.INT8, 3
    story = Story(Anchor.BASE, wire, keep)
    for number in range(9):
        assert story.shard.bytes_held == 12 * size + min(number, keep) * wire.bytes_of(size)
        story.merge({A: (number, numbers(number))})
    held_bytes = story.shard.bytes_held
    items = [story.hand_in(life, 9, encode(wire, numbers(3))) for life in (A, B)]
    assert story.shard.bytes_held == held_bytes + 2 * wire.bytes_of(size)
    story.shard.merge(Merge(F0, Version(0, 10), tuple(items), "all delivered"))
    assert story.shard.bytes_held == held_bytes + wire.bytes_of(size), "what is staged"
    story.shard.publish(Publish(F0, Version(0, 10), Version(0, 9), (A, B), ()))
    assert story.shard.bytes_held == held_bytes


def test_base_anchor_keeps_no_former_fragments() -> None:
    story = Story(Anchor.BASE)
    for number in range(5):
        story.merge({A: (number, numbers(number))})
    assert story.shard.bytes_held == story.public.nbytes * 3


# --- any wire, base, anchor and order in one merge ------------------------------------------------


@settings(deadline=None)  # the first example compiles
@given(
    wire=st.sampled_from(list(Wire)),
    anchor=st.sampled_from(list(Anchor)),
    bases=st.lists(st.integers(0, STALENESS), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_contributions_of_any_base_in_any_order_merge_to_the_naive_mean(
    wire: Wire, anchor: Anchor, bases: list[int], seed: int
) -> None:
    """The syncer's anchor moves a stale contribution, which makes it f32 among others."""
    chance = np.random.default_rng(seed)
    story = Story(anchor, Wire.F32, wire_up=wire)
    public = [story.public]
    for number in range(STALENESS):
        story.merge({A: (number, chance.normal(size=story.public.size).astype(np.float32))})
        public.append(story.public)
    deltas = [encode(wire, chance.normal(size=public[0].size).astype(np.float32)) for _ in bases]
    items: list[Item] = []
    for i, (base, payload) in enumerate(zip(bases, deltas, strict=True)):
        life = Life(Island(f"i{i}"), Incarnation(i + 3))
        items.append(story.hand_in(life, base, payload)._replace(weight=1 / len(bases)))
    following = Version(0, STALENESS + 1)
    event = story.shard.merge(Merge(F0, following, tuple(items), "", measure=True))
    assert isinstance(event, Merged)
    story.shard.publish(Publish(F0, following, Version(0, STALENESS), (), ()))
    plain = [decode(payload, public[0].size).astype(np.float64) for payload in deltas]
    if anchor is Anchor.CURRENT:
        plain = [public[b] - public[-1] + d for b, d in zip(bases, plain, strict=True)]
    moved = np.mean(plain, axis=0)
    np.testing.assert_allclose(story.public, public[-1] + moved, atol=1e-5)
    assert event.norm == pytest.approx(np.linalg.norm(moved), rel=1e-4, abs=1e-5)
    assert len(event.cosines) == (len(bases) if len(bases) >= 2 else 0)


@pytest.mark.parametrize("wire", list(Wire))
def test_contribution_on_another_wire_is_refused_with_a_reason(wire: Wire) -> None:
    story = Story(Anchor.BASE, wire)
    other = Wire.F32 if wire is not Wire.F32 else Wire.BF16
    said = story.hand_in(A, 0, encode(other, numbers(1))).contribution
    assert said.flaw == f"{other} bytes, the run's wire is {wire}"
    assert not np.isfinite(said.norm)
    short = story.hand_in(A, 0, encode(wire, numbers(1)[:1])).contribution
    assert short.flaw.startswith("payload of dtype")
    assert story.shard.bytes_held == 3 * story.public.nbytes


# --- merges that cannot be published --------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_unsound_step_leaves_no_trace(stored: bool) -> None:
    story = Story(Anchor.BASE, files=Shelf())
    story.merge({A: (0, numbers(1))}, stored=stored)
    kept, arrays = story.public, story.shard.arrays(F0)
    before = copied(arrays)
    items = [
        story.hand_in(life, 1, numbers(n))._replace(weight=0.5) for n, life in ((2, A), (3, B))
    ]
    order = Merge(F0, Version(0, 2), tuple(items), "", limit=1e-3)
    event = story.shard.merge(order)
    norm = np.linalg.norm((numbers(2) + numbers(3)) / 2)
    assert isinstance(event, Unsound)
    assert (event.version, event.spoiled) == (Version(0, 2), ())
    assert event.norm == pytest.approx(norm)
    for now, then in zip(arrays_of(story.shard.arrays(F0)), arrays_of(before), strict=True):
        np.testing.assert_array_equal(now, then)
    alone = items[0]._replace(weight=1.0)
    again = story.shard.merge(Merge(F0, Version(0, 3), (alone,), ""))
    assert isinstance(again, Merged)
    story.shard.publish(Publish(F0, Version(0, 3), Version(0, 1), (), ()))
    np.testing.assert_allclose(story.public, kept + numbers(2), atol=1e-6)


def test_contributions_whose_bytes_have_changed_are_named() -> None:
    story = Story(Anchor.BASE)
    spoiled = numbers(2)
    items = [
        story.hand_in(A, 0, numbers(1))._replace(weight=0.5),
        story.hand_in(B, 0, spoiled)._replace(weight=0.5),
    ]
    spoiled[3] = np.nan
    event = story.shard.merge(Merge(F0, Version(0, 1), tuple(items), ""))
    assert isinstance(event, Unsound)
    assert event.spoiled == (items[1].contribution.id,)
    assert np.isfinite(story.shard.arrays(F0).master).all()


def copied(arrays: Arrays) -> Arrays:
    master, momentum, public = (each.copy() for each in arrays_of(arrays))
    return Arrays(arrays.version, master, momentum, public, arrays.moments)


def arrays_of(arrays: Arrays) -> tuple[Flat, Flat, Flat]:
    return arrays.master, arrays.momentum, arrays.public


# --- decisions: whose orders, which version, which bytes ------------------------------------------


def published(story: Story, count: int) -> None:
    """Publish `count` versions with one contribution each, stored as a run stores them."""
    for number in range(story.version.number, story.version.number + count):
        following = Version(0, number + 1)
        item = story.hand_in(A, number, encode(story.wire_up, numbers(number)))
        assert isinstance(story.shard.merge(Merge(F0, following, (item,), "")), Merged)
        story.shard.store(F0, following)
        story.shard.publish(Publish(F0, following, Version(0, number), (), ()))


def test_orders_of_an_earlier_generation_are_refused_after_a_later_one() -> None:
    story = Story(Anchor.BASE, files=Shelf())
    for generation in (0, 2, 2, 5):
        story.shard.recover({F0: Version(0, 0)}, generation)
        story.shard.obey(generation)
    for generation in (0, 4):
        with pytest.raises(Outdated, match=f"generation {generation} is refused"):
            story.shard.obey(generation)
        with pytest.raises(Outdated):
            story.shard.recover({F0: Version(0, 0)}, generation)


def test_shard_without_a_model_refuses_every_call() -> None:
    layout = LAYOUT
    method = Method(MergeRule.MEAN, AS_IT_IS, Wire.F32, Wire.F32, 0, None, 1.0)
    shard: ArrayShard = Shard(
        lambda: (ArrayArithmetic(layout, method, map), NoFiles()), Retention(Anchor.BASE, 0, 1)
    )
    said = ContributionId(A, F0, 0, 1)
    hand_in = HandIn(said, Version(0, 0), 0, 1, LAYOUT.fingerprint, Progress(1, 1, Lease(0)))
    assert not shard.has_model
    for call in (
        lambda: shard.receive(hand_in, numbers(0)),
        lambda: shard.payloads(Merge(F0, Version(0, 1), (), "")),
        lambda: shard.merge(Merge(F0, Version(0, 1), (), "")),
        lambda: shard.publish(Publish(F0, Version(0, 1), Version(0, 0), (), ())),
        lambda: shard.whole([F0]),
    ):
        with pytest.raises(NoModel):
            call()
    shard.drop(Reference("any"))
    with pytest.raises(Damaged, match="stored nowhere"):
        shard.recover({F0: Version(0, 0)}, 3)
    with pytest.raises(Outdated):
        shard.recover({F0: Version(0, 0)}, 2)


def test_misfit_order_is_never_carried_out() -> None:
    story = Story(Anchor.BASE)
    before, following = story.public, Version(0, 1)
    item, other = story.hand_in(A, 0, numbers(1)), story.hand_in(B, 0, numbers(2))
    orders = Publish(F0, following, Version(0, 0), (), ())
    with pytest.raises(Misordered, match="nothing is staged"):
        story.shard.publish(orders)
    with pytest.raises(Misordered, match="nothing is staged"):
        story.shard.store(F0, following)
    with pytest.raises(Misordered, match="v0 of fragment 0 is public"):
        story.shard.merge(Merge(F0, Version(0, 0), (item,), ""))
    story.shard.merge(Merge(F0, following, (item,), ""))
    for wrong in (
        lambda: story.shard.merge(Merge(F0, Version(0, 2), (other,), "")),
        lambda: story.shard.publish(Publish(F0, Version(0, 2), Version(0, 0), (), ())),
        lambda: story.shard.publish(Publish(F0, following, Version(0, 7), (), ())),
        lambda: story.shard.store(F0, Version(0, 2)),
        lambda: story.shard.arrays(F0),
    ):
        with pytest.raises(Misordered, match="v0 of fragment 0 is public and v1 is staged"):
            wrong()
    np.testing.assert_array_equal(story.public, before)
    assert story.shard.publish(orders) is not None
    assert story.shard.publish(orders) is None, "it is public already"
    np.testing.assert_allclose(story.public, before + numbers(1), atol=1e-6)
    with pytest.raises(Misordered, match="nothing is held of"):
        story.shard.merge(Merge(F0, Version(0, 2), (item,), ""))
    with pytest.raises(Misordered, match="nothing is held of"):
        story.shard.payloads(Merge(F0, Version(0, 2), (item,), ""))


def test_recovers_from_memory_and_drops_contributions() -> None:
    story = Story(Anchor.CURRENT, keep_differences=3, wire=Wire.INT8, files=Shelf())
    published(story, 2)
    v2, public = story.shard.whole([F0])[0]
    old = story.hand_in(A, 1, encode(Wire.INT8, numbers(9)))
    held_bytes = story.shard.bytes_held
    assert story.shard.recover({F0: v2}, 1) == {F0: v2}
    assert story.shard.bytes_held < held_bytes, "chain, former fragments and inbox are void"
    np.testing.assert_array_equal(story.public, public)
    assert isinstance(story.shard.missed(F0, Version(0, 1), v2), tuple)
    with pytest.raises(Misordered, match="nothing is held of"):
        story.shard.merge(Merge(F0, Version(1, 3), (old,), ""))


def test_staged_or_later_versions_are_recovered_from_the_files() -> None:
    shelf = Shelf()
    story = Story(Anchor.BASE, files=shelf)
    published(story, 3)
    v2 = shelf.kept[F0, Version(0, 2)]
    assert story.shard.recover({F0: Version(0, 2)}, 1) == {F0: Version(0, 2)}
    assert sorted(version.number for _, version in shelf.kept) == [0, 1, 2]
    np.testing.assert_array_equal(story.public, v2.public)
    item = story.hand_in(A, 2, numbers(5))
    story.shard.merge(Merge(F0, Version(1, 3), (item,), ""))
    story.shard.recover({F0: Version(0, 2)}, 2)
    for now, then in zip(arrays_of(story.shard.arrays(F0)), arrays_of(v2), strict=True):
        np.testing.assert_array_equal(now, then)
    assert story.shard.recover({F0: Version(0, 9)}, 3) == {F0: Version(0, 2)}, "as far as it goes"


def test_unstored_version_is_copied_before_a_merge_that_may_be_unsound() -> None:
    """A version whose turn to be stored has not come cannot be had from the one before."""
    story = Story(Anchor.BASE, files=Shelf(), every=2)
    published(story, 3)
    public, master = story.public, story.shard.arrays(F0).master.copy()
    item = story.hand_in(A, 3, numbers(7))
    assert isinstance(story.shard.merge(Merge(F0, Version(0, 4), (item,), "", limit=0.0)), Unsound)
    np.testing.assert_array_equal(story.shard.arrays(F0).master, master)
    assert isinstance(story.shard.merge(Merge(F0, Version(0, 5), (item,), "")), Merged)
    assert not story.shard.store(F0, Version(0, 5)), "nor is it this one's"
    story.shard.publish(Publish(F0, Version(0, 5), Version(0, 3), (), ()))
    np.testing.assert_allclose(story.public, public + numbers(7), atol=1e-6)


# --- state ----------------------------------------------------------------------------------------

STATE = Fragment(1)
BESIDE = cut([Leaf("w", (30,)), Leaf("variance", (34,), state=True)], 2)


def state_shard(anchor: Anchor) -> ArrayShard:
    """Return a shard with int4 wires, momentum, and a fragment of state that is all ones."""
    return array_shard(
        BESIDE,
        fresh([np.zeros(30, np.float32), np.ones(34, np.float32)]),
        merge_rule=MergeRule.RDA,
        outer=outer_rule(learning_rate=0.7, momentum=0.9),
        wire_up=Wire.INT4,
        wire_down=Wire.INT4,
        anchor=anchor,
        max_staleness=STALENESS,
    )


@pytest.mark.parametrize("anchor", Anchor)
def test_state_is_the_weighted_mean_of_the_values_whatever_their_bases(anchor: Anchor) -> None:
    """Two islands that fell from 1 to 0.1 in different rounds leave 0.1, and not -0.8."""
    shard = state_shard(anchor)
    small, rng = np.full(34, 0.1, np.float32), np.random.default_rng()
    version = Version(0, 0)
    for number, values in enumerate(
        [{A: small}, {B: small}, {life: rng.uniform(0, 1e-3, 34).astype("f4") for life in (A, B)}]
    ):
        following = Version(0, number + 1)
        items = list[Item]()
        for life, each in values.items():
            id_ = ContributionId(life, STATE, number, number + 1)
            progress = Progress(number + 1, number + 1, Lease(0))
            said = HandIn(id_, Version(0, 0), number, 1, BESIDE.fingerprint, progress)
            held = shard.receive(said, encode(Wire.F32, each))
            items.append(Item(held, 1 / len(values)))
        merged = shard.merge(Merge(STATE, following, tuple(items), "all delivered"))
        assert isinstance(merged, Merged)
        assert (merged.cosines, merged.aligned) == ((), ()), "no island is wrong"
        shard.publish(Publish(STATE, following, version, (A, B), ()))
        version = following
        public = shard.whole([STATE])[0][1]
        mean = np.mean([*values.values()], axis=0)
        np.testing.assert_allclose(public, mean, rtol=1e-5, atol=1e-7)
        assert public.min() >= 0


def test_state_in_the_encoding_of_the_parameters_is_refused() -> None:
    shard = state_shard(Anchor.BASE)
    values, id_ = np.ones(34, np.float32), ContributionId(A, STATE, 0, 1)
    said = HandIn(id_, Version(0, 0), 0, 1, BESIDE.fingerprint, Progress(1, 1, Lease(0)))
    flaw = shard.receive(said, encode(Wire.INT4, values)).flaw
    assert "the run's wire is f32" in flaw
