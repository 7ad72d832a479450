"""Tests notice that some guards of the rules are removed; tests/mutants.py removes them all."""

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
"""The number of schedules within which each of these mutants is found."""


def test_each_mutant_patches_the_present_source() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, mutant
        assert mutant.old != mutant.new


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", REPRESENTATIVE)
def test_removed_guard_is_noticed(what: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.what == what)
    caught = try_out(mutant, ENOUGH)
    print(caught)
    assert caught.test or caught.schedule


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_harmless_mutant_is_not_noticed() -> None:
    harmless = Mutant(
        "another word",
        "coordinator/quorum.py",
        "whether a round may close",
        "whether a round shall close",
    )
    caught = try_out(harmless, ENOUGH)
    assert not caught.test
    assert not caught.schedule
