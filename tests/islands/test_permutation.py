"""The computed permutation is exact, seeded, and as uneven as chance."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from islands.permutation import permuted


def order(size: int, *seed: int) -> list[int]:
    return permuted(np.arange(size), size, seed).tolist()


@given(size=st.integers(1, 3_000), seed=st.integers(0, 2**40), epoch=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_every_number_occurs_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(order(size, seed, 0, epoch)) == [*range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1025])
def test_every_number_occurs_once_at_edge_sizes(size: int) -> None:
    assert sorted(order(size, 5)) == [*range(size)]


def test_place_does_not_depend_on_the_other_places_asked_for() -> None:
    whole = order(1_000, 7, 1)
    for place in (0, 1, 500, 998, 999):
        assert permuted(np.array([place]), 1_000, (7, 1)).tolist() == [whole[place]]
    assert permuted(np.array([], np.int64), 1_000, (7, 1)).tolist() == []


def test_each_seed_gives_another_order() -> None:
    orders = {tuple(order(50, seed, kind)) for seed in range(20) for kind in range(2)}
    assert len(orders) == 40


def test_memory_does_not_depend_on_the_size() -> None:
    places = np.array([0, 10**11, 10**12 - 1])
    found = permuted(places, 10**12, (3,))
    assert ((found >= 0) & (found < 10**12)).all()
    assert len({*found.tolist()}) == 3


def test_permutation_is_statistically_random() -> None:
    """Over many seeds, positions and successors of a number pass a chi-squared test."""
    first = random.SystemRandom().randrange(10**9)
    print(f"seed {first}")
    size, tries = 20, 2_000
    places = np.zeros((size, size))
    steps = np.zeros(size)
    for seed in range(first, first + tries):
        found = permuted(np.arange(size), size, (seed,))
        places[np.arange(size), found] += 1
        steps += np.bincount((found[1:] - found[:-1]) % size, minlength=size)
    expected = tries / size
    chi = ((places - expected) ** 2 / expected).sum()
    freedom = (size - 1) ** 2
    assert abs(chi - freedom) < 6 * (2 * freedom) ** 0.5
    expected = tries * (size - 1) / (size - 1)
    chi = ((steps[1:] - expected) ** 2 / expected).sum()
    assert steps[0] == 0
    assert chi < (size - 2) + 8 * (2 * size) ** 0.5, "no difference is more likely than another"
