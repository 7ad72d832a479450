"""Docstrings begin as docs/contributing/style.md says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("archipelago", "coordinator", "islands", "cluster", "tests")
REFUSED = {
    "What", "Who", "Whose", "Whoever", "Of", "Those", "As", "With", "None", "It", "Its", "Has",
    "...",
}  # fmt: skip
"""First words of sentences that have no subject, or whose subject is a riddle."""
REFUSED_PAIRS = {("The", "same"), ("That", "of")}


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that stands as a statement: also under fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)  # a lambda has one, too, which is no list
        for statement in body if isinstance(body, list) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.lineno, statement.value.value


def refused(text: str) -> bool:
    words = text.split()
    first = words[0].rstrip(",:;.") if words and words[0] != "..." else "..."
    return first in REFUSED or tuple(words[:2]) in REFUSED_PAIRS


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_a_verb_or_a_noun(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0][:70] if text else '(empty)'}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text("utf-8")))
        if refused(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["Of both.", "...", "", "What is left.", "The same of a leaf.", "It is left."]
)
def test_the_old_style_is_noticed(text: str) -> None:
    (found,) = docstrings(ast.parse(f'def f():\n    """{text}"""\n'))
    assert refused(found[1])


def test_plain_docstrings_are_allowed() -> None:
    for text in ("Return the open rounds.", "The state of a learner.", "Bytes on the wire."):
        assert not refused(text)
