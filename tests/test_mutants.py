"""Tests notice that some guards of the rules are removed; tests/mutants.py removes them all."""

from __future__ import annotations

import ast
import builtins

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant, try_out

REPRESENTATIVE = (
    "messages of a dead incarnation count",
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


def test_each_mutant_is_valid_python() -> None:
    """An undefined name would be caught by any test, whatever the guard is for."""
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        patched = ast.parse(text.replace(mutant.old, mutant.new))
        unknown = names(patched, ast.Load) - names(patched, ast.Store) - {*dir(builtins)}
        assert not unknown, (mutant, unknown)


def names(tree: ast.Module, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a module reads (`ast.Load`), or those that it binds (`ast.Store`)."""
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    if context is ast.Load:
        return found
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.alias(name=path, asname=alias):
                found.add(alias or path.partition(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case _:
                pass
    return found | {"__file__", "__name__", "__doc__"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", REPRESENTATIVE)
def test_removed_guard_is_noticed(what: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.what == what)
    caught = try_out(mutant, ENOUGH)
    print(caught)
    assert caught.test or caught.schedule


@pytest.mark.long
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
