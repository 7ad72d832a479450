"""Directions decide suspicion, even if one island has contributions of two lives in a merge."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.direction_gate import RUN, against, bound
from coordinator.frozen import replace
from coordinator.ledger import open_account
from coordinator.medians import median_without
from coordinator.membership import Member, Status
from coordinator.protocol import Fragment, Island, Lease, Merged, Progress, Version
from coordinator.state import EDITION, initial, with_member
from coordinator.suspects import judge
from tests.coordinator.given import contribution, life, rule

PRESENT = life("e", 2)


def member(island: str, incarnation: int, *, trial: int = 0) -> Member:
    start = Progress(8, 800, Lease(0, 8))
    return Member(
        life(island, incarnation), "group", Status.LIVE, "steps", 0, start, 1.0, 1.0, trial=trial
    )


@pytest.mark.parametrize(("cosine", "left"), [(0.4, 4), (-0.9, 5)])
def test_trial_counts_only_contributions_of_the_present_life(cosine: float, left: int) -> None:
    """A contribution of the former life, still to be measured, does not count for this life."""
    rules = rule()
    state = initial(rules)
    for each in (*(member(island, 1) for island in "abcd"), member("e", 2, trial=5)):
        state = with_member(state, each)
    items = tuple(contribution(life(each), reference=each) for each in "abcd")
    trial = (
        contribution(life("e", 1), reference="before"),
        contribution(PRESENT, reference="now"),
    )
    event = Merged(
        Fragment(0), Version(0, 1), 1.0, cosines=(0.4, 0.4, 0.4, 0.4, -0.9, cosine), measured=10_000
    )
    after, _ = judge(rules, state, items, trial, event)
    assert after.members[Island("e")].trial == left


def pointing(islands: str, cosine: float, *, against: int) -> Member:
    """Return island c after a merge of these islands.

    Island c points at `cosine`, and the others along. It has pointed against the others `against`
    times in a row before.
    """
    rules = rule()
    state = initial(rules)
    for island in islands:
        known = member(island, 1)
        state = with_member(state, replace(known, against=against) if island == "c" else known)
        state = replace(state, ledger=open_account(state.ledger, known.life))
    items = tuple(contribution(life(each), reference=each) for each in islands)
    cosines = tuple(cosine if each == "c" else 0.4 for each in islands)
    event = Merged(Fragment(0), Version(0, 1), 1.0, cosines=cosines, measured=10_000)
    after, _ = judge(rules, state, items, (), event)
    return after.members[Island("c")]


def test_counts_consecutive_merges_against_the_others() -> None:
    assert pointing("abcd", -0.9, against=2).against == 3
    assert pointing("abcd", 0.4, against=RUN - 1).against == 0


@pytest.mark.parametrize(
    ("islands", "status"), [("abc", Status.LIVE), ("abcd", Status.QUARANTINED)]
)
def test_no_quarantine_with_fewer_than_four_live_islands(islands: str, status: Status) -> None:
    assert pointing(islands, -0.9, against=RUN - 1).status is status


def beside_the_momentum(
    islands: str,
    cosine: float,
    aligned: tuple[float, ...],
    *,
    against: int = RUN - 1,
    fragments: int = RUN,
    edition: int = EDITION,
) -> Member:
    """Return island c after a merge of these islands.

    `cosine` is c's direction to the others, and `aligned` holds each one's direction to the outer
    momentum.
    """
    rules = replace(rule(fragments=fragments, every=fragments), edition=edition)
    state = initial(rules)
    for island in islands:
        known = member(island, 1)
        state = with_member(state, replace(known, against=against) if island == "c" else known)
        state = replace(state, ledger=open_account(state.ledger, known.life))
    items = tuple(contribution(life(each), reference=each) for each in islands)
    two = len(islands) == 2
    cosines = tuple(cosine if each == "c" or two else 0.4 for each in islands)
    event = Merged(
        Fragment(0), Version(0, 1), 1.0, cosines=cosines, measured=10_000, aligned=aligned
    )
    after, _ = judge(rules, state, items, (), event)
    return after.members[Island("c")]


@pytest.mark.parametrize(
    ("islands", "cosine", "aligned", "status"),
    [
        ("ac", -0.4, (0.6, -0.6), Status.QUARANTINED),
        ("ac", -0.4, (-0.6, 0.6), Status.LIVE),  # the other island points the wrong way
        ("ac", -0.4, (-0.6, -0.6), Status.LIVE),  # both point against the momentum
        ("ac", 0.4, (0.6, -0.6), Status.LIVE),  # both point the same way
        ("ac", -0.4, (), Status.LIVE),  # the shard did not measure the directions
        ("abc", -0.9, (0.6, 0.6, -0.6), Status.QUARANTINED),
        ("abc", -0.9, (0.6, 0.6, 0.6), Status.LIVE),
    ],
)
def test_outer_momentum_identifies_the_culprit_among_few_islands(
    islands: str, cosine: float, aligned: tuple[float, ...], status: Status
) -> None:
    assert beside_the_momentum(islands, cosine, aligned).status is status


@pytest.mark.parametrize(
    ("fragments", "against", "edition", "aligned", "status"),
    [
        (1, 0, 2, (0.6, -0.6), Status.QUARANTINED),
        (3, 2, 2, (0.6, -0.6), Status.QUARANTINED),
        (3, 1, 2, (0.6, -0.6), Status.LIVE),  # there are more proofs to come
        (3, 2, 2, (0.6, -0.09), Status.LIVE),  # not clear enough for so few merges
        (3, 2, 2, (0.09, -0.6), Status.LIVE),
        (3, 2, 1, (0.6, -0.6), Status.LIVE),  # as it was in edition 1
        (RUN, RUN - 1, 2, (0.09, -0.09), Status.QUARANTINED),
        (RUN, RUN - 2, 2, (0.6, -0.6), Status.LIVE),
    ],
)
def test_one_of_two_islands_is_noticed_before_the_momentum_has_both_directions(
    fragments: int, against: int, edition: int, aligned: tuple[float, ...], status: Status
) -> None:
    """The momentum of each fragment shows once which island is wrong."""
    seen = beside_the_momentum(
        "ac", -0.4, aligned, against=against, fragments=fragments, edition=edition
    )
    assert seen.status is status


@pytest.mark.parametrize(("cosine", "left"), [(0.4, 4), (-0.5, 5)])
def test_trial_beside_one_island_uses_the_direction_to_it(cosine: float, left: int) -> None:
    rules = rule()
    state = initial(rules)
    for each in (member("a", 1), member("e", 2, trial=5)):
        state = with_member(state, each)
    event = Merged(Fragment(0), Version(0, 1), 1.0, cosines=(None, cosine), measured=10_000)
    items, trial = (contribution(life("a")),), (contribution(PRESENT, reference="now"),)
    after, _ = judge(rules, state, items, trial, event)
    assert after.members[Island("e")].trial == left


def test_islands_that_disagree_among_themselves_condemn_nobody() -> None:
    """A low cosine is no evidence if the others' cosines differ widely."""
    odd, many = Island("d"), 10**6
    agreed = {Island("a"): 0.30, Island("b"): 0.29, Island("c"): 0.31}
    apart = {Island("a"): 0.30, Island("b"): -0.30, Island("c"): 0.0}
    assert bound(apart, many) == pytest.approx(-4 * 0.30)
    assert against({**agreed, odd: -0.5}, {}, many)[odd]
    assert not against({**apart, odd: -0.5}, {}, many)[odd]


COSINES = st.lists(
    st.one_of(st.floats(-1.0, 1.0), st.sampled_from((-0.9, 0.3, 0.31))), min_size=2, max_size=9
)


@given(COSINES)
def test_median_of_all_others_is_that_of_the_library(numbers: list[float]) -> None:
    ordered = sorted(numbers)
    for i in range(len(ordered)):
        assert median_without(ordered, i) == statistics.median(ordered[:i] + ordered[i + 1 :])


@given(COSINES, st.integers(1, 10**6))
def test_each_island_is_compared_with_all_others(cosines: list[float], measured: int) -> None:
    participants = {Island(f"{n}"): cosine for n, cosine in enumerate(cosines)}
    trial = {Island("trial"): -0.5}
    wanted = {island: cosine < bound(participants, measured) for island, cosine in trial.items()}
    for island, cosine in participants.items():
        others = {other: x for other, x in participants.items() if other != island}
        if len(others) > 1:
            wanted[island] = cosine < bound(others, measured)
    assert against(participants, trial, measured) == wanted


class Counted(float):
    """A cosine that counts its differences to others."""

    count = 0

    def __sub__(self, other: float) -> float:
        Counted.count += 1
        return float(self) - other


def test_directions_of_many_islands_take_no_quadratic_time() -> None:
    """A merge of 1,000 islands once took a million differences, twice over."""
    many = {Island(f"{n}"): Counted(n / 2000) for n in range(1000)}
    assert len(against(many, {}, 10**6)) == 1000
    assert Counted.count <= 5 * len(many)
