"""The shard's arithmetic: what a contribution is the difference to when it is merged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.shard.shard import Shard, fresh
from cluster.storage.fragments import Arrays
from coordinator.codec import Payload, Wire, decode, encode
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
    Unsound,
    Version,
)
from tests.given import outer_rule

LAYOUT = cut([Leaf("w", (6, 5)), Leaf("b", (4,))], 1)
F0 = Fragment(0)
AS_IT_IS = outer_rule(learning_rate=1.0, momentum=0.0)
A, B = Life(Island("a"), Incarnation(1)), Life(Island("b"), Incarnation(2))
STALENESS = 2


def numbers(seed: int) -> Flat:
    return np.random.default_rng(seed).normal(size=LAYOUT.sizes[F0]).astype(np.float32)


class Story:
    """A shard that merges the plain mean of what it is given, and publishes it at once."""

    def __init__(
        self,
        anchor: Anchor,
        wire: Wire = Wire.F32,
        keep_differences: int = 0,
        wire_up: Wire | None = None,
    ) -> None:
        self.wire_up = wire if wire_up is None else wire_up
        self.shard = Shard(
            LAYOUT,
            fresh([numbers(0)]),
            merge_rule=MergeRule.MEAN,
            outer=AS_IT_IS,
            wire_up=self.wire_up,
            wire_down=wire,
            anchor=anchor,
            max_staleness=STALENESS,
            keep_differences=keep_differences,
        )

    @property
    def public(self) -> Flat:
        return self.shard.whole([F0])[0][1]

    @property
    def version(self) -> Version:
        return self.shard.whole([F0])[0][0]

    def hand_in(self, life: Life, base: int, payload: Payload) -> Item:
        """What was trained from the version of that number until now."""
        now = self.version.number + 1
        id_, progress = ContributionId(life, F0, now - 1, now), Progress(now, now, Lease(0))
        said = HandIn(id_, Version(0, base), id_.from_step, 1, LAYOUT.fingerprint, progress)
        return Item(self.shard.receive(said, payload), 1.0)

    def merge(self, deltas: dict[Life, tuple[int, Flat]]) -> None:
        """Merge each learner's delta from its base, the version of that number, in equal shares."""
        following = Version(0, self.version.number + 1)
        items = [
            self.hand_in(life, base, encode(self.wire_up, delta))._replace(weight=1 / len(deltas))
            for life, (base, delta) in deltas.items()
        ]
        self.shard.merge(Merge(F0, following, tuple(items), "all delivered"))
        said = tuple(item.contribution.id for item in items)
        self.shard.publish(Publish(F0, following, self.version, tuple(deltas), said))


def test_one_that_missed_an_update_pulls_back_against_it_with_the_syncers_anchor() -> None:
    """Its parameters are base + delta, whatever the syncer has done since: that is what counts."""
    story = Story(Anchor.CURRENT)
    base = story.public
    story.merge({A: (0, numbers(1))})
    after = story.public
    story.merge({A: (1, numbers(2)), B: (0, numbers(3))})
    learners = ((after + numbers(2)) + (base + numbers(3))) / 2
    np.testing.assert_allclose(story.public, learners, atol=1e-5)


def test_with_its_own_base_it_adds_its_own_progress_and_no_more() -> None:
    story = Story(Anchor.BASE)
    story.merge({A: (0, numbers(1))})
    after = story.public
    story.merge({A: (1, numbers(2)), B: (0, numbers(3))})
    np.testing.assert_allclose(story.public, after + (numbers(2) + numbers(3)) / 2, atol=1e-5)


def test_who_missed_nothing_sees_no_difference_to_the_last_bit() -> None:
    both = Story(Anchor.BASE), Story(Anchor.CURRENT)
    for story in both:
        for number in range(4):
            story.merge({A: (number, numbers(number)), B: (number, numbers(10 + number))})
    np.testing.assert_array_equal(both[0].public, both[1].public)


def test_public_fragments_are_kept_as_long_as_the_gate_lets_them_be_used() -> None:
    story = Story(Anchor.CURRENT)
    kept = [story.public]
    for number in range(5):
        story.merge({A: (number, numbers(number))})
        kept.append(story.public)
    story.merge({B: (5 - STALENESS, numbers(9))})
    np.testing.assert_allclose(story.public, kept[5 - STALENESS] + numbers(9), atol=1e-5)
    assert story.shard.bytes_held == kept[0].nbytes * (3 + STALENESS)


def test_a_base_that_is_not_kept_is_never_guessed() -> None:
    """The gate lets nothing that old in, so this is a defect, and it ends the run."""
    story = Story(Anchor.CURRENT)
    for number in range(5):
        story.merge({A: (number, numbers(number))})
    with pytest.raises(AssertionError, match=r"starts from v0, not kept"):
        story.merge({B: (0, numbers(9))})


def test_it_holds_twelve_bytes_a_parameter_and_what_is_on_its_way() -> None:
    """It also holds the last differences, however many versions there were."""
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


def test_a_base_costs_nothing_with_the_learners_anchor() -> None:
    story = Story(Anchor.BASE)
    for number in range(5):
        story.merge({A: (number, numbers(number))})
    assert story.shard.bytes_held == story.public.nbytes * 3


# --- any wire, base, anchor and order in one merge ------------------------------------------------


@settings(deadline=None)  # of which the first one compiles
@given(
    wire=st.sampled_from(list(Wire)),
    anchor=st.sampled_from(list(Anchor)),
    bases=st.lists(st.integers(0, STALENESS), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_contributions_of_any_base_in_any_order_merge_to_the_naive_mean(
    wire: Wire, anchor: Anchor, bases: list[int], seed: int
) -> None:
    """With the syncer's anchor a stale contribution is moved, which makes it f32 among others."""
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
    assert len(event.cosines) == (len(bases) if len(bases) >= 3 else 0)


@pytest.mark.parametrize("wire", list(Wire))
def test_another_wire_than_the_runs_is_not_kept_and_says_so(wire: Wire) -> None:
    story = Story(Anchor.BASE, wire)
    other = Wire.F32 if wire is not Wire.F32 else Wire.BF16
    said = story.hand_in(A, 0, encode(other, numbers(1))).contribution
    assert said.flaw == f"{other} bytes, the run's wire is {wire}"
    assert not np.isfinite(said.norm)
    short = story.hand_in(A, 0, encode(wire, numbers(1)[:1])).contribution
    assert short.flaw.startswith("payload of dtype")
    assert story.shard.bytes_held == 3 * story.public.nbytes


# --- what is merged and cannot be published -------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_a_step_that_is_not_sound_leaves_no_trace(stored: bool) -> None:
    story = Story(Anchor.BASE)
    story.merge({A: (0, numbers(1))})
    kept, arrays = story.public, story.shard.arrays(F0)
    before = Arrays(arrays.version, *(each.copy() for each in arrays_of(arrays)))
    items = [
        story.hand_in(life, 1, numbers(n))._replace(weight=0.5) for n, life in ((2, A), (3, B))
    ]
    order = Merge(F0, Version(0, 2), tuple(items), "", limit=1e-3)
    event = story.shard.merge(order, (lambda: before) if stored else None)
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


def test_bytes_that_have_changed_since_they_came_are_named() -> None:
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


def arrays_of(arrays: Arrays) -> tuple[Flat, Flat, Flat]:
    return arrays.master, arrays.momentum, arrays.public
