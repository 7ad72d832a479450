"""The public chain keeps recent differences, for learners that missed versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain import Kept, between, lengthened, worth_keeping
from coordinator.protocol import Version


def v(number: int) -> Version:
    return Version(0, number)


def chain_of(versions: int, most: int) -> tuple[Kept[int], ...]:
    """Return a chain in which each difference is the number of the version it leads to."""
    chain: tuple[Kept[int], ...] = ()
    for number in range(1, versions + 1):
        chain = lengthened(chain, Kept(v(number - 1), v(number), number), most)
    return chain


@given(st.integers(0, 12), st.integers(0, 6), st.integers(0, 12), st.integers(0, 14))
def test_between_returns_all_differences_in_order_or_none(
    versions: int, most: int, older: int, newer: int
) -> None:
    found = between(chain_of(versions, most), v(older), v(newer))
    if versions - most <= older < newer <= versions:
        assert found == [*range(older + 1, newer + 1)]
    else:
        assert found is None


def test_chain_holds_no_version_of_another_generation() -> None:
    chain = chain_of(3, 3)
    assert between(chain, Version(1, 1), v(3)) is None
    assert between(chain, v(1), Version(1, 3)) is None


def test_lengthening_refuses_a_gap() -> None:
    with pytest.raises(AssertionError, match="v5 is not in the chain"):
        lengthened(chain_of(3, 3), Kept(v(5), v(6), 6), 3)


def test_keeps_only_differences_cheaper_than_the_whole() -> None:
    """The newest difference is kept in any case: every learner has it and will ask from there."""
    assert worth_keeping(4, difference_bytes=4, whole_bytes=4) == 0
    assert worth_keeping(4, difference_bytes=2, whole_bytes=4) == 2
    assert worth_keeping(9, difference_bytes=1, whole_bytes=4) == 4
    assert worth_keeping(2, difference_bytes=1, whole_bytes=4) == 2
    assert worth_keeping(1, difference_bytes=1, whole_bytes=4) == 0
    assert worth_keeping(0, difference_bytes=1, whole_bytes=4) == 0
