"""The simulator's judge of what learners are told of their contributions sees each lie."""

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


def test_what_is_said_to_be_merged_must_be_public() -> None:
    judge = told_of(said(FIRST))
    with pytest.raises(Violation, match="is not public"):
        judge.hears(FIRST, F0, Known((0, 1), (), (said(FIRST),)))
    judge = told_of(said(FIRST))
    judge.published([said(FIRST)])
    judge.hears(FIRST, F0, Known((0, 1), (), (said(FIRST),)))


def test_what_is_said_not_to_be_merged_must_never_be() -> None:
    judge = told_of(said(FIRST))
    judge.hears(FIRST, F0, Known((0, 1)))
    with pytest.raises(Violation, match="is merged after all"):
        judge.published([said(FIRST)])


def test_what_is_said_to_be_held_may_become_either() -> None:
    judge = told_of(said(FIRST))
    judge.hears(FIRST, F0, Known((0, 1), (said(FIRST),)))
    judge.published([said(FIRST)])
    judge.hears(FIRST, F0, Known((0, 2), (), (said(FIRST),)))


def test_an_answer_that_was_overtaken_says_nothing() -> None:
    judge = told_of(said(FIRST))
    judge.hears(FIRST, F0, Known((0, 2), (said(FIRST),)))
    judge.hears(FIRST, F0, Known((0, 1)))
    judge.published([said(FIRST)])


def test_a_life_that_another_has_followed_may_be_told_anything() -> None:
    """Of such a life a shard says that it holds nothing, and may merge what it holds of it
    (found by the fuzz); of a fragment on which nobody has followed it, it may not."""
    judge = told_of(said(FIRST), said(FIRST, p=F1), said(SECOND))
    judge.hears(FIRST, F0, Known((0, 1)))
    judge.published([said(FIRST)])
    judge.hears(FIRST, F1, Known((0, 1)))
    with pytest.raises(Violation, match="is merged after all"):
        judge.published([said(FIRST, p=F1)])
