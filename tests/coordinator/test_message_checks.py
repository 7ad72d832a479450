"""A shard and the syncer check an island's message before they use it."""

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
    MomentsTaken,
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


def test_refuses_adoption_of_another_life() -> None:
    report, vitals = Report(life("a"), PROGRESS, 1.0), Vitals(math.nan)
    check_report(report, vitals, [adopted(life("a"))], 1)
    for other in (life("b"), life("a", 2)):
        with pytest.raises(Malformed, match="has adopted"):
            check_report(report, vitals, [adopted(other)], 1)


def test_flaw_finds_bad_payloads_of_a_hand_in() -> None:
    said = HandIn(
        ContributionId(life(), F0, 0, 1), Version(0, 0), 0, 1, "x", Progress(1, 1, Lease(0))
    )
    good = np.ones(103, np.float32)
    assert flaw((said, WithMoments(good, good)), life(), F0) is None
    for bad in ([1.0], np.array([object()]), good.reshape(1, -1), None):
        assert flaw((said, WithMoments(good, bad)), life(), F0) is not None  # type: ignore[arg-type]
        assert flaw((said, WithMoments(bad, good)), life(), F0) is not None  # type: ignore[arg-type]


def test_refuses_message_of_another_kind() -> None:
    check_word(Left(life(), PROGRESS), Left)
    with pytest.raises(Malformed, match="instead of a LeaseWanted"):
        check_word(Left(life(), PROGRESS), LeaseWanted)
    with pytest.raises(Malformed, match=r"lease.start is -1 \(int\), not a count"):
        check_word(Left(life(), Progress(4, 400, Lease(0, -1))), Left)


class Lies(NamedTuple):
    """One piece of moments; `reference` is a string, valid if it starts with `at `."""

    host: int
    leaf: int
    start: Any
    nbytes: int
    reference: object


def refers(value: object) -> bool:
    return str(value).startswith("at ")


def test_refuses_malformed_pieces_of_moments() -> None:
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


def test_refuses_moments_that_are_not_flat_numeric_arrays() -> None:
    good = np.ones(3, np.float32)
    assert moments_of([good, good]) == [good, good]
    for bad in (7, np.array([None]), np.ones((2, 2), np.float32)):
        with pytest.raises(Malformed, match="among its moments"):
            moments_of([good, bad])


@pytest.mark.parametrize(
    "moments",
    [7, (life("b"), 8), MomentsTaken("b", 8), MomentsTaken(life("b"), -1),  # type: ignore[arg-type]
     MomentsTaken(life("b"), 8.0)],  # type: ignore[arg-type]
    ids=["number", "tuple", "no life", "negative", "float"],
)  # fmt: skip
def test_moments_that_are_none_are_refused(moments: Any) -> None:
    check_report(
        Report(life("a"), PROGRESS, 0.1, MomentsTaken(life("b"), 8)), Vitals(math.nan), [], 1
    )
    with pytest.raises(Malformed):
        check_report(Report(life("a"), PROGRESS, 0.1, moments), Vitals(math.nan), [], 1)


@pytest.mark.parametrize(
    "step_s",
    [10**400, -(10**400), math.inf, math.nan, True, "1"],
    ids=["huge", "negative", "inf", "nan", "bool", "text"],
)
def test_a_step_time_that_is_no_time_is_refused(step_s: Any) -> None:
    with pytest.raises(Malformed, match="not a time"):
        check_report(Report(life("a"), PROGRESS, step_s), Vitals(math.nan), [], 1)
