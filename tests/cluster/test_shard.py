"""The shard's arithmetic: what a contribution is the difference to when it is merged."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.shard import Shard, fresh
from coordinator.codec import Payload, Wire, encode
from coordinator.fragments import Flat, Leaf, cut
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule
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
    Progress,
    Publish,
    Version,
)

LAYOUT = cut([Leaf("w", (6, 5)), Leaf("b", (4,))], 1)
F0 = Fragment(0)
AS_IT_IS = OuterRule(learning_rate=1.0, momentum=0.0)
A, B = Life(Island("a"), Incarnation(1)), Life(Island("b"), Incarnation(2))
STALENESS = 2


def numbers(seed: int) -> Flat:
    return np.random.default_rng(seed).normal(size=LAYOUT.sizes[F0]).astype(np.float32)


class Story:
    """A shard that merges the plain mean of what it is given, and publishes it at once."""

    def __init__(self, anchor: Anchor, wire: Wire = Wire.F32, keep_differences: int = 0) -> None:
        self.shard = Shard(
            LAYOUT,
            fresh([numbers(0)]),
            merge_rule=MergeRule.MEAN,
            outer=AS_IT_IS,
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
            self.hand_in(life, base, delta)._replace(weight=1 / len(deltas))
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
    """... and the last differences, however many versions there were."""
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
