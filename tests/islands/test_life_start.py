"""A life begins with moments that are kept, shared, given by a donor, or fresh."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from coordinator.protocol import Island, Life
from islands.life_start import (
    AskDonors,
    KeepMoments,
    LifeStart,
    Remains,
    StartAnew,
    TakeMeans,
    donors_in_turn,
    life_start,
)
from tests.coordinator.given import life

ISLAND = Island("a")
DONORS = (life("x"), life("y"), life("z"))
NEW = Remains(moments=False, distrusted=False)
SOUND = Remains(moments=True, distrusted=False)
DISTRUSTED = Remains(moments=True, distrusted=True)
LOST = Remains(moments=False, distrusted=True)
"""A distrusted life, after which another life ended before it had begun."""


def start(
    remains: Remains, donors: tuple[Life, ...] = DONORS, *, shares_moments: bool = False
) -> LifeStart:
    return life_start(remains, island=ISLAND, donors=donors, shares_moments=shares_moments)


@pytest.mark.parametrize("donors", [(), DONORS])
@pytest.mark.parametrize("shares_moments", [False, True])
def test_keeps_moments_of_the_former_life_if_sound(
    donors: tuple[Life, ...], shares_moments: bool
) -> None:
    assert isinstance(start(SOUND, donors, shares_moments=shares_moments), KeepMoments)


@pytest.mark.parametrize("remains", [NEW, DISTRUSTED, LOST])
@pytest.mark.parametrize("donors", [(), DONORS])
def test_asks_no_donor_if_moments_are_shared(remains: Remains, donors: tuple[Life, ...]) -> None:
    assert isinstance(start(remains, donors, shares_moments=True), TakeMeans)


@pytest.mark.parametrize("remains", [NEW, DISTRUSTED, LOST])
def test_asks_donors_if_nothing_is_kept_or_shared(remains: Remains) -> None:
    found = start(remains)
    assert isinstance(found, AskDonors)
    assert found.donors == donors_in_turn(ISLAND, DONORS)


@pytest.mark.parametrize("remains", [NEW, DISTRUSTED, LOST])
def test_starts_with_fresh_moments_without_any_source(remains: Remains) -> None:
    assert isinstance(start(remains, ()), StartAnew)


def test_every_start_has_a_reason_that_names_distrust() -> None:
    for moments, distrusted, donors, shares_moments in product(
        (False, True), (False, True), ((), DONORS), (False, True)
    ):
        why = start(Remains(moments, distrusted), donors, shares_moments=shares_moments).why
        assert ("distrusted" in why) == distrusted, why
        assert why


def test_islands_that_join_together_spread_over_the_donors() -> None:
    orders = [donors_in_turn(Island(f"local-{n}"), DONORS) for n in range(24)]
    assert orders == [donors_in_turn(Island(f"local-{n}"), DONORS) for n in range(24)]
    assert all({*order} == {*DONORS} for order in orders)
    asked_first = Counter(order[0] for order in orders)
    assert max(asked_first.values()) <= 2 * min(asked_first[donor] for donor in DONORS)
    assert donors_in_turn(Island("local-0"), []) == ()


def test_donor_order_is_a_rotation() -> None:
    """The order is best first, rotated by the island's name.

    No donor is left out or asked twice.
    """
    for n in range(24):
        order = donors_in_turn(Island(f"local-{n}"), DONORS)
        at = order.index(DONORS[0])
        assert (*order[at:], *order[:at]) == DONORS
