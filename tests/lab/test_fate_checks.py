"""The simulator's checker of contribution fates detects each false answer to a learner."""

from __future__ import annotations

import pytest

from archipelago.lab.checks.facts import Violation
from archipelago.lab.simulation.fate_checks import FateChecker
from coordinator.protocol import ContributionId, Fragment, Incarnation, Island, Known, Life

F0, F1 = Fragment(0), Fragment(1)
FIRST, SECOND = (Life(Island("a"), Incarnation(n)) for n in (1, 2))


def said(life: Life, start: int = 0, p: Fragment = F0) -> ContributionId:
    return ContributionId(life, p, start, start + 1)


def told_of(*made: ContributionId) -> FateChecker:
    judge = FateChecker()
    for one in made:
        judge.made(one)
    return judge


def test_contribution_reported_as_merged_must_be_public() -> None:
    judge = told_of(said(FIRST))
    with pytest.raises(Violation, match="is not public"):
        judge.hears(FIRST, F0, Known((0, 1), (), (said(FIRST),)))
    judge = told_of(said(FIRST))
    judge.published([said(FIRST)])
    judge.hears(FIRST, F0, Known((0, 1), (), (said(FIRST),)))


def test_contribution_reported_as_lost_must_never_be_merged() -> None:
    judge = told_of(said(FIRST))
    judge.hears(FIRST, F0, Known((0, 1)))
    with pytest.raises(Violation, match="is merged after all"):
        judge.published([said(FIRST)])


def test_held_contribution_may_be_merged_later() -> None:
    judge = told_of(said(FIRST))
    judge.hears(FIRST, F0, Known((0, 1), (said(FIRST),)))
    judge.published([said(FIRST)])
    judge.hears(FIRST, F0, Known((0, 2), (), (said(FIRST),)))


def test_overtaken_answer_is_ignored() -> None:
    judge = told_of(said(FIRST))
    judge.hears(FIRST, F0, Known((0, 2), (said(FIRST),)))
    judge.hears(FIRST, F0, Known((0, 1)))
    judge.published([said(FIRST)])


def test_superseded_life_may_get_any_answer() -> None:
    """A shard reports for such a life that it holds nothing, and may still merge what it holds.

    The fuzz found this. It is wrong on a fragment on which no later life has followed.
    """
    judge = told_of(said(FIRST), said(FIRST, p=F1), said(SECOND))
    judge.hears(FIRST, F0, Known((0, 1)))
    judge.published([said(FIRST)])
    judge.hears(FIRST, F1, Known((0, 1)))
    with pytest.raises(Violation, match="is merged after all"):
        judge.published([said(FIRST, p=F1)])
