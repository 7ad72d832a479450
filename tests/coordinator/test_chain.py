"""What of a public chain is kept, and what of it somebody gets who missed some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain import Kept, between, lengthened, worth_keeping
from coordinator.protocol import Version


def v(number: int) -> Version:
    return Version(0, number)


def chain_of(versions: int, most: int) -> tuple[Kept[int], ...]:
    """The difference that leads to a version is called by its number."""
    chain: tuple[Kept[int], ...] = ()
    for number in range(1, versions + 1):
        chain = lengthened(chain, Kept(v(number - 1), v(number), number), most)
    return chain


@given(st.integers(0, 12), st.integers(0, 6), st.integers(0, 12), st.integers(0, 14))
def test_all_of_it_in_order_or_nothing(versions: int, most: int, older: int, newer: int) -> None:
    found = between(chain_of(versions, most), v(older), v(newer))
    if versions - most <= older < newer <= versions:
        assert found == [*range(older + 1, newer + 1)]
    else:
        assert found is None


def test_a_version_of_another_generation_is_not_in_it() -> None:
    chain = chain_of(3, 3)
    assert between(chain, Version(1, 1), v(3)) is None
    assert between(chain, v(1), Version(1, 3)) is None


def test_a_chain_has_no_gap() -> None:
    with pytest.raises(AssertionError, match="v5 is not in the chain"):
        lengthened(chain_of(3, 3), Kept(v(5), v(6), 6), 3)


def test_no_more_are_kept_than_it_pays_to_fetch() -> None:
    """The newest is kept in any case: every learner has it and will ask from there."""
    assert worth_keeping(4, difference_bytes=4, whole_bytes=4) == 0
    assert worth_keeping(4, difference_bytes=2, whole_bytes=4) == 2
    assert worth_keeping(9, difference_bytes=1, whole_bytes=4) == 4
    assert worth_keeping(2, difference_bytes=1, whole_bytes=4) == 2
    assert worth_keeping(1, difference_bytes=1, whole_bytes=4) == 0
    assert worth_keeping(0, difference_bytes=1, whole_bytes=4) == 0
