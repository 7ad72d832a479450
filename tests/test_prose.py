"""Docstrings and comments follow docs/contributing/style.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("archipelago", "coordinator", "islands", "cluster", "tests")
REFUSED = {
    "What", "Who", "Whose", "Whoever", "Of", "Those", "As", "With", "None", "It", "Its", "Has",
    "How", "Why", "Where", "By", "...",
}  # fmt: skip
"""First words of sentences that have no subject, or whose subject is a riddle."""
REFUSED_PAIRS = {("The", "same"), ("That", "of")}
PRODUCT = ("archipelago", "coordinator", "islands", "cluster")
CODE_SPAN = re.compile(r"`[^`]*`|https?://\S+")
PERSONIFIED = re.compile(
    r"\b(says?|said|tells?|told|hears?|heard|believes?|believed|knows?|knew|goes on|went on|"
    r"nobody|somebody|anybody|everybody|whoever|who|whom)\b",
    re.IGNORECASE,
)
"""Words that describe programs as people; name the message, state or check instead."""
RIDDLES = re.compile(
    r"\b(tak(e|es|ing|en) in|took in|for ever|let go|shall|no reason to refuse|this room)\b"
    r"|Errors: (as|those)\b",
    re.IGNORECASE,
)
"""Phrases that have a plain replacement: record, adopt, forever, the errors of, this layer."""
REFUSED_NAMES = {"who", "whom", "said", "told", "saying", "spoke", "hungry"}
REFUSED_DEFINITIONS = {
    "again", "handed", "giving", "told", "possible", "going", "kit", "looks", "wishes", "shown",
    "door", "words", "talker", "habits", "keeping", "handing", "everyone",
}  # fmt: skip
"""Words that do not name what a module, a class or a function is."""
"""Names of parameters and fields that name no content."""


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


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def unclear(text: str) -> list[str]:
    """Return the refused phrases of a docstring or a comment, without its code spans."""
    plain = " ".join(CODE_SPAN.sub("", text).split())
    return [found.group() for kind in (PERSONIFIED, RIDDLES) for found in kind.finditer(plain)]


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each parameter, and of each annotated field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_describe_no_program_as_a_person(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(phrases)}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (text := path.read_text("utf-8"))
        for line, prose in [*docstrings(ast.parse(text)), *comments(text)]
        if (phrases := unclear(prose))
    ]
    assert not found, "\n".join(found)


def defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each class and function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def is_refused_definition(name: str) -> bool:
    return name.strip("_").lower() in REFUSED_DEFINITIONS


@pytest.mark.parametrize("folder", PRODUCT)
def test_modules_classes_and_functions_are_named_for_what_they_are(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files
        for line, name in [(0, path.stem), *defined(ast.parse(path.read_text("utf-8")))]
        if is_refused_definition(name)
    ]
    assert not found, "\n".join(found)


def test_refused_definitions_are_noticed() -> None:
    source = "class Habits:\n    def shown(self): ...\nasync def _told(): ...\n"
    names = [name for _, name in defined(ast.parse(source))]
    assert [is_refused_definition(name) for name in names] == [True] * 3
    assert not is_refused_definition("handed_in")


@pytest.mark.parametrize("folder", PRODUCT)
def test_parameters_and_fields_are_named_for_their_content(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in named(ast.parse(path.read_text("utf-8")))
        if name in REFUSED_NAMES
    ]
    assert not found, "\n".join(found)


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
    "text",
    [
        "Of both.", "...", "", "What is left.", "The same of a leaf.", "It is left.",
        "How it is cut.", "Why it ended.", "Where it lies.", "By how much it grows.",
    ],
)  # fmt: skip
def test_the_old_style_is_noticed(text: str) -> None:
    (found,) = docstrings(ast.parse(f'def f():\n    """{text}"""\n'))
    assert refused(found[1])


def test_plain_docstrings_are_allowed() -> None:
    for text in ("Return the open rounds.", "The state of a learner.", "Bytes on the wire."):
        assert not refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return what the shard says.", "Nobody waits.", "The syncer\nknows it.", "A life goes on.",
        "Have the learner told.", "It is heard.", "Take in\nan event.", "Errors: as `put`.",
        "Errors: those of `put`.", "It is kept for ever.", "It shall end.",
    ],
)  # fmt: skip
def test_unclear_phrases_are_noticed(text: str) -> None:
    assert unclear(text)
    ((_, comment),) = comments(f"x = 1  # {' '.join(text.split())}\n")
    assert unclear(comment)


def test_code_spans_and_plain_phrases_are_allowed() -> None:
    for text in ("Call `tell` with the figures.", "None if it is unknown.", "The known lives."):
        assert not unclear(text)


def test_refused_names_are_noticed() -> None:
    source = "def f(told: int, *, who: str): ...\nclass C:\n    said: int\n"
    assert {name for _, name in named(ast.parse(source))} == {"told", "who", "said"}
    assert {"told", "who", "said"} <= REFUSED_NAMES
