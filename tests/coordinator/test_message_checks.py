"""A message of an island is checked before a shard or the syncer uses it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from coordinator.codec import WithMoments
from coordinator.errors import Malformed
from coordinator.message_checks import check_report, check_word, flaw, moments_of, pieces_of
from coordinator.protocol import (
    Adopted,
    ContributionId,
    Fragment,
    HandIn,
    Lease,
    LeaseWanted,
    Left,
    Life,
    Progress,
    Report,
    Version,
    Vitals,
)
from tests.coordinator.given import life

F0 = Fragment(0)
PROGRESS = Progress(4, 400, Lease(0, 4))


def adopted(who: Life) -> Adopted:
    return Adopted(who, F0, Version(0, 1), 4, 0, PROGRESS)


def test_an_adoption_of_another_life_is_refused() -> None:
    report, vitals = Report(life("a"), PROGRESS, 1.0), Vitals(math.nan)
    check_report(report, vitals, [adopted(life("a"))], 1)
    for other in (life("b"), life("a", 2)):
        with pytest.raises(Malformed, match="has adopted"):
            check_report(report, vitals, [adopted(other)], 1)


def test_what_is_handed_in_is_looked_at_before_it_is_a_contribution() -> None:
    said = HandIn(
        ContributionId(life(), F0, 0, 1), Version(0, 0), 0, 1, "x", Progress(1, 1, Lease(0))
    )
    good = np.ones(103, np.float32)
    assert flaw((said, WithMoments(good, good)), life(), F0) is None
    for bad in ([1.0], np.array([object()]), good.reshape(1, -1), None):
        assert flaw((said, WithMoments(good, bad)), life(), F0) is not None  # type: ignore[arg-type]
        assert flaw((said, WithMoments(bad, good)), life(), F0) is not None  # type: ignore[arg-type]


def test_a_word_of_another_kind_is_refused() -> None:
    check_word(Left(life(), PROGRESS), Left)
    with pytest.raises(Malformed, match="instead of a LeaseWanted"):
        check_word(Left(life(), PROGRESS), LeaseWanted)
    with pytest.raises(Malformed, match=r"lease.start is -1 \(int\), not a count"):
        check_word(Left(life(), Progress(4, 400, Lease(0, -1))), Left)


class Lies(NamedTuple):
    """A piece of moments; where it lies is a text, which refers to an object from `at ` on."""

    host: int
    leaf: int
    start: Any
    nbytes: int
    reference: object


def refers(value: object) -> bool:
    return str(value).startswith("at ")


def test_pieces_of_moments_are_of_one_class_and_refer_to_objects() -> None:
    good = Lies(0, 0, 0, 12, "at home")
    assert pieces_of(None, Lies, refers) is None
    assert pieces_of([good], Lies, refers) == [good]
    bad: list[Any] = [
        7,
        (good,),
        [good, None],
        [tuple(good)],
        [good._replace(reference="nowhere")],
        [good._replace(leaf=1)],
        [good._replace(start=0.5)],
        [good._replace(nbytes=-1)],
    ]
    for given in bad:
        with pytest.raises(Malformed):
            pieces_of(given, Lies, refers)


def test_moments_are_flat_arrays_of_numbers() -> None:
    good = np.ones(3, np.float32)
    assert moments_of([good, good]) == [good, good]
    for bad in (7, np.array([None]), np.ones((2, 2), np.float32)):
        with pytest.raises(Malformed, match="among its moments"):
            moments_of([good, bad])


@pytest.mark.parametrize(
    "step_s",
    [10**400, -(10**400), math.inf, math.nan, True, "1"],
    ids=["huge", "negative", "inf", "nan", "bool", "text"],
)
def test_a_step_time_that_is_no_time_is_refused(step_s: Any) -> None:
    with pytest.raises(Malformed, match="not a time"):
        check_report(Report(life("a"), PROGRESS, step_s), Vitals(math.nan), [], 1)
