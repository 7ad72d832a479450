"""Some guards of the rules are removed, and it is noticed; tests/mutants.py removes them all."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant, try_out

REPRESENTATIVE = (
    "a dead incarnation is heard",
    "t is the fastest clock",
    "under the quorum",
    "NaN is admitted",
    "accounted for twice",
    "data that was merged goes back",
    "an undone merge stays in the ledger",
)
ENOUGH = 60
"""Schedules that each of these is found in."""


def test_each_mutant_is_a_patch_of_the_rules_as_they_are() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, mutant
        assert mutant.old != mutant.new


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", REPRESENTATIVE)
def test_a_guard_that_is_gone_is_missed(what: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.what == what)
    caught = try_out(mutant, ENOUGH)
    print(caught)
    assert caught.test or caught.schedule


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_noticed_where_nothing_is_wrong() -> None:
    harmless = Mutant("another word", "coordinator/quorum.py", "May this round", "Shall this round")
    caught = try_out(harmless, ENOUGH)
    assert not caught.test
    assert not caught.schedule
